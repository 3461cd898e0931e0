"""Tables as spreadsheets write them, and arrays in files: .npz with MedMNIST's keys, and those of benchmarks."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import pickle
import re
import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ebpl.data.dataset import ImageSet, conflicts, from_arrays
from ebpl.errors import DataError
from ebpl.io import plain_cell

Arrays = dict[str, NDArray[Any]]

CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


NO_LABEL = frozenset({"", "nan", "none", "null", "na", "n/a", "<na>", "unlabeled", "unlabelled"})
"""What people and programs write, in any case, where there is no label."""
SEPARATORS = ",;\t"
LONGEST_CELL = 64 * 2**20
"""A task exported by Label Studio may hold its image; Python's own limit is 128 KiB."""


def text_of(path: Path) -> str:
    """A text file; a pipe, which would be waited for, and what is not UTF-8 is an error."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it is not a file")
        if path.stat().st_size > LARGEST_TABLE:
            raise OSError("it is too large")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a CSV in UTF-8: {error}. Save it as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_table(path: Path, text: str, *wanted: Collection[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV with their line numbers, by the names of its columns in lower case and without spaces around.

    Columns are separated by commas, semicolons or tabs. Of each of the `wanted` names at least one must be there; a row
    may have fewer cells than the first. Where labels are wanted, a table of predictions is an error.
    """
    skipped = 0
    if found := re.match(r"sep=(.)\r?\n", text):  # what Excel writes for itself
        text, skipped = text[found.end() :], 1
    lines = text.lstrip("\r\n")
    head = re.split(r"[\r\n]", lines, maxsplit=1)[0]
    fits = [each for each in SEPARATORS if _has(next(csv.reader([head], delimiter=each), []), wanted)]
    limit = csv.field_size_limit(LONGEST_CELL)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=fits[0] if fits else ",")
        names = [name.strip().lower() for name in next((row for row in rows if row), [])]
        if not fits:
            missing = " and ".join(next(iter(each)) for each in wanted if not set(each) & set(names))
            known = f"It names: {', '.join(name[:40] for name in names[:20])}" if any(names) else "It is empty"
            needed = " and ".join(next(iter(each)) for each in wanted)
            raise DataError(
                f"{path} has no column {missing}; its first line must name {needed}, separated by a comma, a semicolon "
                f"or a tab. {known}."
            )
        if any("label" in each for each in wanted) and _are_predictions(names):
            raise predictions_for_labels(path)
        for row in rows:
            if any(cell.strip() for cell in row[len(names) :]):
                raise DataError(
                    f"{path}, line {rows.line_num + skipped} has {len(row)} cells, but the first line names "
                    f"{len(names)}. Put text with a separator in it between quotes."
                )
            if row:
                yield (
                    rows.line_num + skipped,
                    dict(zip(names, (plain_cell(cell.strip()) for cell in row), strict=False)),
                )
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV: {error}.") from error
    finally:
        csv.field_size_limit(limit)


def read_costs(path: Path, classes: Sequence[str]) -> NDArray[np.float64]:
    """Costs by true class (rows) and decision (columns), in the order of the classes, from a CSV that names both."""
    text = text_of(path)
    try:
        tables = [list(csv.reader(io.StringIO(text, newline=""), delimiter=separator)) for separator in SEPARATORS]
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV: {error}.") from error
    cells = [[[plain_cell(cell.strip()) for cell in row] for row in table if any(row)] for table in tables]
    rows = next((table for table in cells if table and sorted(table[0][1:]) == sorted(classes)), None)
    if rows is None or sorted(row[0] for row in rows[1:]) != sorted(classes):
        raise DataError(
            f"{path} is no table of costs for this model. Its first line and its first column must each name every "
            f"class once, after one cell for the corner: {', '.join(classes)}."
        )
    found = np.zeros((len(classes), len(classes)))
    for row in rows[1:]:
        for decision, cost in zip(rows[0][1:], [*row[1:], *[""] * len(classes)], strict=False):
            try:
                found[classes.index(row[0]), classes.index(decision)] = float(cost)
            except ValueError:
                raise DataError(
                    f"{path}: the cost of deciding {decision} for {row[0]} is {cost!r}, no number."
                ) from None
    if not np.isfinite(found).all():
        raise DataError(f"{path} holds a cost that is not finite.")
    return found


def predictions_for_labels(path: Path) -> DataError:
    """The error for a table of predictions where labels are wanted."""
    return DataError(
        f"{path} holds a model's predictions, which are no labels. Fill in the sheet of `ebpl suggest`; or, if a "
        "person has checked each label, delete the column confidence."
    )


def _are_predictions(names: Collection[str]) -> bool:
    """Whether these columns are those that `ebpl predict` writes; in the sheet of `ebpl suggest`, people label."""
    found = "energy" in names or any(re.fullmatch(r"p\(.*\)", name) for name in names)
    return found and "confidence" in names and "guess" not in names


def _has(names: list[str], wanted: tuple[Collection[str], ...]) -> bool:
    return all(any(name.strip().lower() in each for name in names) for each in wanted)


HIGHEST_RATIOS = ((4 * 2**30, 20), (2**26, 200))
"""Arrays of more than so many bytes may have been packed to one in so many; more is no image, but an attack."""
LARGEST_TABLE = 2**30


class _StoredArray:
    """What a pickled NumPy array becomes here: its bytes and shape, read without NumPy's own unpickling."""

    def __init__(self, *_: object) -> None:
        self.values = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, _, raw = state
        self.values = np.frombuffer(raw, np.uint8).reshape(shape)


class _StoredType:
    """What a pickled NumPy type becomes here: nothing, since only bytes are read."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


class _ArraysOnly(pickle.Unpickler):
    """Unpickles CIFAR-10's batches: dictionaries, numbers, strings and arrays of bytes, and nothing else whatever."""

    _KNOWN: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _StoredArray,
        ("numpy._core.multiarray", "_reconstruct"): _StoredArray,
        ("numpy", "ndarray"): _StoredArray,
        ("numpy", "dtype"): _StoredType,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which no CIFAR-10 batch does")
        return self._KNOWN[module, name]


def read_cifar(folder: Path) -> Arrays:
    """CIFAR-10's python batches, from the archive or unpacked."""
    archive = folder / "cifar-10-python.tar.gz"
    unpacked = folder / CIFAR_FOLDER

    def contents() -> dict[str, bytes]:
        wanted = [*CIFAR_BATCHES, "test_batch"]
        if (unpacked / "test_batch").is_file():
            return {name: (unpacked / name).read_bytes() for name in wanted}
        with tarfile.open(archive) as tar:
            found = {}
            for name in wanted:
                member = tar.extractfile(f"{CIFAR_FOLDER}/{name}")
                if member is None:
                    raise KeyError(name)
                found[name] = member.read()
            return found

    def batch(raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        stored = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
        images = stored[b"data"].values.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, np.asarray(stored[b"labels"], np.int64)

    try:
        raw = contents()
        train = [batch(raw[name]) for name in CIFAR_BATCHES]
        test = batch(raw["test_batch"])
    except Exception as error:
        raise DataError(
            f"The CIFAR-10 files in {folder} are damaged: {error}. Remove them to get them anew."
        ) from error
    return {
        "train_images": np.concatenate([images for images, _ in train]),
        "train_labels": np.concatenate([labels for _, labels in train]),
        "test_images": test[0],
        "test_labels": test[1],
    }


def read_svhn(folder: Path) -> Arrays:
    """SVHN's cropped digits in MATLAB's format, where label 10 is the digit 0."""
    from scipy.io import loadmat

    arrays = {}
    for part in ("train", "test"):
        path = folder / f"{part}_32x32.mat"
        try:
            stored = loadmat(path)
            arrays[f"{part}_images"] = stored["X"].transpose(3, 0, 1, 2)
            arrays[f"{part}_labels"] = stored["y"].ravel().astype(np.int64) % 10
        except Exception as error:
            raise DataError(f"{path} is damaged: {error}. Remove it to get it anew.") from error
    return arrays


def read_fashion(folder: Path) -> Arrays:
    """Fashion-MNIST's gzipped idx files."""
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        arrays[f"{part}_images"] = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
        arrays[f"{part}_labels"] = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
    return arrays


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes in LeCun's idx format, gzipped."""
    try:
        raw = gzip.decompress(path.read_bytes())
        if raw[:3] != b"\0\0\x08":
            raise ValueError("it does not begin as an idx file of bytes")
        shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy()
    except Exception as error:
        raise DataError(f"{path} is damaged: {error}. Remove it to get it anew.") from error


def from_npz(path: Path, image_size: int | None = None, *, skip_unreadable: bool = False) -> ImageSet:  # noqa: ARG001
    """Arrays under MedMNIST's keys: train_images, train_labels (-1 = unlabelled) and, if there, test_ and val_ ones."""
    arrays = read_arrays(path, [f"{part}_{what}" for part in ("train", "test", "val") for what in ("images", "labels")])
    for part in ("train", "test", "val"):
        if f"{part}_images" in arrays and image_size is not None:
            arrays[f"{part}_images"] = resized(arrays[f"{part}_images"], (image_size, image_size))
    if "train_images" not in arrays and "test_images" in arrays:  # good to measure on, though not to train on
        arrays["train_images"], arrays["train_labels"] = arrays["test_images"][:0], np.zeros(0, np.int64)
    missing = {"train_images", "train_labels"} - arrays.keys()
    if missing:
        held = ", ".join(array_names(path))
        raise DataError(
            f"{path} has no {' and '.join(sorted(missing))}; wanted are MedMNIST's keys train_images, train_labels "
            f"and, optionally, test_images and test_labels. It holds: {held[:300] or 'nothing'}."
        )
    data = from_arrays(
        arrays["train_images"],
        arrays["train_labels"],
        test_images=arrays.get("test_images"),
        test_labels=arrays.get("test_labels"),
        validation_images=arrays.get("val_images"),
        validation_labels=arrays.get("val_labels"),
        name=path.stem,
        training=False,
    )
    train = data.train.take(np.flatnonzero(data.train.labeled))
    labels = [data.classes[label] for label in train.labels.tolist()]
    numbers = [f"number {i}" for i in np.flatnonzero(data.train.labeled)]
    return replace(data, notes=tuple(conflicts(zip(train.digests(), numbers, labels, strict=True))))


def resized(images: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Arrays of uint8 images at another size; what is no such array is left for `from_arrays` to refuse."""
    from PIL import Image

    from ebpl.data.decode import resized_picture

    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[1:3] == size:
        return images
    flat = images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images
    made = np.zeros((len(images), *size, *images.shape[3:]), np.uint8)
    for target, image in zip(made, flat, strict=True):
        small = resized_picture(Image.fromarray(image), size)
        target[...] = np.asarray(small).reshape(target.shape)
    return made


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """The wanted arrays of an .npz, or all; nothing in it is unpickled, and none that is too large unpacked."""
    try:
        _check_sizes(path, wanted)
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files if wanted is None or key in wanted}
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} is not a readable .npz file: {str(error)[:300]}.") from error


def _check_sizes(path: Path, wanted: Collection[str] | None) -> None:
    """Refuse arrays that a small file can claim to hold, before any of it is unpacked."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is not a file")
    total = 0
    with zipfile.ZipFile(path) as packed:
        for member in packed.infolist():
            if wanted is None or member.filename.removesuffix(".npy") in wanted:
                total += member.file_size
                _check_header(packed, member)
    ratio = total / max(1, path.stat().st_size)
    limit = next((most for size, most in HIGHEST_RATIOS if total > size), ratio)
    if ratio > limit:
        raise DataError(
            f"{path} would take {total / 2**30:,.1f} GiB when unpacked, {ratio:,.0f} times its size; at most {limit} "
            "times is read. If the arrays are right, save them without compression (numpy.savez)."
        )


def _check_header(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Refuse an array whose header promises more than there is: room for it would be made before it is read."""
    with packed.open(member) as file:
        if np.lib.format.read_magic(file) == (1, 0):
            shape, _, kind = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, kind = np.lib.format.read_array_header_2_0(file)
    if math.prod(shape) * kind.itemsize > member.file_size:
        raise ValueError(f"{member.filename} promises an array of shape {str(shape)[:100]}, which it does not hold")


def array_names(path: Path) -> list[str]:
    """What the arrays of an .npz are called."""
    with np.load(path, allow_pickle=False) as stored:
        return sorted(stored.files)
