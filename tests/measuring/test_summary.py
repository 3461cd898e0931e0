import numpy as np

from ebpl.measuring.summary import NAMES, by_bin, in_words, measure
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
