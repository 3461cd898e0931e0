"""Official file formats, on small files made in their layout."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from ebpl.data.formats import read_cifar, read_idx, read_svhn
from ebpl.errors import DataError
from tests.helpers import random_images as images


def cifar_batch(count: int, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": pixels, b"labels": random.integers(0, 10, count).tolist()}, protocol=2)


def write_cifar(folder: Path, packed: bool) -> None:
    batches = {f"data_batch_{i}": cifar_batch(4, i) for i in range(1, 6)} | {"test_batch": cifar_batch(3, 9)}
    if packed:
        with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
            for name, raw in batches.items():
                member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                member.size = len(raw)
                tar.addfile(member, io.BytesIO(raw))
    else:
        (folder / "cifar-10-batches-py").mkdir()
        for name, raw in batches.items():
            (folder / "cifar-10-batches-py" / name).write_bytes(raw)


@pytest.mark.parametrize("packed", [True, False])
def test_cifar_batches_packed_or_not(tmp_path: Path, packed: bool) -> None:
    write_cifar(tmp_path, packed)
    arrays = read_cifar(tmp_path)
    assert arrays["train_images"].shape == (20, 32, 32, 3)
    assert arrays["test_labels"].shape == (3,)
    stored = pickle.loads(cifar_batch(4, 1), encoding="bytes")  # noqa: S301 - made two lines above
    red_first_row = stored[b"data"][0, :32]
    assert np.array_equal(arrays["train_images"][0, 0, :, 0], red_first_row)


def test_a_cifar_batch_cannot_run_code(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'harmed'}",))

    write_cifar(tmp_path, packed=False)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(DataError, match="damaged: it holds"):
        read_cifar(tmp_path)
    assert not (tmp_path / "harmed").exists()


def test_a_crafted_array_cannot_reach_into_memory(tmp_path: Path) -> None:
    # raw bytes declared as an array of Python objects: NumPy's own unpickling would follow them as addresses
    class Crafted:
        def __reduce__(self):
            dtype = np.dtype([("a", "O")])
            return (np.zeros(0).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, (4,), dtype, False, b"\xff" * 32))

    raw = pickle.dumps({b"data": Crafted(), b"labels": [0]}, protocol=2)
    write_cifar(tmp_path, packed=False)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        read_cifar(tmp_path)


def test_svhn_matlab_files_with_zero_as_ten(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("test", 2)):
        pixels = images(count, 32, 32, 3).transpose(1, 2, 3, 0)
        scipy.io.savemat(
            tmp_path / f"{part}_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [2], [9], [10]])[:count]}
        )
    arrays = read_svhn(tmp_path)
    assert np.array_equal(arrays["train_images"], images(5, 32, 32, 3))
    assert arrays["train_labels"].tolist() == [0, 1, 2, 9, 0]
    (tmp_path / "test_32x32.mat").write_text("damaged")
    with pytest.raises(DataError, match=r"test_32x32\.mat is damaged"):
        read_svhn(tmp_path)


def test_idx_files(tmp_path: Path) -> None:
    pixels = images(3, 28, 28)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(struct.pack(">BBBBiii", 0, 0, 8, 3, 3, 28, 28) + pixels.tobytes()))
    assert np.array_equal(read_idx(path), pixels)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match="damaged"):
        read_idx(path)
