import numpy as np
import pytest

from ebpl.data.dataset import Images, from_arrays
from ebpl.errors import DataError

GRAY = np.zeros((4, 8, 8), np.uint8)


def test_arrays_in_every_form() -> None:
    labels = [0, 1, -1, -1]
    assert from_arrays(GRAY, labels).shape == (1, 8, 8)
    assert from_arrays(GRAY[..., None], labels).shape == (1, 8, 8)
    assert from_arrays(np.zeros((4, 5, 7, 3), np.uint8), labels).shape == (3, 5, 7)
    assert from_arrays(GRAY, np.array(labels)[:, None]).train.labels.tolist() == labels
    assert from_arrays(GRAY.astype(np.float32) + 1, labels).train.pixels.max() == 255


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (GRAY, [0, 1, -1], "4 images but labels of shape"),
        (GRAY, [0, 0, -1, -1], "one class"),
        (GRAY, [-1, -1, -1, -1], "no image has a label"),
        (GRAY, [0, 2, -1, -1], "no labelled training image of class 1"),
        (GRAY, [0, 1, -2, -1], "-2 is negative"),
        (GRAY, [0, 1, 0.5, -1], "not whole numbers"),
        (GRAY, ["cat", "dog", "", ""], "not whole numbers"),
        (GRAY, None, "no labels"),
        (GRAY.astype(np.int32), [0, 1, -1, -1], "int32"),
        (GRAY + 2.0, [0, 1, -1, -1], "outside"),
        (GRAY * np.nan, [0, 1, -1, -1], "outside"),
        (np.zeros((4, 8, 8, 2), np.uint8), [0, 1, -1, -1], "C of 1 or 3"),
        (np.zeros((4, 8), np.uint8), [0, 1, -1, -1], "shape"),
        (np.zeros((0, 8, 8), np.uint8), [], "no training images"),
    ],
)
def test_arrays_that_make_no_training_set_are_refused(images, labels, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(images, labels)


def test_test_images_of_another_size_are_refused() -> None:
    with pytest.raises(DataError, match="in training but"):
        from_arrays(GRAY, [0, 1, -1, -1], test_images=np.zeros((1, 9, 9), np.uint8), test_labels=[0])


def test_the_fingerprint_notices_every_change() -> None:
    data = from_arrays(GRAY, [0, 1, -1, -1])
    other_pixel = GRAY.copy()
    other_pixel[3, 0, 0] = 1
    prints = {
        data.fingerprint(),
        from_arrays(other_pixel, [0, 1, -1, -1]).fingerprint(),
        from_arrays(GRAY, [1, 0, -1, -1]).fingerprint(),
        from_arrays(GRAY, [0, 1, -1, -1], classes=("a", "b")).fingerprint(),
    }
    assert len(prints) == 4
    tested = [from_arrays(GRAY, [0, 1, -1, -1], test_images=p, test_labels=[0]) for p in (GRAY[:1], other_pixel[3:])]
    assert len({data.fingerprint(), *[other.fingerprint() for other in tested]}) == 3
    assert from_arrays(GRAY, [0, 1, -1, -1]).fingerprint() == data.fingerprint()


def test_colour_and_gray_are_converted_into_each_other() -> None:
    gray = Images(np.full((2, 3, 3, 1), 100, np.uint8), np.zeros(2, np.int64))
    assert gray.with_channels(3).pixels.shape == (2, 3, 3, 3)
    assert np.array_equal(gray.with_channels(3).with_channels(1).pixels, gray.pixels)


def test_a_class_name_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(DataError, match=r"named '\\udc80'"):
        from_arrays(GRAY, [0, 1, -1, -1], classes=("a", "\udc80"))


def test_the_fingerprint_of_test_images_is_theirs_alone() -> None:
    def made(train: int = 0, test: int = 0, label: int = 1) -> dict[str, str]:
        images = np.full((2, 8, 8), train, np.uint8)
        tested = np.full((1, 8, 8), test, np.uint8)
        return from_arrays(images, [0, 1], test_images=tested, test_labels=[label]).fingerprints()

    assert made() == made()
    assert made(train=1)["test_fingerprint"] == made()["test_fingerprint"]
    assert made(train=1)["fingerprint"] != made()["fingerprint"]
    assert len({made(**change)["test_fingerprint"] for change in ({}, {"test": 1}, {"label": 0})}) == 3
    assert set(from_arrays(np.zeros((2, 8, 8), np.uint8), [0, 1]).fingerprints()) == {"fingerprint"}


def test_test_images_that_are_among_the_training_images_are_counted() -> None:
    random = np.random.default_rng(0)
    train, test = (random.integers(0, 256, (count, 4, 4), dtype=np.uint8) for count in (6, 5))
    test[0], test[1], test[4] = train[0], train[5], train[1]
    data = from_arrays(train, [0, 1, 0, 1, -1, -1], test_images=test, test_labels=[0, 1, 0, 1, -1])
    assert data.test_in_training == 2  # one of a labelled and one of an unlabelled image; the third has no label
    assert from_arrays(train, [0, 1, 0, 1, -1, -1]).test_in_training == 0


def test_images_of_another_size_are_none_of_these() -> None:
    small, large = (from_arrays(np.zeros((2, size, size)), [0, 1]).train for size in (4, 8))
    assert small.labeled_in(large) == 0
    assert small.labeled_in(small) == 2


def test_labelled_images_are_known_again_by_short_digests() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    some = from_arrays(images, [0, 1, -1, -1, 0]).train
    digests = some.short_digests()
    assert digests.dtype == np.uint64
    assert len(set(digests.tolist())) == 5
    assert [some.labeled_among(digests[:count]) for count in (0, 1, 3, 5)] == [0, 1, 2, 3]
