import numpy as np
import pytest

from ebpl.metrics import NAMES, accuracy_at_coverage, by_bin, in_words, measure
from tests.measuring.test_calibration import random_predictions


def test_images_without_a_label_are_left_out() -> None:
    probabilities, labels = random_predictions(0, 50, 4, 2.0)
    hidden = np.where(np.arange(50) < 20, -1, labels)
    assert measure(probabilities, hidden) == measure(probabilities[20:], labels[20:])
    assert measure(probabilities, hidden)["images"] == 30
    assert sum(row["images"] for row in by_bin(probabilities, hidden)) == 30


def test_every_measure_has_a_name_and_words() -> None:
    measured = measure(*random_predictions(1, 30, 3, 1.0))
    assert measured.keys() == NAMES.keys()
    assert all(in_words(name, value) for name, value in measured.items())


def test_the_direction_of_a_wrong_confidence_is_said() -> None:
    assert in_words("overconfidence", 0.123) == "+12.3 % (over)"
    assert in_words("overconfidence", -0.05) == "-5.0 % (under)"


def test_accuracy_at_a_coverage_is_that_of_the_most_confident_images() -> None:
    probabilities, labels = random_predictions(2, 400, 5, 3.0)
    bins = by_bin(probabilities, labels)
    confidences, right = probabilities.max(1), probabilities.argmax(1) == labels
    ends = [(confidences > row["above"]) for row in reversed(bins)]
    shares, counts = [0.0, *(end.mean() for end in ends)], [0.0, *(right[end].sum() for end in ends)]
    for coverage in np.linspace(0.05, 1, 20):
        found = accuracy_at_coverage(bins, coverage)
        assert found is not None
        assert found * coverage * 400 == pytest.approx(np.interp(coverage, shares, counts))  # exact where a bin ends
    assert accuracy_at_coverage(bins, 1) == pytest.approx(measure(probabilities, labels)["accuracy"])
    assert accuracy_at_coverage(bins, 0) is None
    assert accuracy_at_coverage([], 1) is None
