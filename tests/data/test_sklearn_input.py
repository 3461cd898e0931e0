import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ebpl.data.sklearn_input import Scale, missing, packed, plain, shape_for, shape_of, unpacked
from ebpl.errors import DataError, UsageError
from tests.helpers import random_images


def test_bytes_stay_as_they_are() -> None:
    images = random_images(5, 4, 6, 3)
    rows = images.reshape(5, -1)
    scale = Scale.of(rows, (4, 6, 3), by_column=False)
    assert (scale.pixels(rows) == images).all()
    assert (scale.pixels(rows.astype(np.float64)) == images).all()  # the same numbers in another type


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint16"])
@pytest.mark.parametrize(("low", "high"), [(0, 255), (0, 1020), (510, 1020)])
def test_other_numbers_span_black_to_white(kind: str, low: int, high: int) -> None:
    images = random_images(5, 3, 3)
    images[0, 0, :2] = 0, 255
    rows = (images.reshape(5, -1) / 255 * (high - low) + low).round().astype(kind)
    assert (Scale.of(rows, (3, 3, 1), by_column=False).pixels(rows)[..., 0] == images).all()


def test_images_are_scaled_as_in_training_and_cut_off_beyond() -> None:
    scale = Scale.of(np.array([[-1.0, 1.0]]), (1, 2, 1), by_column=False)
    assert scale.pixels(np.array([[-5.0, 0.0], [1.0, 9.0]])).reshape(2, 2).tolist() == [[0, 128], [255, 255]]


def test_features_that_are_no_image_are_scaled_one_by_one() -> None:
    rows = np.array([[0.0, 1000.0, 7.0], [1.0, 3000.0, 7.0], [0.5, 2000.0, 7.0]])
    pixels = Scale.of(rows, (1, 3, 1), by_column=True).pixels(rows).reshape(3, 3)
    assert pixels.tolist() == [[0, 0, 0], [255, 255, 0], [128, 128, 0]]


def test_any_number_of_rows_is_scaled_alike() -> None:
    rows = np.random.default_rng(0).normal(size=(10_000, 4))
    scale = Scale.of(rows, (2, 2, 1), by_column=False)
    assert (scale.pixels(rows)[::77] == scale.pixels(rows[::77])).all()
    with pytest.raises(DataError, match="too far apart"):
        Scale.of(np.array([[-1e308, 1e308]]), (1, 2, 1), by_column=False)


def test_the_shape_is_that_of_the_array_or_given_or_a_square() -> None:
    assert shape_of(np.zeros((7, 4, 5))) == (4, 5, 1)
    assert shape_of(np.zeros((7, 4, 5, 3))) == (4, 5, 3)
    assert shape_of([[1, 2], [3, 4]]) is None
    assert shape_for(64, None) == (8, 8, 1)
    assert shape_for(60, (4, 5, 3)) == (4, 5, 3)
    assert shape_for(20, [4, 5]) == (4, 5, 1)
    assert shape_for(7, "row") == (1, 7, 1)


@pytest.mark.parametrize("shape", [(7, 3, 8, 8), (7, 8, 8, 2), (7, 2, 8, 8, 3)])
def test_other_arrays_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="C of 1 or 3"):
        shape_of(np.zeros(shape))


@pytest.mark.parametrize("given", [5, "square", (8,), (4, 4, 4), (0, 64), (2, 4, 8, 1), ("a", "b")])
def test_a_shape_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="image_shape is"):
        shape_for(64, given)


def test_rows_of_another_length_are_refused_with_what_to_do() -> None:
    with pytest.raises(DataError, match=r"3072 features are no square images. Give image_shape="):
        shape_for(3072, None)
    with pytest.raises(DataError, match="have 48 numbers, but the rows have 50"):
        shape_for(50, (4, 4, 3))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, -1, 5, -1]),
        np.array([3.0, -1.0, 5.0, np.nan]),
        np.array(["cat", "", "dog", "-1"]),
        np.array(["cat", None, "dog", -1], dtype=object),
        np.array(["cat", float("nan"), "dog", ""], dtype=object),
        np.array([3, None, 5, np.int64(-1)], dtype=object),
        np.array([True, None, False, -1], dtype=object),
        np.array([b"cat", b"", b"dog", b"-1"]),
    ],
)
def test_a_missing_label_is_told_in_every_way_people_write_it(labels: np.ndarray) -> None:
    assert missing(labels).tolist() == [False, True, False, True]


def test_labels_that_never_miss() -> None:
    assert not missing(np.array([0, 1, 2], np.uint8)).any()
    assert not missing(np.array([True, False])).any()


def test_objects_become_what_they_are() -> None:
    assert plain(np.array([1, 2], dtype=object)).dtype.kind == "i"
    assert plain(np.array([True, False], dtype=object)).dtype.kind == "b"
    assert plain(np.array(["a", "b"], dtype=object)).dtype.kind == "O"
    for mixed in (["a", 1], [True, 2], [(1,), (2,)]):
        labels = np.empty(2, object)
        labels[:] = mixed
        with pytest.raises(DataError, match="several types"):
            plain(labels)


@given(arrays(np.float32, (3, 5), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_packed_rows_are_unpacked_to_the_same_numbers(rows: np.ndarray) -> None:
    assert (unpacked(packed(rows)) == rows).all()
    assert (unpacked(packed(np.asfortranarray(rows.astype(np.float64)))) == rows).all()


@pytest.mark.parametrize("shape", [(4, 5, 7, 1), (4, 4, 7, 1), (4, 28, 28, 1), (4, 5, 7, 3)])
def test_pictures_are_no_packed_rows(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="takes no images"):
        unpacked(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
