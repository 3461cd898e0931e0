"""Images and their labels, the one form in which data enters training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.errors import DataError, some_of
from ebpl.io import is_text

UNLABELED = -1
MOST_CLASSES = 10_000
"""A higher number is no class, but a mistake, which would cost as much memory as if it were one."""


@dataclass(frozen=True)
class Images:
    """Pixels (N, H, W, C) as uint8 with C of 1 or 3, and labels (N), -1 where unknown."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    paths: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {self.pixels.shape[1:]}, {int(self.labeled.sum())} labelled)"

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """Which images have a label."""
        known: NDArray[np.bool_] = self.labels != UNLABELED
        return known

    def name(self, index: int) -> str:
        """What to call an image in a list: its path, or its number."""
        return self.paths[index] if self.paths else str(index)

    def digests(self) -> Iterator[bytes]:
        """A digest of each image, equal for those that show the same."""
        pixels = np.ascontiguousarray(self.pixels)
        return (hashlib.blake2b(image.data, digest_size=16).digest() for image in pixels)

    def short_digests(self) -> NDArray[np.uint64]:
        """The first eight bytes of each digest as a number: enough to know an image again."""
        return np.frombuffer(b"".join(digest[:8] for digest in self.digests()), "<u8").astype(np.uint64)

    def fingerprint(self, classes: tuple[str, ...]) -> str:
        """A digest of the images and of their labels, which number these classes."""
        return _fingerprint(classes, self)

    def take(self, index: NDArray[Any]) -> Images:
        """Some of the images."""
        paths = tuple(self.paths[i] for i in index) if self.paths else None
        return Images(self.pixels[index], self.labels[index], paths)

    def labeled_in(self, others: Images) -> int:
        """How many of the labelled images are, pixel for pixel, among others too."""
        if self.pixels.shape[1:] != others.pixels.shape[1:]:
            return 0
        return self.labeled_among(others.short_digests())

    def labeled_among(self, digests: NDArray[np.uint64]) -> int:
        """How many of the labelled images have one of these short digests."""
        return int(np.isin(self.take(np.flatnonzero(self.labeled)).short_digests(), digests).sum())

    def with_channels(self, channels: int) -> Images:
        """The images as gray (1) or colour (3)."""
        pixels = self.pixels
        if pixels.shape[3] == 1 and channels == 3:
            pixels = np.repeat(pixels, 3, axis=3)
        elif pixels.shape[3] == 3 and channels == 1:
            pixels = np.round(pixels @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]
        return Images(pixels, self.labels, self.paths)


@dataclass(frozen=True)
class ImageSet:
    """A dataset: named classes, training images, and validation and test images where the data brings its own."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images | None = None
    validation: Images | None = None
    labels_per_class: int | None = None
    """The paper's number of labels for this benchmark; None for the user's own data."""
    augment: str = "shift"
    """Augmentation that keeps the meaning of these images."""
    notes: tuple[str, ...] = ()
    """What was done to the images while reading them."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        height, width, channels = self.train.pixels.shape[1:]
        return channels, height, width

    @cached_property
    def test_in_training(self) -> int:
        """How many labelled test images are among the training images too, labelled or not."""
        return self.test.labeled_in(self.train) if self.test is not None else 0

    @property
    def is_benchmark(self) -> bool:
        """Whether the paper's protocol of hiding labels applies."""
        return self.labels_per_class is not None

    def fingerprint(self) -> str:
        """A digest of all images, labels and classes: shows whether data is still what a run began with."""
        return _fingerprint(self.classes, self.train, self.validation, self.test)

    def fingerprints(self) -> dict[str, str]:
        """What a run keeps to know its data again: the digest of all of it, and of the test images where it has any."""
        tested = {"test_fingerprint": self.test.fingerprint(self.classes)} if self.test is not None else {}
        return {"fingerprint": self.fingerprint(), **tested}


def _fingerprint(classes: tuple[str, ...], *parts: Images | None) -> str:
    digest = hashlib.sha256(repr(classes).encode())
    for part in parts:
        digest.update(repr(part and part.pixels.shape).encode())
        if part is not None:
            digest.update(np.ascontiguousarray(part.pixels).data)
            digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()[:16]


def from_arrays(
    images: Any,
    labels: Any,
    *,
    test_images: Any = None,
    test_labels: Any = None,
    validation_images: Any = None,
    validation_labels: Any = None,
    classes: tuple[str, ...] | None = None,
    name: str = "arrays",
    training: bool = True,
) -> ImageSet:
    """An `ImageSet` from arrays; label -1 means unlabelled.

    Images are (N, H, W) or (N, H, W, C) with C of 1 or 3: uint8, or floating point in [0, 1]. With `training` it must
    be possible to train on them: at least two classes, each with a label.

    >>> import numpy as np
    >>> data = from_arrays(np.zeros((4, 8, 8)), [0, 1, -1, -1])
    >>> data.shape, data.classes
    ((1, 8, 8), ('0', '1'))
    """
    train = _images(images, labels, f"{name}: images")
    test = None if test_images is None else _images(test_images, test_labels, f"{name}: test images")
    validation = None
    if validation_images is not None:
        validation = _images(validation_images, validation_labels, f"{name}: validation images")
    others = [part for part in (test, validation) if part is not None]
    for part in others:
        if part.pixels.shape[1:] != train.pixels.shape[1:]:
            raise DataError(
                f"{name}: images are {train.pixels.shape[1:]} in training but {part.pixels.shape[1:]} later."
            )
    highest = max(int(part.labels.max(initial=-1)) for part in (train, *others))
    if classes is None:
        classes = tuple(str(i) for i in range(highest + 1))
    if highest >= len(classes):
        raise DataError(f"{name}: label {highest} has no class name; there are {len(classes)} classes.")
    if odd := [each for each in classes if not is_text(each)]:
        raise DataError(f"{name}: a class is named {odd[0]!a}, which is no text that a file can hold.")
    data = ImageSet(name, classes, train, test, validation)
    if training:
        check(data)
    return data


def _images(pixels: Any, labels: Any, where: str) -> Images:
    pixels = np.asarray(pixels)
    if labels is None:
        raise DataError(f"{where} have no labels. Give one label an image, -1 for an unlabelled one.")
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:  # MedMNIST stores a column
        labels = labels[:, 0]
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or 0 in pixels.shape[1:]:
        raise DataError(f"{where} have shape {pixels.shape}; wanted is (N, H, W) or (N, H, W, C) with C of 1 or 3.")
    if labels.shape != (len(pixels),):
        raise DataError(f"{where}: {len(pixels)} images but labels of shape {labels.shape}; wanted is one an image.")
    if np.issubdtype(pixels.dtype, np.floating):
        if not (np.isfinite(pixels).all() and pixels.min(initial=0) >= 0 and pixels.max(initial=0) <= 1):
            raise DataError(f"{where} are floating-point numbers outside [0, 1]. Rescale them, or give uint8.")
        pixels = np.round(pixels * 255).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        raise DataError(f"{where} are of type {pixels.dtype}; wanted is uint8, or floating point in [0, 1].")
    if labels.dtype.kind not in "iuf" or not (labels == np.round(labels)).all():
        raise DataError(f"{where}: labels are not whole numbers. Number the classes from 0; -1 means unlabelled.")
    if labels.max(initial=0) >= MOST_CLASSES:
        raise DataError(
            f"{where}: label {labels.max():.15g} is too high. Number the classes from 0; {MOST_CLASSES:,} are the most."
        )
    labels = labels.astype(np.int64)
    if labels.min(initial=0) < UNLABELED:
        raise DataError(f"{where}: label {labels.min()} is negative; -1 means unlabelled, others start at 0.")
    return Images(np.ascontiguousarray(pixels), labels)


def conflicts(images: Iterable[tuple[bytes, str, str]]) -> list[str]:
    """A note where a picture has different labels; pictures are given as a digest, what they are called, and a label.

    >>> conflicts([(b"1", "a.png", "cat"), (b"1", "b.png", "dog"), (b"2", "c.png", "cat")])
    ['Warning: 1 image has different labels, so at least one is wrong: a.png (cat), b.png (dog). See ebpl inspect']
    """
    found: dict[bytes, dict[str, str]] = {}
    for digest, name, label in images:
        if label:
            found.setdefault(digest, {}).setdefault(label, name)
    several = [labels for labels in found.values() if len(labels) > 1]
    if not several:
        return []
    first = ", ".join(f"{name} ({label})" for label, name in list(several[0].items())[:3])
    what = f"{len(several)} images have" if len(several) > 1 else "1 image has"
    instance = "for instance " if len(several) > 1 else ""
    return [f"Warning: {what} different labels, so at least one is wrong: {instance}{first}. See ebpl inspect"]


def in_training(count: int, of: int, what: str, result: str = "this is") -> list[str]:
    """A note where so many of the images to measure on, which are called `what`, were trained on.

    >>> in_training(0, 9, "the 9 test images"), in_training(1, 9, "the 9 test images")
    ([], ['Warning: 1 of the 9 test images was in the training data, so this is not a measure of new images alone'])
    """
    if not count:
        return []
    were, alone = "was" if count == 1 else "were", " alone" if count < of else ""
    return [f"Warning: {count} of {what} {were} in the training data, so {result} not a measure of new images{alone}"]


def check(data: ImageSet) -> None:
    """Raise where no classifier can be trained: no images, no labels, one class, a class without a label."""
    if len(data.train) == 0:
        raise DataError(f"{data.name}: there are no training images.")
    counts = np.bincount(data.train.labels[data.train.labeled], minlength=len(data.classes))
    if counts.sum() == 0:
        raise DataError(f"{data.name}: no image has a label. Label a few of each class first.")
    if len(data.classes) < 2:
        raise DataError(
            f"{data.name}: all labels are of one class ({', '.join(data.classes)}). A classifier needs at least two."
        )
    empty = [name for name, count in zip(data.classes, counts, strict=True) if count == 0]
    if empty:
        raise DataError(f"{data.name}: no labelled training image of class {some_of(empty, 10)}.")
