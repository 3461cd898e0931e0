import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from ebpl.metrics import classification
from tests.metrics.test_calibration import random_predictions


@given(st.integers(0, 10**6), st.integers(1, 100), st.integers(2, 7))
@settings(max_examples=50, deadline=None)
def test_measures_agree_with_scikit_learn(seed: int, count: int, classes: int) -> None:
    probabilities, labels = random_predictions(seed, count, classes, 3.0)
    predicted = probabilities.argmax(1)
    assert classification.accuracy(probabilities, labels) == pytest.approx(accuracy_score(labels, predicted))
    assert classification.macro_f_score(probabilities, labels) == pytest.approx(
        f1_score(labels, predicted, average="macro")
    )
    np.testing.assert_array_equal(
        classification.confusion(probabilities, labels), confusion_matrix(labels, predicted, labels=range(classes))
    )


def test_no_images_give_nan() -> None:
    empty = np.zeros((0, 3)), np.zeros(0, np.int64)
    assert np.isnan(classification.accuracy(*empty))
    assert np.isnan(classification.macro_f_score(*empty))


@given(st.integers(0, 10**6), st.integers(1, 100), st.integers(2, 7))
@settings(max_examples=50, deadline=None)
def test_measures_of_each_class_agree_with_scikit_learn(seed: int, count: int, classes: int) -> None:
    probabilities, labels = random_predictions(seed, count, classes, 3.0)
    found = classification.by_class(probabilities, labels)
    expected = precision_recall_fscore_support(
        labels, probabilities.argmax(1), labels=range(classes), zero_division=np.nan
    )
    np.testing.assert_allclose(found.precision, expected[0])
    np.testing.assert_allclose(found.recall, expected[1])
    np.testing.assert_allclose(found.f_score, expected[2])
    np.testing.assert_array_equal(found.images, expected[3])
    said = probabilities.argmax(1)
    for c in range(classes):
        own = said == c
        assert found.predicted[c] == own.sum()
        assert found.precision_interval[c] == classification.wilson_interval(int((labels[own] == c).sum()), own.sum())
        if own.any():
            assert found.confidence[c] == pytest.approx(probabilities[own].max(1).mean())


@given(st.integers(1, 10_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_interval_of_a_share_agrees_with_scipy(right_and_total: tuple[int, int]) -> None:
    right, total = right_and_total
    expected = binomtest(right, total).proportion_ci(method="wilson")
    assert classification.wilson_interval(right, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_of_nothing_any_share_may_be_true() -> None:
    assert classification.wilson_interval(0, 0) == (0, 1)
