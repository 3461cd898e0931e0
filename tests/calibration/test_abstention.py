import numpy as np
import pytest
from scipy.stats import binom

from ebpl.calibration.abstention import RISK, STARTS, choose_threshold
from ebpl.errors import DataError, UsageError


def drawn(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and whether the label is right, of a model that is over-confident."""
    confidences = random.beta(3, 0.6, count)
    return confidences, random.random(count) < confidences**1.1


MANY = drawn(np.random.default_rng(0), 100_000)[0]
REAL = {number / 100: float((MANY[number / 100 <= MANY] ** 1.1).mean()) for number in range(100)}
"""The true accuracy of answers at each threshold."""


@pytest.mark.parametrize(("labels", "wanted"), [(100, 0.9), (400, 0.9), (400, 0.95)])
def test_the_promise_is_kept_in_95_of_100_draws(labels: int, wanted: float) -> None:
    random, broken = np.random.default_rng(1), 0
    for _ in range(200):
        found = choose_threshold(*drawn(random, labels), wanted)
        broken += found.threshold is not None and REAL[found.threshold] < wanted
    assert broken / 200 <= RISK


def test_many_labels_find_a_threshold_near_the_best_one() -> None:
    found = choose_threshold(*drawn(np.random.default_rng(2), 20_000), 0.9)
    best = next(threshold for threshold, accuracy in REAL.items() if accuracy >= 0.9)
    assert found.threshold is not None
    assert best <= found.threshold <= best + 0.05


def test_every_image_is_answered_where_the_model_is_accurate_enough() -> None:
    found = choose_threshold(np.full(200, 0.3), np.arange(200) > 2, 0.9)
    assert (found.threshold, found.answered, found.right) == (0.0, 200, 197)
    assert str(found).endswith("of 200 calibration images this labels 200, and 197 are right")


def test_a_threshold_passes_the_exact_binomial_test() -> None:
    confidences, right = drawn(np.random.default_rng(3), 500)
    found = choose_threshold(confidences, right, 0.9)
    assert found.threshold is not None
    assert found.answered == (confidences >= found.threshold).sum()
    assert binom.sf(found.right - 1, found.answered, 0.9) <= RISK / len(STARTS)


def test_an_unsure_model_gets_a_threshold_too() -> None:
    confidences = np.linspace(0.1, 0.3, 400)
    found = choose_threshold(confidences, confidences > 0.15, 0.9)
    assert found.threshold is not None
    assert 0.1 < found.threshold < 0.2


def test_what_cannot_be_promised_is_told_with_the_labels_that_could() -> None:
    found = choose_threshold(np.full(30, 0.97), np.full(30, True), 0.95)
    assert found.threshold is None
    assert found.needed is not None
    assert choose_threshold(np.full(found.needed, 0.97), np.full(found.needed, True), 0.95).threshold is not None
    assert choose_threshold(np.full(30, 0.97), np.full(30, True), 0.5).threshold == 0
    assert f"from 30 labels; about {found.needed} could be enough" in str(found)
    wrong = choose_threshold(np.full(30, 0.97), np.arange(30) > 10, 0.95)
    assert (wrong.threshold, wrong.needed) == (None, None)
    assert "at no confidence is the model clearly more accurate" in str(wrong)


def test_no_labels_and_no_share_are_errors() -> None:
    with pytest.raises(DataError, match="needs labelled images"):
        choose_threshold(np.zeros(0), np.zeros(0, bool), 0.9)
    for wrong in (0, 1, 95, None, float("nan")):
        with pytest.raises(UsageError, match=r"accuracy is .*, but must be a number above 0 and below 1"):
            choose_threshold(np.ones(3), np.ones(3, bool), wrong)  # type: ignore[arg-type]
