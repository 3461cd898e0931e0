import numpy as np
import pytest

from ebpl.reporting.sections import calibration_error, direction, sure_ones


def answers(confidence: float, right: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tile([confidence, 1 - confidence], (count, 1)), np.where(np.arange(count) < right, 0, 1)


def said_and_done(confidence: float, right: int, count: int) -> tuple[float, int, float]:
    return confidence - right / count, count, count * confidence * (1 - confidence)


@pytest.mark.parametrize(
    ("confidence", "right", "count", "word"),
    [
        (0.95, 500, 1000, "over-confident"),
        (0.6, 900, 1000, "under-confident"),
        (0.9, 900, 1000, "neither"),
        (0.9, 8, 10, "neither"),  # ten points off, but ten images cannot tell
        (0.9, 8000, 10000, "over-confident"),
    ],
)
def test_the_direction_is_named_where_the_images_can_tell(confidence: float, right: int, count: int, word: str) -> None:
    found, sentence = direction(*said_and_done(confidence, right, count))
    assert found == word
    assert ("neither" if word == "neither" else word) in sentence


def test_certain_and_right_is_neither() -> None:
    assert direction(*said_and_done(1.0, 5, 5))[0] == "neither"


def test_the_calibration_error_stands_beside_what_chance_would_give() -> None:
    text = calibration_error(*answers(0.8, 50, 100))
    assert "30.0\xa0%" in text
    assert "3.2\xa0%" in text or "3.1\xa0%" in text or "3.3\xa0%" in text  # E|X - 80| of 100 draws with 0.8: 3.2


def test_how_often_it_is_right_when_sure() -> None:
    assert "right on 50.0\xa0%" in sure_ones(*answers(0.95, 5, 10))
    assert "nowhere" in sure_ones(*answers(0.7, 5, 10))
