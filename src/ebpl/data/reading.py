"""From a list of image files to one array: what the files are like, and all of them at one size and in one mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ebpl.data.files import Look, digest, is_text, printable, read_picture, read_pixels, readers, unreadable
from ebpl.data.images import UNLABELED, Images, ImageSet
from ebpl.errors import DataError

SKIP = "\nOr let ebpl train or evaluate leave them out with --skip-unreadable (in Python: skip_unreadable=True)."
LARGEST_KEPT = 64
RESIZED = 32
AT_ONCE = 512
"""So many files are given to the readers at a time."""

Listing = dict[str, list[tuple[Path, str]]]
"""For train, validation and test: image files with their class name, '' where unlabelled."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Absent(NamedTuple):
    """An image that a list names and that is not there: where it is named, and its label."""

    where: str
    label: str


@dataclass(frozen=True)
class Listed:
    """Image files and their labels, before any of them is opened."""

    name: str
    root: Path
    parts: Listing
    notes: tuple[str, ...] = ()
    absent: tuple[Absent, ...] = ()
    listing: Path | None = None
    """The file that lists the images, if it is not the folder itself."""

    @property
    def files(self) -> list[Path]:
        """Every file once."""
        return list(dict.fromkeys(path for part in self.parts.values() for path, _ in part))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; one whose images cannot be read is still among them, so that it is missed."""
        labels = {label for part in self.parts.values() for _, label in part}
        return tuple(sorted((labels | {absent.label for absent in self.absent}) - {""}))

    def called(self, path: Path) -> str:
        """What an image is called: its path from the folder or list."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return path.as_posix()


@dataclass
class Survey:
    """What the listed files turned out to be."""

    looks: dict[Path, Look] = field(default_factory=dict)
    broken: dict[Path, str] = field(default_factory=dict)
    """Files that cannot be read, with the reason."""
    digests: dict[Path, bytes] = field(default_factory=dict)
    """Equal for files that show the same picture, if asked for."""

    def size(self, image_size: int | None) -> tuple[int, int]:
        """Height and width to read all at: as asked for, else their own where all agree and it is small, else 32."""
        if image_size is not None:
            return image_size, image_size
        sizes = {(look.height, look.width) for look in self.looks.values()}
        if len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_KEPT:
            return next(iter(sizes))
        return RESIZED, RESIZED

    @property
    def gray(self) -> bool:
        """Whether all images are gray."""
        return all(look.gray for look in self.looks.values())

    def notes(self, size: tuple[int, int]) -> list[str]:
        """What reading the images at this size does to them."""
        told = {
            "deep": "{} images of more than 8 bits are stretched, each to its own range",
            "turned": "{} images are turned as their EXIF data says",
            "transparent": "{} images are put on white where they are transparent",
            "frames": "{} images have several frames or pages; the first is taken",
        }
        counts = {name: sum(getattr(look, name) for look in self.looks.values()) for name in told}
        notes = [text.format(counts[name]) for name, text in told.items() if counts[name]]
        sizes = {(look.height, look.width) for look in self.looks.values()}
        if sizes == {size}:
            return notes
        if len(sizes) == 1:
            return [*notes, "images of {} x {} pixels are resized to {} x {}".format(*next(iter(sizes)), *size)]
        return [*notes, f"images of {len(sizes)} different sizes are resized to {size[0]} x {size[1]}"]


def survey(listed: Listed, *, digests: bool = False, done: Callable[[int], None] = lambda _: None) -> Survey:
    """Open every listed file, whole, so that truncated ones are found too."""
    found = Survey()

    def look(path: Path) -> tuple[Look, bytes] | str:
        if not is_text(str(path)):
            return "its name is not valid UTF-8; rename it"
        try:
            picture, seen = read_picture(path)
            return seen, digest(picture) if digests else b""
        except Exception as error:
            return unreadable(path, error)

    for path, seen in zip(listed.files, _in_threads(look, listed.files), strict=True):
        if isinstance(seen, str):
            found.broken[path] = seen
        else:
            found.looks[path], found.digests[path] = seen
        done(1)
    return found


def read(listed: Listed, image_size: int | None = None, skip_unreadable: bool = False) -> ImageSet:
    """All listed images at one size and in one mode; unreadable ones are named in one error, or left out."""
    if listed.absent and not skip_unreadable:
        what = f"{listed.listing} names images that do not exist (relative to {listed.root})"
        raise DataError(several(what, [where for where, _ in listed.absent]) + SKIP)
    found = survey(listed)
    if found.broken and not skip_unreadable:
        what = "These images cannot be read; repair them, or take them out of the folder or list"
        raise DataError(several(what, [f"{name}: {reason}" for name, reason in unread(listed, found)]) + SKIP)
    return read_surveyed(listed, found, image_size)


def unread(listed: Listed, found: Survey) -> list[tuple[str, str]]:
    """Everything that cannot be read, with the reason."""
    absent = [(where, "there is no such file") for where, _ in listed.absent]
    return [*absent, *((printable(path), reason) for path, reason in found.broken.items())]


def read_surveyed(listed: Listed, found: Survey, image_size: int | None = None) -> ImageSet:
    """The images that can be read, at one size and in one mode; the others are noted."""
    notes = list(listed.notes)
    if broken := unread(listed, found):
        shown = "; ".join(f"{name} ({reason})" for name, reason in broken[:10])
        more = f"; and {len(broken) - 10} more" if len(broken) > 10 else ""
        notes.append(f"{len(broken)} images that cannot be read are left out: {shown}{more}")
    if not found.looks:
        raise DataError(f"None of the {len(broken)} images of {listed.listing or listed.root} can be read.")
    size, gray = found.size(image_size), found.gray
    notes += found.notes(size)
    number = {label: index for index, label in enumerate(listed.classes)} | {"": UNLABELED}
    parts = {}
    for part, entries in listed.parts.items():
        readable = [(path, label) for path, label in entries if path in found.looks]
        if readable:
            paths = tuple(listed.called(path) for path, _ in readable)
            labels = np.array([number[label] for _, label in readable], np.int64)
            parts[part] = Images(_pixels([path for path, _ in readable], size, gray), labels, paths)
    if "train" not in parts:  # good to measure on, though not to train on
        parts["train"] = next(iter(parts.values())).take(np.zeros(0, np.int64))
    test, validation = parts.get("test"), parts.get("validation")
    return ImageSet(listed.name, listed.classes, parts["train"], test, validation, notes=tuple(notes))


def _pixels(paths: Sequence[Path], size: tuple[int, int], gray: bool) -> NDArray[np.uint8]:
    pixels = np.empty((len(paths), *size, 1 if gray else 3), np.uint8)

    def fill(index: int) -> None:
        try:
            pixels[index] = read_pixels(paths[index], size, gray)
        except MemoryError:
            raise
        except Exception as error:  # it could be read a moment ago
            raise DataError(
                f"{paths[index]} has changed while it was read: {unreadable(paths[index], error)}"
            ) from error

    for _ in _in_threads(fill, range(len(paths))):
        pass
    return pixels


def _in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results in the order of the items, a few hundred at a time, since each that waits needs memory."""
    waiting = iter(items)
    with readers() as pool:
        while batch := list(islice(waiting, AT_ONCE)):
            yield from pool.map(work, batch)


def several(what: str, items: Sequence[str], shown: int = 10) -> str:
    """A text that lists the first few of what is wrong and counts the rest."""
    more = f"\n  ... and {len(items) - shown} more" if len(items) > shown else ""
    return what + ":\n  " + "\n  ".join(items[:shown]) + more
