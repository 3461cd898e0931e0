"""What a dataset holds, also where it cannot be trained on yet, and which images it holds more than once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ebpl.data import BENCHMARK_NAMES, format_of, load
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.decode import ImageInfo, is_text
from ebpl.data.folder import Listed, read_surveyed, survey, unread


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


Done = Callable[[int], None]
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Contents:
    """Every image that can be read, every one that cannot, and a way to the pixels."""

    name: str
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]
    unreadable: tuple[tuple[str, str], ...]
    """What cannot be read, and why."""
    sizes: dict[tuple[int, int], int]
    """How many images have which height and width, the most frequent first."""
    kinds: dict[str, int]
    """How many are gray, colour, alpha, palette, CMYK, 16-bit or 32-bit."""
    shape: tuple[int, int, int] | None
    """Channels, height and width as training would take the images; None where none can be read."""
    notes: tuple[str, ...]
    labels: ImageSet
    """The training images that can be read, without a pixel, to ask of their labels what training would ask."""
    read: Callable[[], ImageSet]
    """The images as training would take them, without those that cannot be read."""

    def counts(self, part: str) -> dict[str, int]:
        """How many images of a part have which label; '' stands for none."""
        found = Counter(entry.label for entry in self.entries if entry.part == part)
        return {label: found[label] for label in (*self.classes, "")}


def contents(
    data: str | os.PathLike[str] | ImageSet,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    done: Done = lambda _: None,
) -> Contents:
    """What is in whatever `ebpl.load` takes; `done` is called with the number of further files opened."""
    if not isinstance(data, ImageSet) and str(data) not in BENCHMARK_NAMES and is_text(str(data)):
        found = format_of(Path(data))
        if found and (listed := found.lister()):
            return _of_files(listed(Path(data)), image_size, done)
    return _of_arrays(load(data, data_dir=data_dir, image_size=image_size, training=False))


def _of_files(listed: Listed, image_size: int | None, done: Done) -> Contents:
    found = survey(listed, image_size, digests=set(listed.files), done=done)
    entries = [
        Entry(listed.called(path), part, label, found.digests[path])
        for part in PARTS
        for path, label in listed.parts.get(part, ())
        if path in found.looks
    ]
    broken = unread(listed, found)
    notes = [*listed.notes, *listed.advice, *(found.notes(found.size(image_size)) if found.looks else ())]
    looks: list[ImageInfo] = list(found.looks.values())
    number = {label: index for index, label in enumerate(listed.classes)} | {"": UNLABELED}
    labels = [number[entry.label] for entry in entries if entry.part == "train"]
    return Contents(
        listed.name,
        listed.classes,
        tuple(entries),
        tuple(broken),
        dict(Counter((look.height, look.width) for look in looks).most_common()),
        dict(Counter(look.kind for look in looks).most_common()),
        (1 if found.gray else 3, *found.size(image_size)) if looks else None,
        tuple(notes),
        ImageSet(listed.name, listed.classes, _bare(np.array(labels, np.int64))),
        lambda: read_surveyed(listed, found, image_size),
    )


def _of_arrays(data: ImageSet) -> Contents:
    parts = {name: part for name in PARTS if (part := getattr(data, name)) is not None and len(part)}
    count = sum(len(part) for part in parts.values())
    channels, height, width = data.shape
    entries = [entry for name, part in parts.items() for entry in _entries(data, name, part)]
    return Contents(
        data.name,
        data.classes,
        tuple(entries),
        (),
        {(height, width): count} if count else {},
        {"gray" if channels == 1 else "colour": count} if count else {},
        data.shape if count else None,
        data.notes,
        replace(data, train=_bare(data.train.labels), test=None, validation=None),
        lambda: data,
    )


def _bare(labels: NDArray[np.int64]) -> Images:
    """Labels of images that have no pixel."""
    return Images(np.zeros((len(labels), 0, 0, 1), np.uint8), labels)


def _entries(data: ImageSet, name: str, part: Images) -> list[Entry]:
    labels = [data.classes[label] if label != UNLABELED else "" for label in part.labels.tolist()]
    return [Entry(part.name(i), name, labels[i], found) for i, found in enumerate(part.digests())]
