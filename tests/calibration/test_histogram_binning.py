import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.preprocessing import KBinsDiscretizer

from ebpl.calibration import CalibrationCheck, apply_temperature, before_and_after
from ebpl.calibration.histogram_binning import MOST_BINS, PER_BIN, apply_bins, fit_bins
from ebpl.metrics.calibration import expected_calibration_error


def over_confident(count: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Posteriors that are too sharp for the labels drawn from them."""
    random = np.random.default_rng(seed)
    true = random.dirichlet(np.full(5, 0.7), count)
    labels = np.array([random.choice(5, p=row) for row in true])
    return apply_temperature(true, 0.4), labels


def test_bins_hold_equal_numbers_and_give_the_accuracy_of_their_labels() -> None:
    probabilities, labels = over_confident(500)
    top, right = probabilities.max(1), probabilities.argmax(1) == labels
    bins = fit_bins(probabilities, labels)
    dealt = KBinsDiscretizer(MOST_BINS, encode="ordinal", quantile_method="averaged_inverted_cdf").fit_transform(
        top[:, None]
    )[:, 0]
    given = apply_bins(probabilities, bins).max(1)
    assert len(bins) == MOST_BINS
    for number in range(MOST_BINS):
        own = dealt == number
        assert own.sum() == 50
        np.testing.assert_allclose(given[own], (right[own].sum() + top[own].mean()) / 51)


@pytest.mark.parametrize(("labels", "bins"), [(3, 1), (2 * PER_BIN, 2), (5 * PER_BIN + 7, 5), (5000, MOST_BINS)])
def test_fewer_labels_make_fewer_bins(labels: int, bins: int) -> None:
    assert len(fit_bins(*over_confident(labels))) == bins


def test_it_keeps_predicted_classes_and_distributions_and_calibrates_other_images() -> None:
    bins = fit_bins(*over_confident(400))
    probabilities, labels = over_confident(4000, seed=1)
    found = apply_bins(probabilities, bins)
    np.testing.assert_allclose(found.sum(1), 1)
    assert (found >= 0).all()
    assert (found.argmax(1) == probabilities.argmax(1)).all()
    before, after = (expected_calibration_error(each, labels, 15) for each in (probabilities, found))
    assert after < before / 3


def test_certain_and_even_probabilities_get_the_confidence_of_their_bin_where_that_can_be() -> None:
    some = np.array([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0], [0.9, 0.1, 0]])
    bins = ((0.0, 0.2), (0.45, 0.7), (0.95, 0.8))
    found = apply_bins(some, bins)
    np.testing.assert_allclose(found[:3], [[0.8, 0.1, 0.1], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.3, 0.0]])
    np.testing.assert_allclose(found[3].max(), 0.7)
    assert np.isfinite(found).all()


def test_before_and_after_undo_the_temperature_first() -> None:
    raw, labels = over_confident(300)
    check = CalibrationCheck.of(raw, labels)
    assert check.temperature > 1.5
    ways = before_and_after(apply_temperature(raw, check.temperature), check)
    np.testing.assert_allclose(ways["none"], raw, atol=1e-12)
    np.testing.assert_allclose(ways["temperature"], apply_temperature(raw, check.temperature))
    np.testing.assert_allclose(ways["histogram binning"], apply_bins(raw, check.bins))
