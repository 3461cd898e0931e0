"""Images that are there more than once, told by what they show and not by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """An image of a dataset: what it is called, where it belongs, and a digest of what it shows."""

    name: str
    part: str
    """train, validation or test."""
    label: str
    """Its class, '' where it has none."""
    digest: bytes


Group = tuple[Entry, ...]


@dataclass(frozen=True)
class Duplicates:
    """Groups of entries that show the same picture, and those of them that harm."""

    groups: tuple[Group, ...]

    @property
    def extra(self) -> int:
        """How many images could go without anything being lost."""
        return sum(len(group) - 1 for group in self.groups)

    @cached_property
    def conflicting(self) -> tuple[Group, ...]:
        """The same picture with two different labels: at least one of them is wrong."""
        return self._those(lambda group: len({entry.label for entry in group} - {""}) > 1)

    @cached_property
    def leaking(self) -> tuple[Group, ...]:
        """The same picture in training and among the images that measure it or choose its weights."""
        return self._those(lambda group: "train" in (parts := {entry.part for entry in group}) and len(parts) > 1)

    @cached_property
    def labeled_and_unlabeled(self) -> tuple[Group, ...]:
        """The same picture with and without a label among the training images."""

        def both(group: Group) -> bool:
            labels = {entry.label for entry in group if entry.part == "train"}
            return "" in labels and len(labels) > 1

        return self._those(both)

    def _those(self, harmful: Callable[[Group], bool]) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if harmful(group))

    def to_dict(self) -> dict[str, Any]:
        """All groups for JSON, each with what is wrong with it."""
        kinds = ("conflicting", "leaking", "labeled_and_unlabeled")
        found = {kind: set(getattr(self, kind)) for kind in kinds}
        return {
            "extra": self.extra,
            **{kind: len(groups) for kind, groups in found.items()},
            "groups": [
                {
                    "images": [{"image": e.name, "part": e.part, "label": e.label or None} for e in group],
                    **{kind: group in groups for kind, groups in found.items()},
                }
                for group in self.groups
            ],
        }


def find_duplicates(entries: Iterable[Entry]) -> Duplicates:
    """Entries with the same digest, in the order in which they come."""
    by_digest: dict[bytes, list[Entry]] = {}
    for entry in entries:
        by_digest.setdefault(entry.digest, []).append(entry)
    return Duplicates(tuple(tuple(group) for group in by_digest.values() if len(group) > 1))
