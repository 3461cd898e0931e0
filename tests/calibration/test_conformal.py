import math
from collections.abc import Callable

import numpy as np
import pytest

from ebpl.calibration import conformal
from ebpl.calibration.conformal import (
    METHODS,
    PredictionSets,
    calibrate,
    check_enough,
    cross_fitted,
    least_labels,
    measure_sets,
    quantile,
    scores,
    weighted_quantile,
)
from ebpl.errors import DataError, UsageError

Draw = Callable[[int], tuple[np.ndarray, np.ndarray]]


def draws(seed: int, temperature: float = 1.0, classes: int = 4) -> Draw:
    """Images with probabilities, and labels drawn from them; at another temperature the model is not calibrated."""
    random = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        logits = random.normal(0, 1.5, (count, classes)) + np.linspace(0, 1, classes)

        def softmax(values: np.ndarray) -> np.ndarray:
            powers = np.exp(values - values.max(1, keepdims=True))
            return powers / powers.sum(1, keepdims=True)

        labels = np.array([random.choice(classes, p=row) for row in softmax(logits)])
        return softmax(logits / temperature), labels

    return draw


def coverage_of(sets: PredictionSets, probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(sets.contains(probabilities)[np.arange(len(labels)), labels].mean())


def test_scores_of_a_small_example() -> None:
    shares = np.array([[0.2, 0.5, 0.3]])
    assert scores(shares, "lac") == pytest.approx(np.array([[0.8, 0.5, 0.7]]))
    assert scores(shares, "aps") == pytest.approx(np.array([[0.8, 0.0, 0.5]]))
    penalty = conformal.PENALTY
    assert scores(shares, "raps") == pytest.approx(np.array([[0.8 + penalty, 0.0, 0.5]]))
    more = np.random.default_rng(3).random() * shares
    found = scores(shares, "random-aps", np.random.default_rng(3))
    assert found == pytest.approx(np.array([[0.8, 0.0, 0.5]]) + more)
    found = scores(shares, "random-raps", np.random.default_rng(3))
    assert found == pytest.approx(np.array([[0.8 + penalty, 0.0, 0.5]]) + more)


def test_equal_probabilities_are_ranked_by_the_number_of_the_class() -> None:
    assert scores(np.full((1, 4), 0.25), "aps").tolist() == [[0.0, 0.25, 0.5, 0.75]]


@pytest.mark.parametrize("count", range(1, 60))
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_the_threshold_has_the_exact_rank(count: int, coverage: float) -> None:
    values = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    found = quantile(values, coverage)
    if math.isinf(found):  # even the largest would not be enough
        assert count / (count + 1) < coverage
        assert count < least_labels(coverage)
    else:  # a new score is at or below it with a probability of found / (count + 1)
        assert found / (count + 1) >= coverage - 1e-9
        assert (found - 1) / (count + 1) < coverage
        assert count >= least_labels(coverage)


def test_weights_of_one_give_the_plain_threshold() -> None:
    values = np.random.default_rng(0).random(37)
    assert weighted_quantile(values, np.ones(37), 0.9 * 38) == quantile(values, 0.9)
    assert weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 5.0, 1.0]), 5.5) == 2.0
    assert weighted_quantile(np.array([1.0]), np.array([1.0]), 2.0) == math.inf


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_sets_cover_as_promised_whatever_the_model(method: str, temperature: float) -> None:
    draw = draws(1, temperature)
    new = draw(2000)
    found = [coverage_of(calibrate(*draw(39), 0.9, method), *new) for _ in range(150)]
    # the mean over draws is 36/40, and one draw has a standard deviation of 4.7 points
    assert np.mean(found) > 0.885
    if method not in ("aps", "raps"):  # their scores are often equal, so that sets are larger than they need to be
        assert np.mean(found) < 0.925


def test_the_spread_over_draws_is_the_one_told() -> None:
    draw = draws(2)
    new = draw(4000)
    sets = [calibrate(*draw(50), 0.9) for _ in range(200)]
    low, high = sets[0].likely
    found = np.array([coverage_of(each, *new) for each in sets])
    assert np.mean((found >= low) & (found <= high)) == pytest.approx(0.9, abs=0.06)


def test_within_each_class_the_coverage_is_as_promised() -> None:
    draw = draws(3, temperature=0.4)
    probabilities, labels = draw(8000)
    inside = [calibrate(*draw(400), 0.9, by_class=True).contains(probabilities) for _ in range(30)]
    hits = np.mean([each[np.arange(len(labels)), labels] for each in inside], axis=0)
    assert [hits[labels == each].mean() for each in range(4)] == pytest.approx([0.9] * 4, abs=0.02)
    plain = [calibrate(*draw(400), 0.9).contains(probabilities) for _ in range(30)]
    hits = np.mean([each[np.arange(len(labels)), labels] for each in plain], axis=0)
    assert np.ptp([hits[labels == each].mean() for each in range(4)]) > 0.04


@pytest.mark.parametrize("temperature", [0.9, 1.0, 1.2])
def test_unlabelled_images_narrow_the_spread_and_keep_the_mean(temperature: float) -> None:
    draw = draws(4, temperature)
    new, unlabelled = draw(3000), draw(1000)[0]
    labels = [draw(20) for _ in range(80)]
    alone = np.array([coverage_of(calibrate(*each, 0.9), *new) for each in labels])
    found = np.array([coverage_of(calibrate(*each, 0.9, unlabelled=unlabelled), *new) for each in labels])
    assert found.mean() == pytest.approx(0.9, abs=0.025)
    assert np.abs(found - 0.9).mean() < 0.6 * np.abs(alone - 0.9).mean()


def test_unlabelled_images_are_not_trusted_where_the_labels_contradict_the_model() -> None:
    draw = draws(5, temperature=20)  # so unsure that no temperature in reach would help
    new, unlabelled = draw(3000), draw(1000)[0]
    found = [coverage_of(calibrate(*draw(200), 0.9, unlabelled=unlabelled), *new) for _ in range(20)]
    assert np.mean(found) == pytest.approx(0.9, abs=0.03)


def test_unlabelled_images_help_classes_with_few_labels() -> None:
    draw = draws(6)
    probabilities, labels = draw(5000)
    sets = calibrate(*draw(24), 0.9, by_class=True, unlabelled=draw(2000)[0])
    assert np.isfinite(sets.thresholds).all()
    inside = sets.contains(probabilities)[np.arange(len(labels)), labels]
    assert [inside[labels == each].mean() for each in range(4)] == pytest.approx([0.9] * 4, abs=0.07)


def test_images_without_a_label_are_left_out() -> None:
    probabilities, labels = draws(7)(60)
    some = np.where(np.arange(60) % 2, labels, -1)
    odd = np.arange(60) % 2 == 1
    expected = calibrate(probabilities[odd], labels[odd], 0.8)
    assert calibrate(probabilities, some, 0.8).thresholds.tolist() == expected.thresholds.tolist()
    with pytest.raises(DataError, match="need labelled images"):
        calibrate(probabilities, np.full(60, -1), 0.8)


def test_too_few_labels_are_told_with_the_number_needed() -> None:
    probabilities, labels = draws(8)(8)
    with pytest.raises(DataError, match=r"coverage of 90 % needs at least 9 labels that .* here are 8 labels"):
        check_enough(calibrate(probabilities, labels, 0.9), "abcd")
    probabilities, labels = draws(8)(9)
    assert check_enough(calibrate(probabilities, labels, 0.9), "abcd") is None


def test_classes_with_too_few_labels_are_named_and_always_in_the_set() -> None:
    probabilities, labels = draws(9)(200)
    kept = (labels != 2) | (np.cumsum(labels == 2) <= 8)
    sets = calibrate(probabilities[kept], labels[kept], 0.9, by_class=True)
    warning = check_enough(sets, ["a", "b", "c", "d"])
    assert warning is not None
    assert warning.endswith("which needs 9 of each: always in the set is c.")
    assert sets.contains(probabilities)[:, 2].all()
    with pytest.raises(DataError, match="9 labels of each class"):
        check_enough(calibrate(probabilities[:9], labels[:9], 0.9, by_class=True), "abcd")


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.5, float("nan"), "0.9", None])
def test_a_coverage_is_a_share(coverage: float) -> None:
    with pytest.raises(UsageError, match=r"coverage is .*, but must be a number above 0 and below 1"):
        calibrate(np.full((9, 2), 0.5), np.zeros(9, int), coverage)


def test_a_wrong_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"There is no set method 'rasp'\. Did you mean raps"):
        scores(np.full((1, 2), 0.5), "rasp")


def test_sets_of_random_methods_are_the_same_each_time_and_differ_between_draws_of_labels() -> None:
    draw = draws(10)
    new, labels = draw(50), [draw(30) for _ in range(2)]
    first, again = (calibrate(*labels[0], 0.9, "random-aps") for _ in range(2))
    assert first.thresholds.tolist() == again.thresholds.tolist()
    assert (first.contains(new[0]) == again.contains(new[0])).all()
    same = [conformal.generator(each).random() for each in (labels[0][0], labels[1][0])]
    assert same[0] != same[1]
    assert first.contains(new[0][:0]).shape == (0, 4)


def test_cross_fitted_sets_are_a_fair_test() -> None:
    draw = draws(11)
    found = []
    for _ in range(40):
        probabilities, labels = draw(60)
        inside = cross_fitted(probabilities, labels, 0.8)
        found.append(inside[np.arange(60), labels].mean())
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)
    probabilities, labels = draw(1)
    assert not cross_fitted(probabilities, labels, 0.8).any()


def test_coverage_and_size_are_counted_over_all_and_by_class() -> None:
    inside = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]], bool)
    found = measure_sets(inside, np.array([0, 0, 0, 1]), ["a", "b", "c"])
    assert (found["images"], found["coverage"], found["mean_size"]) == (4, 0.75, 1.25)
    assert (found["empty"], found["single"]) == (0.25, 0.25)
    low, high = found["coverage_interval"]
    assert 0.3 < low < 0.75 < high < 0.96
    rows = {row["class"]: row for row in found["by_class"]}
    assert (rows["a"]["coverage"], rows["a"]["mean_size"]) == (pytest.approx(2 / 3), 1.0)
    assert (rows["b"]["coverage"], rows["b"]["mean_size"]) == (1.0, 2.0)
    assert rows["c"]["images"] == 0
    assert math.isnan(rows["c"]["coverage"])


def test_sets_by_aps_are_never_empty() -> None:
    draw = draws(12)
    for method in ("aps", "raps"):
        assert calibrate(*draw(100), 0.3, method).contains(draw(500)[0]).any(1).all()
    assert not calibrate(*draw(100), 0.3).contains(draw(500)[0]).any(1).all()


def test_a_class_that_nothing_speaks_for_is_in_every_set() -> None:
    probabilities, labels = draws(13, classes=3)(60)
    never = np.column_stack([probabilities, np.zeros(60)])
    sets = calibrate(never, labels, 0.9, by_class=True, unlabelled=never)
    assert math.isinf(sets.thresholds[3])
    assert np.isfinite(sets.thresholds[:3]).all()
