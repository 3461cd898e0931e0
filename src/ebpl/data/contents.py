"""What a dataset holds, whatever form it comes in, also where it cannot be trained on yet."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ebpl.data.duplicates import Entry
from ebpl.data.files import Look, is_text
from ebpl.data.images import UNLABELED, Images, ImageSet
from ebpl.data.load import load
from ebpl.data.names import BENCHMARK_NAMES
from ebpl.data.reading import Listed, read_surveyed, survey, unread
from ebpl.data.sources import list_csv, list_folder

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
    """What is in whatever `ebpl.load` takes; `done` is told how many more files have been opened."""
    if not isinstance(data, ImageSet) and str(data) not in BENCHMARK_NAMES and is_text(str(data)):
        path = Path(data)
        if os.path.isdir(path):
            return _of_files(list_folder(path), image_size, done)
        if os.path.isfile(path) and path.suffix.lower() == ".csv":
            return _of_files(list_csv(path), image_size, done)
    return _of_arrays(load(data, data_dir=data_dir, image_size=image_size, training=False))


def _of_files(listed: Listed, image_size: int | None, done: Done) -> Contents:
    found = survey(listed, digests=True, done=done)
    entries = [
        Entry(listed.called(path), part, label, found.digests[path])
        for part in PARTS
        for path, label in listed.parts.get(part, ())
        if path in found.looks
    ]
    broken = unread(listed, found)
    notes = [*listed.notes, *(found.notes(found.size(image_size)) if found.looks else ())]
    looks: list[Look] = list(found.looks.values())
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
    pixels = np.ascontiguousarray(part.pixels)
    return [
        Entry(part.name(i), name, labels[i], hashlib.blake2b(pixels[i].data, digest_size=16).digest())
        for i in range(len(part))
    ]
