import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from ebpl.metrics import calibration


def random_predictions(seed: int, count: int, classes: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    scores = sharpness * random.normal(size=(count, classes))
    probabilities = np.exp(scores - scores.max(1, keepdims=True))
    return probabilities / probabilities.sum(1, keepdims=True), random.integers(0, classes, count)


predictions = st.builds(
    random_predictions, st.integers(0, 10**6), st.integers(1, 200), st.integers(2, 8), st.floats(0.0, 20.0)
)


def ece_by_the_papers_formula(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    """A sum over the bins, image by image, as the paper writes it."""
    total = 0.0
    for m in range(1, bins + 1):
        inside = [i for i in range(len(labels)) if (m - 1) / bins < probabilities[i].max() <= m / bins]
        if inside:
            right = sum(probabilities[i].argmax() == labels[i] for i in inside) / len(inside)
            said = sum(probabilities[i].max() for i in inside) / len(inside)
            total += len(inside) / len(labels) * abs(right - said)
    return total


@given(predictions, st.sampled_from([1, 7, 10, 15]))
@settings(max_examples=100, deadline=None)
def test_ece_is_the_papers_sum(given_predictions: tuple[np.ndarray, np.ndarray], bins: int) -> None:
    probabilities, labels = given_predictions
    expected = ece_by_the_papers_formula(probabilities, labels, bins)
    assert calibration.expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(2, 8), st.floats(0.1, 2.0))
@settings(max_examples=50, deadline=None)
def test_ece_agrees_with_torchmetrics(seed: int, count: int, classes: int, sharpness: float) -> None:
    # not for confidences that round to 1: torchmetrics puts those into a bin of their own, the paper's (a, b] does not
    probabilities, labels = random_predictions(seed, count, classes, sharpness)
    theirs = multiclass_calibration_error(
        torch.from_numpy(probabilities), torch.from_numpy(labels), num_classes=probabilities.shape[1], n_bins=15
    )
    ours = calibration.expected_calibration_error(probabilities, labels, 15)
    assert ours == pytest.approx(theirs.item(), abs=1e-4)


def adaptive_ece_by_hand(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    """The least confident images first, dealt into groups of equal size; the first groups have one more."""
    answers = sorted((row.max(), row.argmax() == label) for row, label in zip(probabilities, labels, strict=True))
    total, least, more = 0.0, len(answers) // bins, len(answers) % bins
    for group in range(bins):
        own, answers = answers[: least + (group < more)], answers[least + (group < more) :]
        total += abs(sum(right for _, right in own) - sum(said for said, _ in own))
    assert not answers
    return total / len(labels)


@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(2, 8), st.floats(0.1, 5.0), st.sampled_from([1, 4, 15]))
@settings(max_examples=100, deadline=None)
def test_adaptive_ece_is_the_sum_over_groups_of_equal_size(
    seed: int, count: int, classes: int, sharpness: float, bins: int
) -> None:
    probabilities, labels = random_predictions(seed, count, classes, sharpness)
    expected = adaptive_ece_by_hand(probabilities, labels, bins)
    assert calibration.adaptive_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(2, 8), st.floats(0.1, 2.0))
@settings(max_examples=50, deadline=None)
def test_classwise_ece_is_torchmetrics_binary_error_averaged_over_the_classes(
    seed: int, count: int, classes: int, sharpness: float
) -> None:
    probabilities, labels = random_predictions(seed, count, classes, sharpness)
    theirs = [
        binary_calibration_error(torch.tensor(probabilities[:, c]), torch.tensor(labels == c).long(), 15).item()
        for c in range(classes)
    ]
    ours = calibration.classwise_calibration_error(probabilities, labels, 15)
    assert ours == pytest.approx(np.mean(theirs), abs=1e-4)


def test_a_confidence_on_an_edge_counts_in_the_bin_below() -> None:
    probabilities = np.array([[0.8, 0.2], [0.8, 0.2]])
    bins = calibration.reliability(probabilities, np.array([0, 1]), bins=5)
    assert bins.counts.tolist() == [0, 0, 0, 2, 0]
    assert np.isnan(bins.accuracy[0])


def test_full_confidence_counts_in_the_last_bin() -> None:
    bins = calibration.reliability(np.array([[1.0, 0.0]]), np.array([0]), bins=10)
    assert bins.counts[-1] == 1


@given(predictions)
@settings(max_examples=50, deadline=None)
def test_every_error_is_between_zero_and_one_and_no_image_is_lost(
    given_predictions: tuple[np.ndarray, np.ndarray],
) -> None:
    probabilities, labels = given_predictions
    for measure in (
        calibration.expected_calibration_error,
        calibration.adaptive_calibration_error,
        calibration.classwise_calibration_error,
        calibration.area_under_risk_coverage,
    ):
        assert 0 <= measure(probabilities, labels) <= 1
    assert calibration.reliability(probabilities, labels).counts.sum() == len(labels)
    assert abs(calibration.overconfidence(probabilities, labels)) <= (
        calibration.expected_calibration_error(probabilities, labels) + 1e-9
    )


def test_a_calibrated_classifier_has_almost_no_error_in_any_view() -> None:
    random = np.random.default_rng(0)
    probabilities = random.dirichlet([1, 1, 1], size=100_000)
    labels = np.array((probabilities.cumsum(1) > random.random((100_000, 1))).argmax(1))
    assert calibration.expected_calibration_error(probabilities, labels) < 0.01
    assert calibration.adaptive_calibration_error(probabilities, labels) < 0.01
    assert calibration.classwise_calibration_error(probabilities, labels) < 0.01
    assert abs(calibration.overconfidence(probabilities, labels)) < 0.01


def test_the_sign_of_a_wrong_confidence() -> None:
    sure, unsure = np.tile([0.99, 0.01], (100, 1)), np.tile([0.51, 0.49], (100, 1))
    labels = np.array([0] * 75 + [1] * 25)
    assert calibration.overconfidence(sure, labels) == pytest.approx(0.24)
    assert calibration.overconfidence(unsure, labels) == pytest.approx(-0.24)


def test_risk_rises_with_coverage_when_the_errors_are_the_least_confident() -> None:
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    labels = np.array([0, 0, 1, 1])
    coverage, risk = calibration.risk_coverage(probabilities, labels)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk.tolist() == [0, 0, 1 / 3, 1 / 2]
    assert calibration.area_under_risk_coverage(probabilities, labels) == pytest.approx((1 / 3 + 1 / 2) / 4)
    worst = calibration.area_under_risk_coverage(probabilities, 1 - labels)
    assert worst > calibration.area_under_risk_coverage(probabilities, labels)


def test_likelihood_and_brier_score_by_hand() -> None:
    probabilities, labels = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]), np.array([0, 2])
    assert calibration.negative_log_likelihood(probabilities, labels) == pytest.approx(-np.log(0.7 * 0.1) / 2)
    assert calibration.brier_score(probabilities, labels) == pytest.approx(
        (0.09 + 0.04 + 0.01 + 0.01 + 0.64 + 0.81) / 2
    )


def test_a_certain_mistake_has_a_finite_likelihood() -> None:
    assert np.isfinite(calibration.negative_log_likelihood(np.array([[1.0, 0.0]]), np.array([1])))


def test_no_images_give_nan_and_no_warning() -> None:
    probabilities, labels = np.zeros((0, 3)), np.zeros(0, np.int64)
    for name in (
        "expected_calibration_error",
        "adaptive_calibration_error",
        "classwise_calibration_error",
        "overconfidence",
        "negative_log_likelihood",
        "brier_score",
        "area_under_risk_coverage",
    ):
        assert np.isnan(getattr(calibration, name)(probabilities, labels)), name


def test_the_error_by_chance_is_that_of_answers_drawn_from_their_confidence() -> None:
    probabilities, _ = random_predictions(0, 400, 3, 2.0)
    said = probabilities.max(1)
    random = np.random.default_rng(1)
    errors = []
    for _ in range(200):
        right = random.random(400) < said
        labels = np.where(right, probabilities.argmax(1), (probabilities.argmax(1) + 1) % 3)
        errors.append(ece_by_the_papers_formula(probabilities, labels, 15))
    assert calibration.calibration_error_by_chance(said) == pytest.approx(np.mean(errors), rel=0.1)
    assert calibration.calibration_error_by_chance(np.ones(5)) == 0
    assert np.isnan(calibration.calibration_error_by_chance(np.zeros(0)))
