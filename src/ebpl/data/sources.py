"""The user's own data: a folder of class folders, a CSV, or an .npz with MedMNIST's keys.

Whoever writes a CSV may name images anywhere, by absolute paths or with `..`: they are read, and nothing is written
beside them.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.files import IMAGE_ENDINGS, image_files, is_image
from ebpl.data.images import ImageSet, from_arrays
from ebpl.data.reading import Absent, Listed, Listing, read
from ebpl.errors import DataError

UNLABELED_FOLDERS = frozenset({"unlabeled", "unlabelled"})
PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}


def from_folder(root: Path, image_size: int | None = None, *, skip_unreadable: bool = False) -> ImageSet:
    """Images in `root/<class>/` and `root/unlabeled/`, or in such folders below `root/train`, `/test` and `/val`."""
    return read(list_folder(root), image_size, skip_unreadable)


def from_csv(path: Path, image_size: int | None = None, *, skip_unreadable: bool = False) -> ImageSet:
    """Images named in a CSV with the columns image and label (empty = unlabelled), optionally split (train, val, test).

    Image paths are relative to the CSV.
    """
    return read(list_csv(path), image_size, skip_unreadable)


def list_folder(root: Path) -> Listed:
    """The image files of a folder, with their labels."""
    folders = _folders(root)
    if any(folder.name.lower() == "train" and _folders(folder) for folder in folders):
        parts = _split_folders(root, folders)
    else:
        parts = {"train": _class_folders(folders)}
    loose = sum(is_image(entry.name) for entry in root.iterdir())
    if not any(parts.values()):
        found = f"{loose} images, but no class folders" if loose else "no images"
        raise DataError(
            f"{root} holds {found}. Wanted are class folders with images ({', '.join(sorted(IMAGE_ENDINGS))}) and, "
            f"for images without a label, {root / 'unlabeled'}."
        )
    notes = (f"{loose} images beside the folders are left out; unlabelled ones belong in unlabeled/",) if loose else ()
    return Listed(root.resolve().name, root, parts, notes)


def _folders(root: Path) -> list[Path]:
    """Folders that may hold images: not hidden ones, and not where runs are kept."""
    return sorted(e for e in root.iterdir() if e.is_dir() and not e.name.startswith(".") and not _holds_runs(e))


def _holds_runs(folder: Path) -> bool:
    marks = ("settings.toml", "*/settings.toml", "demo-*/*/settings.toml")
    return any(next(folder.glob(mark), None) for mark in marks)


def _split_folders(root: Path, folders: list[Path]) -> Listing:
    """`train`, `test` and `val` with class folders each, and perhaps `unlabeled` beside them."""
    parts: Listing = {}
    for folder in folders:
        name = folder.name.lower()
        if name in UNLABELED_FOLDERS:
            parts.setdefault("train", []).extend(_class_folders([folder]))
        elif name in PARTS:
            parts.setdefault(PARTS[name], []).extend(_class_folders(_folders(folder)))
        else:
            raise DataError(
                f"{root} has a folder train, so {folder.name} beside it is no class. Move it into {root / 'train'}, or "
                "away."
            )
    return parts


def _class_folders(folders: list[Path]) -> list[tuple[Path, str]]:
    found = []
    for folder in folders:
        label = "" if folder.name.lower() in UNLABELED_FOLDERS else folder.name
        if label:
            _check_class_folder(folder)
        inside = [(path, label) for path in image_files(folder)]
        if label and not inside:
            raise DataError(f"{folder} holds no image that can be read ({', '.join(sorted(IMAGE_ENDINGS))}).")
        found += inside
    return found


def _check_class_folder(folder: Path) -> None:
    """Refuse what is surely no class: a misspelt `unlabeled`, a link in a circle, a folder with classes of its own."""
    if difflib.get_close_matches(folder.name.lower(), UNLABELED_FOLDERS, cutoff=0.8):
        raise DataError(f"{folder} would be a class. Did you mean {folder.with_name('unlabeled')}?")
    if folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder} would be a class, but is a link to {folder.resolve()}, which it lies in. Remove it.")
    special = [e.name for e in _folders(folder) if e.name.lower() in UNLABELED_FOLDERS or e.name.lower() == "train"]
    if special:
        raise DataError(f"{folder} would be a class, but holds {special[0]}: give that folder itself as the data.")


def list_csv(path: Path) -> Listed:
    """The image files that a CSV names, with their labels."""
    parts: Listing = {}
    absent = []
    for line, row in _csv_rows(path):
        name = (row["image"] or "").strip()
        file_path = path.parent / name
        label = (row["label"] or "").strip()
        if not name or not _exists(file_path):
            absent.append(Absent(f"line {line}: {name or '(empty)'}", label))
            continue
        part = (row.get("split") or "train").strip().lower()
        if part not in PARTS:
            raise DataError(f"{path}, line {line}: split is {part!r}; wanted is train, val or test.")
        parts.setdefault(PARTS[part], []).append((file_path, label))
    if not parts and not absent:
        raise DataError(f"{path} lists no images.")
    return Listed(path.stem, path.parent, parts, absent=tuple(absent), listing=path)


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines of a CSV with their numbers, by the names of its columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = {(name or "").strip().lower() for name in reader.fieldnames or ()}
            missing = {"image", "label"} - columns
            if missing:
                found = f"It names: {', '.join(sorted(columns))}" if columns else "It is empty"
                raise DataError(
                    f"{path} has no column {' and '.join(sorted(missing))}; its first line must name image and label, "
                    f"separated by a comma. {found}."
                )
            for row in reader:
                yield reader.line_num, {(k or "").strip().lower(): v for k, v in row.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV in UTF-8: {error}.") from error


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
            arrays[f"{part}_images"] = resized(arrays[f"{part}_images"], (image_size, image_size))
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


def resized(images: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Arrays of uint8 images at another size; what is no such array is left for `from_arrays` to refuse."""
    from PIL import Image

    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[1:3] == size:
        return images
    flat = images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images
    made = np.zeros((len(images), *size, *images.shape[3:]), np.uint8)
    for target, image in zip(made, flat, strict=True):
        small = Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BOX)
        target[...] = np.asarray(small).reshape(target.shape)
    return made


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz; nothing in it is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except Exception as error:
        raise DataError(f"{path} is not a readable .npz file: {error}.") from error
