from pathlib import Path

import numpy as np
import pytest

from ebpl.data import load
from ebpl.data.contents import PARTS, contents
from ebpl.data.dataset import from_arrays
from ebpl.errors import DataError
from tests.helpers import blobs, class_folders, random_images, write_png


def test_files_and_the_same_images_as_arrays_hold_the_same() -> None:
    class_folders(Path("pets") / "train")
    class_folders(Path("pets") / "test", unlabeled=0)
    files = contents("pets")
    data = load("pets")
    arrays = contents(data)
    assert (files.classes, files.sizes, files.kinds, files.shape) == (
        arrays.classes, arrays.sizes, arrays.kinds, arrays.shape,
    )  # fmt: skip
    for part in PARTS:
        assert files.counts(part) == arrays.counts(part)
    assert [entry[:3] for entry in files.entries] == [entry[:3] for entry in arrays.entries]
    assert files.read().fingerprint() == data.fingerprint()
    assert files.labels.train.labels.tolist() == data.train.labels.tolist()
    same = {(a, b) for a in range(22) for b in range(a) if files.entries[a].digest == files.entries[b].digest}
    assert same == {(a, b) for a in range(22) for b in range(a) if arrays.entries[a].digest == arrays.entries[b].digest}


def test_a_csv_and_an_npz_are_looked_at_too() -> None:
    write_png(Path("a.png"))
    Path("labels.csv").write_text("image,label\na.png,x\nb.png,y\n")
    found = contents("labels.csv")
    assert found.unreadable == (("line 3: b.png", "there is no such file"),)
    assert found.classes == ("x", "y")
    np.savez("a.npz", train_images=random_images(4, 8, 8, 3), train_labels=[0, 1, -1, -1])
    found = contents("a.npz")
    assert found.kinds == {"colour": 4}
    assert found.counts("train") == {"0": 1, "1": 1, "": 2}


def test_the_shape_is_the_one_training_takes() -> None:
    root = class_folders(Path("pets"))
    write_png(root / "cats" / "large.png", size=(50, 70), mode="RGB")
    assert contents(root).shape == load(root).shape == (3, 32, 32)
    assert contents(root, image_size=9).shape == (3, 9, 9)


def test_data_without_labels_or_images_is_still_looked_at() -> None:
    assert contents(from_arrays(random_images(3, 8, 8), [-1] * 3, training=False)).counts("train") == {"": 3}
    assert contents(blobs()).sizes == {(8, 8): 150}
    for name in ("cats", "dogs"):
        Path("pets", name).mkdir(parents=True)
        Path("pets", name, "1.png").touch()
    found = contents("pets")
    assert (found.entries, found.shape, len(found.unreadable)) == ((), None, 2)
    with pytest.raises(DataError, match="neither a folder"):
        contents("no-such-thing")
