"""Arrays in files: .npz with MedMNIST's keys, CIFAR-10 batches, SVHN's MATLAB files, Fashion-MNIST's idx files."""

from __future__ import annotations

import codecs
import gzip
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.errors import DataError

Arrays = dict[str, NDArray[Any]]

CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


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
