import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.labeling import choose, uncertainty


def posteriors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(4), count)


def test_the_doubt_is_largest_between_two_equal_classes_and_none_where_one_is_certain() -> None:
    assert uncertainty(np.array([[0.5, 0.5, 0], [0, 1, 0], [0.4, 0.3, 0.3]])) == pytest.approx([1, 0, 0.9])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 3))
def test_so_many_different_images_are_chosen_most_uncertain_first(images: int, count: int, seed: int) -> None:
    probabilities = posteriors(images, seed)
    features = np.random.default_rng(seed).normal(size=(images, 5)).astype(np.float32)
    chosen = choose(probabilities, features, count, seed)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, images)
    assert (np.diff(uncertainty(probabilities)[chosen]) <= 0).all()


def test_only_allowed_images_are_chosen() -> None:
    allowed = np.arange(30) % 3 == 0
    chosen = choose(posteriors(30), np.eye(30, 6, dtype=np.float32), 20, allowed=allowed)
    assert len(chosen) == 10
    assert allowed[chosen].all()


def test_images_that_are_all_alike_are_no_trouble() -> None:
    assert len(choose(posteriors(40), np.zeros((40, 3), np.float32), 5)) == 5


def test_one_kind_of_doubt_is_not_labelled_over_and_over() -> None:
    # thirty images of one kind the model is most unsure of, and five other kinds a little less
    kinds = np.repeat(np.arange(6), [30, 5, 5, 5, 5, 5])
    doubt = np.where(kinds == 0, 0.5, 0.55)
    probabilities = np.column_stack([doubt, 1 - doubt])
    features = 10 * np.eye(6, dtype=np.float32)[kinds] + np.random.default_rng(0).normal(0, 0.1, (55, 6)).astype("f4")
    assert set(kinds[choose(probabilities, features, 6)]) == set(range(6))
    by_doubt_alone = np.argsort(-uncertainty(probabilities), kind="stable")[:6]
    assert set(kinds[by_doubt_alone]) == {0}
