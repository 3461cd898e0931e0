import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ebpl.data import load
from ebpl.data.contents import PARTS, Entry, contents, find_duplicates, lazy_images, listing, side_of
from ebpl.data.dataset import from_arrays
from ebpl.errors import DataError
from tests.helpers import blobs, class_folders, random_images, write_png

SIZE = 40


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


ENTRIES = st.lists(
    st.builds(
        Entry,
        st.text(max_size=3),
        st.sampled_from(["train", "test", "validation"]),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from([b"1", b"2", b"3"]),
    ),
    max_size=12,
)


@given(ENTRIES)
def test_groups_are_all_that_is_there_more_than_once(entries: list[Entry]) -> None:
    found = find_duplicates(entries)
    digests = [entry.digest for entry in entries]
    assert found.extra == len(digests) - len(set(digests))
    for group in found.groups:
        assert len({entry.digest for entry in group}) == 1
        assert len(group) == digests.count(group[0].digest) > 1


@given(ENTRIES)
def test_what_harms_is_what_two_of_the_same_picture_disagree_in(entries: list[Entry]) -> None:
    found = find_duplicates(entries)
    pairs = [(a, b) for i, a in enumerate(entries) for b in entries[i + 1 :] if a.digest == b.digest]
    conflicting = {a.digest for a, b in pairs if a.label and b.label and a.label != b.label}
    leaking = {a.digest for a, b in pairs if (a.part == "train") != (b.part == "train")}
    half = {a.digest for a, b in pairs if a.part == b.part == "train" and bool(a.label) != bool(b.label)}
    assert {group[0].digest for group in found.conflicting} == conflicting
    assert {group[0].digest for group in found.leaking} == leaking
    assert {group[0].digest for group in found.labeled_and_unlabeled} == half
    told = found.to_dict()
    assert told["conflicting"] == len(conflicting)
    assert sum(group["leaking"] for group in told["groups"]) == len(leaking)


def test_a_few_images_of_a_folder_are_those_that_reading_all_of_it_gives() -> None:
    folder = class_folders(Path("pets"))
    every, some = load(folder, image_size=SIZE), lazy_images(folder, None, SIZE)
    assert (some.count, some.size, some.absent) == (len(every.train), SIZE, False)
    assert some.images.classes == every.classes
    np.testing.assert_array_equal(some.images.train.labels, every.train.labels)
    positions, counted = np.flatnonzero(every.train.labels >= 0)[::2], []
    read = some.read(positions, False, lambda count, what: counted.append((count, what)))
    np.testing.assert_array_equal(read.train.pixels, every.train.pixels[positions])
    names = [every.classes[label] for label in every.train.labels[positions]]
    assert [read.classes[label] for label in read.train.labels] == names
    assert counted == [(1, "reading")] * len(positions)


def test_an_image_that_cannot_be_read_is_left_out_or_an_error() -> None:
    folder = class_folders(Path("pets"))
    images = lazy_images(folder, None, SIZE)
    listed = listing(folder)
    assert listed is not None
    listed(folder).parts["train"][1][0].write_bytes(b"damaged")
    positions = np.arange(3)
    pixels, kept = images.pixels(positions, True, lambda *_: None)
    assert (len(pixels), kept.tolist()) == (2, [0, 2])
    with pytest.raises(DataError, match="cannot be read"):
        images.pixels(positions, False, lambda *_: None)


def test_a_folder_may_be_any_kind_of_path() -> None:
    class_folders(Path("pets"))
    (entry,) = (entry for entry in os.scandir() if entry.name == "pets")
    assert contents(entry).entries == contents("pets").entries


def test_the_side_of_images_is_that_of_most_files() -> None:
    for number, side in enumerate([50, 90, 90, 90, 400]):
        path = Path("photos", "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side // 2)).save(path)
    images = lazy_images("photos", None, SIZE)
    assert side_of(images, np.arange(5)) == 90
    assert images.open(0).shape == (SIZE, SIZE, 3), "whatever their own size"
    for path in Path("photos").rglob("*.png"):
        path.write_bytes(b"")
    assert side_of(images, np.arange(5)) == float("inf")


def test_arrays_are_taken_as_they_are() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 30, 20), dtype=np.uint8)
    arrays = from_arrays(pixels, [0, 1, -1, 0, 1, -1])
    assert listing(arrays) is None
    assert listing("digits") is None
    images = lazy_images(arrays, None, SIZE)
    assert (images.size, images.side(0)) == (None, 30)
    np.testing.assert_array_equal(images.open(3), pixels[3])
    np.testing.assert_array_equal(
        images.read(np.array([1, 3]), False, lambda *_: None).train.pixels[..., 0], pixels[[1, 3]]
    )
