"""The user's own data: a folder of class folders, a CSV, or an .npz with MedMNIST's keys."""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.images import UNLABELED, Images, ImageSet, from_arrays
from ebpl.errors import DataError

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
    if any(folder.name.lower() == "train" and _folders(folder) for folder in folders):
        listing = _split_folders(root, folders)
    else:
        listing = {"train": _class_folders(folders)}
    loose = sum(is_image(entry.name) for entry in root.iterdir())
    if not any(listing.values()):
        found = f"{loose} images, but no class folders" if loose else "no images"
        raise DataError(
            f"{root} holds {found}. Wanted are class folders with images ({', '.join(sorted(IMAGE_ENDINGS))}) and, "
            f"for images without a label, {root / 'unlabeled'}."
        )
    notes = [f"{loose} images beside the folders are left out; unlabelled ones belong in unlabeled/"] if loose else []
    return _read(root.resolve().name, root, listing, image_size, notes)


def _folders(root: Path) -> list[Path]:
    """Folders that may hold images: not hidden ones, and not where runs are kept."""
    return sorted(e for e in root.iterdir() if e.is_dir() and not e.name.startswith(".") and not _holds_runs(e))


def _holds_runs(folder: Path) -> bool:
    marks = ("settings.toml", "*/settings.toml", "demo-*/*/settings.toml")
    return any(next(folder.glob(mark), None) for mark in marks)


def _split_folders(root: Path, folders: list[Path]) -> Listing:
    """`train`, `test` and `val` with class folders each, and perhaps `unlabeled` beside them."""
    listing: Listing = {}
    for folder in folders:
        name = folder.name.lower()
        if name in UNLABELED_FOLDERS:
            listing.setdefault("train", []).extend(_class_folders([folder]))
        elif name in PARTS:
            listing.setdefault(PARTS[name], []).extend(_class_folders(_folders(folder)))
        else:
            raise DataError(
                f"{root} has a folder train, so {folder.name} beside it is no class. Move it into {root / 'train'}, or "
                "away."
            )
    return listing


def _class_folders(folders: list[Path]) -> list[tuple[Path, str]]:
    found = []
    for folder in folders:
        label = "" if folder.name.lower() in UNLABELED_FOLDERS else folder.name
        if label:
            _check_class_folder(folder)
        inside = []
        for parent, inner, names in os.walk(folder):  # does not follow links to folders, so no loops
            inner.sort()
            inside += [(Path(parent) / name, label) for name in sorted(names) if is_image(name)]
        if label and not inside:
            raise DataError(f"{folder} holds no image that can be read ({', '.join(sorted(IMAGE_ENDINGS))}).")
        found += inside
    return found


def _check_class_folder(folder: Path) -> None:
    """Refuse what is surely no class: a misspelt `unlabeled`, and a folder that holds classes of its own."""
    if difflib.get_close_matches(folder.name.lower(), UNLABELED_FOLDERS, cutoff=0.8):
        raise DataError(f"{folder} would be a class. Did you mean {folder.with_name('unlabeled')}?")
    special = [e.name for e in _folders(folder) if e.name.lower() in UNLABELED_FOLDERS or e.name.lower() == "train"]
    if special:
        raise DataError(f"{folder} would be a class, but holds {special[0]}: give that folder itself as the data.")


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image."""
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
        found = f"It names: {', '.join(sorted(columns))}" if columns else "It is empty"
        raise DataError(
            f"{path} has no column {' and '.join(sorted(missing))}; its first line must name image and label, "
            f"separated by a comma. {found}."
        )
    listing: Listing = {}
    absent = []
    for line, row in enumerate(rows, start=2):
        name = (row["image"] or "").strip()
        file_path = path.parent / name
        if not name or not _exists(file_path):
            absent.append(f"line {line}: {name or '(empty)'}")
            continue
        part = (row.get("split") or "train").strip().lower()
        if part not in PARTS:
            raise DataError(f"{path}, line {line}: split is {part!r}; wanted is train, val or test.")
        listing.setdefault(PARTS[part], []).append((file_path, (row["label"] or "").strip()))
    if absent:
        raise DataError(_several(f"{path} names images that do not exist (relative to {path.parent})", absent))
    if not any(listing.values()):
        raise DataError(f"{path} lists no images.")
    return _read(path.stem, path.parent, listing, image_size)


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than any file's can be
        return False


def from_npz(path: Path, image_size: int | None = None) -> ImageSet:
    """Arrays under MedMNIST's keys: train_images, train_labels (-1 = unlabelled) and, if there, test_ and val_ ones."""
    arrays = read_arrays(path)
    for part in ("train", "test", "val"):
        if f"{part}_images" in arrays and image_size is not None:
            arrays[f"{part}_images"] = _resized(arrays[f"{part}_images"], image_size)
    if "train_images" not in arrays and "test_images" in arrays:  # good to measure on, though not to train on
        arrays["train_images"], arrays["train_labels"] = arrays["test_images"][:0], np.zeros(0, np.int64)
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


def _resized(images: NDArray[Any], size: int) -> NDArray[Any]:
    """Arrays of uint8 images at another size; what is no such array is left for `from_arrays` to refuse."""
    from PIL import Image

    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[1:3] == (size, size):
        return images
    flat = images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images
    resized = np.zeros((len(flat), size, size, *flat.shape[3:]), np.uint8)
    for target, image in zip(resized, flat, strict=True):
        target[...] = Image.fromarray(image).resize((size, size), Image.Resampling.BOX)
    return resized


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz; nothing in it is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except Exception as error:
        raise DataError(f"{path} is not a readable .npz file: {error}.") from error


def _read(name: str, root: Path, listing: Listing, image_size: int | None, notes: Sequence[str] = ()) -> ImageSet:
    """Read all listed images at one size and in one mode; every unreadable one is named in one error."""
    files = [path for part in listing.values() for path, _ in part]
    sizes, gray, deep = _inspect(files)
    size = _common_size(sizes, image_size)
    if deep:
        notes = [*notes, f"{deep} images of more than 8 bits are stretched, each to its own range"]
    if sizes != {size}:
        notes = [*notes, _resize_note(sizes, size)]
    labels = sorted({label for part in listing.values() for _, label in part if label})
    number = {label: index for index, label in enumerate(labels)} | {"": UNLABELED}
    parts = {}
    for part, entries in listing.items():
        if not entries:
            continue
        pixels = np.stack([read_pixels(path, size, gray) for path, _ in entries])
        paths = tuple(_relative(path, root) for path, _ in entries)
        parts[part] = Images(pixels, np.array([number[label] for _, label in entries], np.int64), paths)
    if "train" not in parts:  # good to measure on, though not to train on
        parts["train"] = next(iter(parts.values())).take(np.zeros(0, np.int64))
    return ImageSet(name, tuple(labels), parts["train"], parts.get("test"), parts.get("validation"), notes=tuple(notes))


def _resize_note(sizes: set[tuple[int, int]], size: tuple[int, int]) -> str:
    if len(sizes) == 1:
        return "images of {} x {} pixels are resized to {} x {}".format(*next(iter(sizes)), *size)
    return f"images of {len(sizes)} different sizes are resized to {size[0]} x {size[1]}"


def _relative(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.as_posix()


def _inspect(files: Sequence[Path]) -> tuple[set[tuple[int, int]], bool, int]:
    """Sizes (height, width), whether all are gray, how many are deep; a full decode finds truncated images too."""
    from PIL import Image

    sizes, gray, deep, broken = set(), True, 0, []
    for path in files:
        if not is_text(str(path)):
            broken.append(f"{str(path)!a}: its name is not valid UTF-8; rename it")
            continue
        try:
            with Image.open(path) as image:
                image.load()
                sizes.add((image.height, image.width))
                deep += _is_deep(image.mode)
                gray = gray and (image.mode in ("1", "L", "LA") or _is_deep(image.mode))
        except Exception as error:
            broken.append(f"{path}: {unreadable(path, error)}")
    if broken:
        raise DataError(
            _several("These images cannot be read; repair them, or take them out of the folder or list", broken)
        )
    return sizes, gray, deep


def is_text(name: str) -> bool:
    """Whether a file's name can be written into a text file; names from old archives may not."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_deep(mode: str) -> bool:
    """Whether a gray image has more than eight bits."""
    return mode in ("I", "F") or mode.startswith("I;16")


def unreadable(path: Path, error: Exception) -> str:
    """Why an image cannot be read, in words."""
    if not path.exists():
        return "the link leads nowhere"
    if path.stat().st_size == 0:
        return "the file is empty"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "not an image" if "cannot identify" in text else text


def _common_size(sizes: set[tuple[int, int]], image_size: int | None) -> tuple[int, int]:
    """The asked-for size, else the images' own where all agree and it is small, else 32 x 32."""
    if image_size is not None:
        return image_size, image_size
    if len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_KEPT:
        return next(iter(sizes))
    return RESIZED, RESIZED


def read_pixels(path: Path, size: tuple[int, int], gray: bool) -> NDArray[np.uint8]:
    """An image file as bytes (H, W, C) of this height and width."""
    from PIL import Image

    with Image.open(path) as image:
        if _is_deep(image.mode):  # 16-bit or floating point: PIL would clip at 255, so the image's own range is used
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
