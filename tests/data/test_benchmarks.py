"""Official file formats, on small files made in their layout; the real ones where the machine has them."""

import dataclasses
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

from ebpl.data import benchmarks
from ebpl.data.benchmarks import BENCHMARKS, DEBIAN_FASHION, load_benchmark, read_cifar, read_idx, read_svhn
from ebpl.errors import DataError

PAPER_LABELS = {"cifar10": 350, "svhn": 510, "fashion": 420, "blood": 80, "organa": 352, "organc": 132, "organs": 143}


def images(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def test_labels_per_class_make_the_papers_totals() -> None:
    assert {name: b.labels_per_class * len(b.classes) for name, b in BENCHMARKS.items()} == PAPER_LABELS


def test_every_official_file_has_a_source_and_a_check_sum() -> None:
    for benchmark in BENCHMARKS.values():
        for remote in benchmark.files:
            assert remote.url.startswith("http")
            assert len(remote.md5) == 32


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


@pytest.fixture
def small_organs(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """OrganS-MNIST as if it had 44 training and 11 test images, in the official layout."""
    small = dataclasses.replace(BENCHMARKS["organs"], train_images=44, test_images=11)
    monkeypatch.setitem(benchmarks.BENCHMARKS, "organs", small)
    arrays = {}
    for part, count in (("train", 44), ("val", 11), ("test", 11)):
        arrays[f"{part}_images"] = images(count, 28, 28)
        arrays[f"{part}_labels"] = (np.arange(count, dtype=np.uint8) % 11)[:, None]
    return arrays


def test_medmnist_is_found_in_every_folder_it_may_be_in(small_organs, tmp_path: Path, monkeypatch) -> None:
    for number, place in enumerate(("given", "variable", "cache")):
        folder = tmp_path / f"data{number}" / ("ebpl" if place == "cache" else "")
        folder.mkdir(parents=True)
        np.savez(folder / "organsmnist.npz", **small_organs)
        monkeypatch.setenv("EBPL_DATA", str(folder) if place == "variable" else str(tmp_path / "none"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent if place == "cache" else tmp_path / "none"))
        data = load_benchmark("organs", folder if place == "given" else None, download=False)
        assert data.labels_per_class == 13
        assert data.classes[0] == "bladder"
        assert data.train.labels[:11].tolist() == list(range(11))
        assert data.validation is None  # the paper's protocol makes its own


def test_a_part_of_a_benchmark_does_not_pass_for_the_whole(small_organs, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.undo()
    np.savez(tmp_path / "organsmnist.npz", **small_organs)
    with pytest.raises(DataError, match=r"has 44 training and 11 test images; the benchmark has 13932 and 8827"):
        load_benchmark("organs", tmp_path, download=False)


def test_without_a_file_the_error_says_which_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        load_benchmark("svhn", tmp_path / "data", download=False)
    message = str(raised.value)
    assert str(tmp_path / "data" / "train_32x32.mat") in message
    assert "http://ufldl.stanford.edu/housenumbers/train_32x32.mat" in message
    assert "EBPL_DATA" in message


def test_an_npz_without_the_keys_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bloodmnist.npz", train_images=images(2, 28, 28, 3))
    with pytest.raises(DataError, match="has no train_labels"):
        load_benchmark("blood", tmp_path, download=False)


def test_digits_come_with_scikit_learn() -> None:
    data = load_benchmark("digits")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (1200, 597)
    assert data.train.pixels.max() == 255
    joined = np.concatenate([data.train.pixels, data.test.pixels])
    assert len(joined) == 1797


@pytest.mark.skipif(not DEBIAN_FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_from_debians_package() -> None:
    data = load_benchmark("fashion", download=False)
    assert (len(data.train), data.shape) == (60_000, (1, 28, 28))
    assert np.bincount(data.train.labels).tolist() == [6000] * 10
