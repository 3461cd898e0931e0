"""Official file formats, on small files made in their layout."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from ebpl.data import formats, load
from ebpl.data.formats import read_cifar, read_costs, read_idx, read_svhn, read_table
from ebpl.errors import DataError
from tests.helpers import class_folders
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


def save(**arrays: object) -> Path:
    np.savez_compressed("a.npz", **arrays)
    return Path("a.npz")


@pytest.mark.parametrize("label", [10**4, 10**7, 10**9, 2**63, 1e300, float("inf")])
def test_a_label_that_is_no_class_costs_no_memory_and_one_line(label: float) -> None:
    labels = np.array([0, 1, label], np.uint64 if label == 2**63 else None)
    with pytest.raises(DataError, match=r"too high\. Number the classes from 0; 10,000 are the most") as raised:
        load(save(train_images=np.zeros((3, 8, 8), np.uint8), train_labels=labels))
    assert len(str(raised.value)) < 200


def test_of_many_missing_classes_the_first_are_named() -> None:
    with pytest.raises(DataError, match="of class 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 9988 more") as raised:
        load(save(train_images=np.zeros((2, 8, 8), np.uint8), train_labels=[0, 9999]))
    assert len(str(raised.value)) < 200


def test_an_npz_that_unpacks_to_far_more_than_it_is_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(train_images=np.zeros((2000, 256, 256), np.uint8), train_labels=np.zeros(2000, int))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    with pytest.raises(DataError, match=r"would take 0\.1 GiB when unpacked, [\d,]+ times its size; at most 200 times"):
        load(path)
    monkeypatch.setattr(formats, "HIGHEST_RATIOS", ((1000, 2),))
    path = save(train_images=images(20, 8, 8) // 128, train_labels=np.zeros(20, int))
    with pytest.raises(DataError, match="at most 2 times"):
        load(path)


def test_only_the_arrays_that_are_needed_are_read() -> None:
    odd = np.zeros((2000, 256, 256), np.uint8)
    path = save(train_images=images(4, 8, 8), train_labels=[0, 1, 0, 1], other=odd)
    assert len(load(path).train) == 4


def test_an_array_that_promises_more_than_it_holds_is_refused_before_room_is_made() -> None:
    packed = io.BytesIO()
    np.lib.format.write_array_header_1_0(packed, {"shape": (10**12, 8, 8), "fortran_order": False, "descr": "|u1"})
    with zipfile.ZipFile("a.npz", "w") as file:
        file.writestr("train_images.npy", packed.getvalue() + bytes(64))
    with pytest.raises(DataError, match="promises an array"):
        load("a.npz")


@pytest.mark.parametrize("name", ["pipe.npz", "pipe.csv", "zero.npz", "zero.csv", "pipe", "zero"])
def test_pipes_and_devices_are_no_data(name: str) -> None:
    if "pipe" in name:
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    with pytest.raises(DataError):
        load(f"./{name}")
    with pytest.raises(DataError):
        formats.text_of(Path(name))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_costs_are_read_in_the_order_of_the_classes(separator: str) -> None:
    rows = [["", "b", "'=a"], ["'=a", "1", "0"], [], ["b", "0.5", "2e1"]]
    Path("costs.csv").write_text("\n".join(separator.join(row) for row in rows))
    assert read_costs(Path("costs.csv"), ["=a", "b"]).tolist() == [[0, 1], [20, 0.5]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must each name every class once"),
        ("true,a\na,0\n", "must each name every class once.*: a, b"),
        ("true,a,b\na,0,1\n", "must each name every class once"),
        ("true,a,b\na,0,1\na,1,0\n", "must each name every class once"),
        ("true,a,b\na,0,1\nc,1,0\n", "must each name every class once"),
        ("true,a,b\na,0,1\nb,1\n", "the cost of deciding b for b is '', no number"),
        ("true,a,b\na,0,much\nb,1,0\n", "the cost of deciding b for a is 'much', no number"),
        ("true,a,b\na,0,inf\nb,1,0\n", "not finite"),
    ],
)
def test_a_table_of_costs_that_does_not_fit_is_refused(text: str, said: str) -> None:
    Path("costs.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        read_costs(Path("costs.csv"), ["a", "b"])


@pytest.mark.parametrize(
    ("columns", "refused"),
    [
        ("image,label,confidence,energy,outlier,p(cats),p(dogs)", True),
        ("Image;Label;Confidence;P(cats)", True),
        ("image,label,energy,p(cats)", False),  # as the message advises
        ("image,label,confidence", False),  # how sure a person was
        ("rank,image,label,guess,confidence,second_guess,energy", False),  # the sheet of `ebpl suggest`
    ],
)
def test_predictions_are_refused_where_labels_are_wanted_and_read_as_a_list_of_images(
    columns: str, refused: bool
) -> None:
    text = f"{columns}\n{columns}\n"
    assert len(list(read_table(Path("x.csv"), text, ["image", "path"]))) == 1
    if refused:
        with pytest.raises(DataError, match=r"x\.csv holds a model's predictions, which are no labels"):
            list(read_table(Path("x.csv"), text, ["image"], ["label"]))
    else:
        assert len(list(read_table(Path("x.csv"), text, ["image"], ["label"]))) == 1


def test_predictions_are_no_data() -> None:
    folder = class_folders(Path("pets"))
    lines = [f"cats/{i}.png,cats,0.9,1,no,0.9,0.1\ndogs/{i}.png,dogs,0.9,1,no,0.1,0.9" for i in range(4)]
    (folder / "found.csv").write_text("\n".join(["image,label,confidence,energy,outlier,p(cats),p(dogs)", *lines]))
    with pytest.raises(DataError, match=r"found\.csv holds a model's predictions"):
        load(folder / "found.csv")
