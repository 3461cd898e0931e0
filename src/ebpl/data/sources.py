"""The user's own data: a folder of class folders, a CSV, or an .npz with MedMNIST's keys."""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.images import UNLABELED, Images, ImageSet, from_arrays
from ebpl.errors import DataError

log = logging.getLogger("ebpl")

IMAGE_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
UNLABELED_FOLDERS = frozenset({"unlabeled", "unlabelled"})
PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}
LARGEST_KEPT = 64
RESIZED = 32

Listing = dict[str, list[tuple[Path, str]]]
"""For train, validation and test: image files with their class name, '' where unlabelled."""


def from_folder(root: Path, image_size: int | None = None) -> ImageSet:
    """Images in `root/<class>/` and `root/unlabeled/`, or in such folders below `root/train`, `/test` and `/val`."""
    folders = _folders(root)
    if any(folder.name == "train" for folder in folders):
        listing: Listing = {}
        for folder in folders:
            if folder.name in PARTS:
                listing.setdefault(PARTS[folder.name], []).extend(_class_folders(folder))
    else:
        listing = {"train": _class_folders(root)}
    if not any(listing.values()):
        raise DataError(
            f"{root} holds no images. Wanted are class folders with images ({', '.join(sorted(IMAGE_ENDINGS))}) and, "
            f"for images without a label, {root / 'unlabeled'}."
        )
    return _read(root.resolve().name, root, listing, image_size)


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_folders(root: Path) -> list[tuple[Path, str]]:
    found = []
    for folder in _folders(root):
        label = "" if folder.name.lower() in UNLABELED_FOLDERS else folder.name
        for parent, inner, names in os.walk(folder):  # does not follow links to folders, so no loops
            inner.sort()
            found += [(Path(parent) / name, label) for name in sorted(names) if _is_image(name)]
    return found


def _is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_ENDINGS


def from_csv(path: Path, image_size: int | None = None) -> ImageSet:
    """Images named in a CSV with the columns image and label (empty = unlabelled), optionally split (train, val, test).

    Image paths are relative to the CSV.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [{(k or "").strip().lower(): v for k, v in row.items()} for row in reader]
            columns = {(name or "").strip().lower() for name in reader.fieldnames or ()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV in UTF-8: {error}.") from error
    missing = {"image", "label"} - columns
    if missing:
        raise DataError(f"{path} has no column {' and '.join(sorted(missing))}; its header must name image and label.")
    listing: Listing = {}
    absent = []
    for line, row in enumerate(rows, start=2):
        name = (row["image"] or "").strip()
        file_path = path.parent / name
        if not name or not file_path.is_file():
            absent.append(f"line {line}: {name or '(empty)'}")
            continue
        part = (row.get("split") or "train").strip().lower()
        if part not in PARTS:
            raise DataError(f"{path}, line {line}: split is {part!r}; wanted is train, val or test.")
        listing.setdefault(PARTS[part], []).append((file_path, (row["label"] or "").strip()))
    if absent:
        raise DataError(_several(f"{path} names images that do not exist (relative to {path.parent})", absent))
    if not listing.get("train"):
        raise DataError(f"{path} lists no training images.")
    return _read(path.stem, path.parent, listing, image_size)


def from_npz(path: Path) -> ImageSet:
    """Arrays under MedMNIST's keys: train_images, train_labels (-1 = unlabelled) and, if there, test_ and val_ ones."""
    arrays = read_arrays(path)
    missing = {"train_images", "train_labels"} - arrays.keys()
    if missing:
        raise DataError(
            f"{path} has no {' and '.join(sorted(missing))}; wanted are MedMNIST's keys train_images, train_labels "
            f"and, optionally, test_images and test_labels. It holds: {', '.join(sorted(arrays)) or 'nothing'}."
        )
    return from_arrays(
        arrays["train_images"],
        arrays["train_labels"],
        test_images=arrays.get("test_images"),
        test_labels=arrays.get("test_labels"),
        validation_images=arrays.get("val_images"),
        validation_labels=arrays.get("val_labels"),
        name=path.stem,
        training=False,
    )


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz; nothing in it is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except Exception as error:
        raise DataError(f"{path} is not a readable .npz file: {error}.") from error


def _read(name: str, root: Path, listing: Listing, image_size: int | None) -> ImageSet:
    """Read all listed images at one size and in one mode; every unreadable one is named in one error."""
    files = [path for part in listing.values() for path, _ in part]
    sizes, gray = _inspect(files)
    size = _common_size(sizes, image_size)
    if {size} != sizes:
        log.info("images of %d sizes are resized to %d x %d", len(sizes), *size)
    labels = sorted({label for part in listing.values() for _, label in part if label})
    number = {label: index for index, label in enumerate(labels)} | {"": UNLABELED}
    parts = {}
    for part, entries in listing.items():
        if not entries:
            continue
        pixels = np.stack([_pixels(path, size, gray) for path, _ in entries])
        paths = tuple(_relative(path, root) for path, _ in entries)
        parts[part] = Images(pixels, np.array([number[label] for _, label in entries], np.int64), paths)
    if "train" not in parts:
        raise DataError(f"{root} holds no training images.")
    return ImageSet(name, tuple(labels), parts["train"], parts.get("test"), parts.get("validation"))


def _relative(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.as_posix()


def _inspect(files: Sequence[Path]) -> tuple[set[tuple[int, int]], bool]:
    """Sizes (height, width) of all images, and whether all are gray; a full decode finds truncated ones too."""
    from PIL import Image

    sizes, gray, broken = set(), True, []
    for path in files:
        try:
            with Image.open(path) as image:
                image.load()
                sizes.add((image.height, image.width))
                gray = gray and image.mode in ("1", "L", "I", "F", "I;16", "LA")
        except Exception as error:
            broken.append(f"{path}: {_reason(path, error)}")
    if broken:
        raise DataError(
            _several("These images cannot be read; repair them, or take them out of the folder or list", broken)
        )
    return sizes, gray


def _reason(path: Path, error: Exception) -> str:
    if path.stat().st_size == 0:
        return "the file is empty"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "not an image" if "cannot identify" in text else text


def _common_size(sizes: Iterable[tuple[int, int]], image_size: int | None) -> tuple[int, int]:
    """The asked-for size, else the images' own where all agree and it is small, else 32 x 32."""
    if image_size is not None:
        return image_size, image_size
    sizes = set(sizes)
    if len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_KEPT:
        return next(iter(sizes))
    return RESIZED, RESIZED


def _pixels(path: Path, size: tuple[int, int], gray: bool) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(path) as image:
        wide = image.mode in ("I", "F", "I;16")
        if wide:  # 16-bit or floating point: PIL would clip at 255, so the image's own range is used
            values = np.asarray(image, dtype=np.float64)
            span = values.max() - values.min()
            values = (values - values.min()) / (span or 1)
            image = Image.fromarray(np.round(values * 255).astype(np.uint8))  # type: ignore[assignment]
        converted = image.convert("L" if gray else "RGB")
        if converted.size != (size[1], size[0]):
            converted = converted.resize((size[1], size[0]), Image.Resampling.BOX)
        pixels = np.asarray(converted, dtype=np.uint8)
    return pixels[..., None] if gray else pixels


def _several(what: str, items: list[str], shown: int = 10) -> str:
    """An error that lists the first few of what is wrong and counts the rest."""
    more = f"\n  ... and {len(items) - shown} more" if len(items) > shown else ""
    return what + ":\n  " + "\n  ".join(items[:shown]) + more
