import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from ebpl.measuring import classification
from tests.measuring.test_calibration import random_predictions


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
