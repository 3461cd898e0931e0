"""What a dataset holds before it is trained on: its images, those it holds more than once, and the pixels of a few."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebpl.data import BENCHMARK_NAMES, format_of, load
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.decode import FORMATS, ImageInfo, in_threads, is_text, read_picture, resized_picture, stacked
from ebpl.data.folder import Listed, read_surveyed, survey, unread
from ebpl.errors import DataError

Data = str | os.PathLike[str] | ImageSet
Result = TypeVar("Result")
LOOKED_AT = 20
"""Images whose size says whether all are small."""


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


def listing(data: Data) -> Callable[[Path], Listed] | None:
    """What lists the image files of the data; None where it is not made of image files."""
    if isinstance(data, ImageSet) or str(data) in BENCHMARK_NAMES or not is_text(str(data)):
        return None
    form = format_of(Path(data))
    return form.lister() if form else None


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
    data: Data,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    done: Done = lambda _: None,
) -> Contents:
    """What is in whatever `ebpl.load` takes; `done` is called with the number of further files opened."""
    if lister := listing(data):
        assert not isinstance(data, ImageSet)
        return _of_files(lister(Path(data)), image_size, done)
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
    labels = [entry.label for entry in entries if entry.part == "train"]
    return Contents(
        listed.name,
        listed.classes,
        tuple(entries),
        tuple(broken),
        dict(Counter((look.height, look.width) for look in looks).most_common()),
        dict(Counter(look.kind for look in looks).most_common()),
        (1 if found.gray else 3, *found.size(image_size)) if looks else None,
        tuple(notes),
        ImageSet(listed.name, listed.classes, _bare(listed.classes, labels)),
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
        replace(data, train=Images(data.train.pixels[:, :0, :0, :1], data.train.labels), test=None, validation=None),
        lambda: data,
    )


def _bare(classes: Sequence[str], labels: Sequence[str]) -> Images:
    """Images without a pixel that have these labels; '' stands for none."""
    number = {label: index for index, label in enumerate(classes)} | {"": UNLABELED}
    return Images(np.zeros((len(labels), 0, 0, 1), np.uint8), np.array([number[label] for label in labels], np.int64))


def _entries(data: ImageSet, name: str, part: Images) -> list[Entry]:
    labels = [data.classes[label] if label != UNLABELED else "" for label in part.labels.tolist()]
    return [Entry(part.name(i), name, labels[i], found) for i, found in enumerate(part.digests())]


@dataclass(frozen=True)
class LazyImages:
    """Labels of all images, and a way to the pixels of a few."""

    images: ImageSet
    """Without pixels where they are in files."""
    count: int
    """Images of all parts."""
    size: int | None
    """Height and width that files are read at."""
    absent: bool
    """Whether images are listed that do not exist."""
    open: Callable[[int], NDArray[np.uint8]]
    """The pixels of a training image, gray (H, W) or colour (H, W, 3)."""
    side: Callable[[int], int]
    """The length of the longer side of a training image before it is resized."""

    def read(self, positions: NDArray[np.int64], skip_unreadable: bool, shown: Callable[[int, str], None]) -> ImageSet:
        """The labelled training images at these positions that can be read."""
        pixels, kept = self.pixels(positions, skip_unreadable, shown)
        labels = np.unique(self.images.train.labels[kept], return_inverse=True)
        classes = tuple(self.images.classes[label] for label in labels[0])
        return ImageSet(self.images.name, classes, Images(pixels, labels[1].astype(np.int64)))

    def pixels(
        self, positions: NDArray[np.int64], skip_unreadable: bool, shown: Callable[[int, str], None]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Training images that can be read, and their positions."""
        found, kept = [], []
        read = in_threads(_or_none(self.open), positions.tolist())
        for position, opened in zip(positions.tolist(), read, strict=True):
            shown(1, "reading")
            if opened is not None:
                found.append(opened)
                kept.append(position)
            elif not skip_unreadable:
                raise DataError("An image cannot be read.")
        size = (found[0].shape[0], found[0].shape[1]) if found else (0, 0)
        gray = all(picture.ndim == 2 for picture in found)
        return stacked(found, size, 1 if gray else 3), np.array(kept, np.int64)


def _or_none(function: Callable[[int], Result]) -> Callable[[int], Result | None]:
    """The same function; None where it fails: a damaged file can be wrong in any way, and loading says which are."""

    def tried(position: int) -> Result | None:
        try:
            return function(position)
        except Exception:
            return None

    return tried


def lazy_images(data: Data, image_size: int | None, encoder_size: int) -> LazyImages:
    """The images of the data; files are read at `image_size`, or else at the size of an encoder."""
    lister = listing(data)
    if lister is None:
        assert isinstance(data, ImageSet)
        parts = [part for part in (data.train, data.validation, data.test) if part is not None]

        def given(position: int) -> NDArray[np.uint8]:
            pixels: NDArray[np.uint8] = data.train.pixels[position]
            return pixels[..., 0] if pixels.shape[2] == 1 else pixels

        return LazyImages(data, sum(map(len, parts)), None, False, given, lambda _: max(data.shape[1:]))
    assert not isinstance(data, ImageSet)
    listed, size = lister(Path(data)), image_size or encoder_size

    def opened(position: int) -> NDArray[np.uint8]:
        picture = read_picture(listed.parts["train"][position][0])[0]
        return np.asarray(resized_picture(picture, (size, size)), np.uint8)

    def side(position: int) -> int:
        with Image.open(listed.parts["train"][position][0], formats=FORMATS) as picture:
            return max(picture.size)

    labels = {part: _bare(listed.classes, [label for _, label in files]) for part, files in listed.parts.items()}
    images = ImageSet(
        listed.name, listed.classes, labels.get("train", _bare(listed.classes, [])), validation=labels.get("validation")
    )
    return LazyImages(images, len(listed.files), size, bool(listed.absent), opened, side)


def side_of(source: LazyImages, sample: NDArray[np.int64]) -> float:
    """The longer side of an image, by the headers of a few."""
    spread = sample[np.linspace(0, len(sample) - 1, min(LOOKED_AT, len(sample))).astype(int)]
    sides = [side for side in map(_or_none(source.side), spread.tolist()) if side is not None]
    return float(np.median(sides)) if sides else math.inf
