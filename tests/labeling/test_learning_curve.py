import time

import numpy as np
import pytest

from ebpl.labeling.learning_curve import LEAST, LEAST_OF_CLASS, fitted, learning_curve


def features(count: int, seed: int = 0, classes: int = 4, distance: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Rows in one cloud a class, in many directions of which few tell anything."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centers = distance * np.random.default_rng(99).normal(size=(classes, 30)) * (np.arange(30) < 6)
    return (centers[labels] + random.normal(size=(count, 30))).astype(np.float32), labels.astype(np.int64)


def test_the_power_law_is_found_again() -> None:
    sizes = np.array([20, 40, 80, 160])
    true = 1 - (0.1 + 2 * sizes**-0.7)
    at = np.array([20, 320, 1000])
    assert fitted(sizes, true[None], at)[0] == pytest.approx(1 - (0.1 + 2 * at**-0.7), abs=1e-6)


def test_more_labels_never_make_the_fitted_accuracy_lower_nor_higher_than_one() -> None:
    sizes, at = np.array([20, 40, 80, 160]), np.array([20, 200, 10_000_000])
    falling, rising = np.array([0.8, 0.7, 0.6, 0.5]), np.array([0.2, 0.6, 0.9, 0.99])
    found = fitted(sizes, np.stack([falling, rising]), at)
    assert (np.diff(found, axis=1) >= -1e-12).all()
    assert found.max() <= 1
    assert found[0] == pytest.approx(found[0, 0])


def test_the_curve_rises_to_what_more_labels_reach() -> None:
    rows, labels = features(120)
    curve = learning_curve(rows, labels)
    assert curve is not None
    assert curve.labels == 120
    assert curve.sizes[-1] == 96
    assert curve.accuracies[0] < curve.accuracies[-1]
    low, high = curve.interval
    assert low <= curve.gain <= high
    assert curve.more == 50
    assert [n for n, *_ in curve.curve] == sorted({n for n, *_ in curve.curve})
    assert all(lower <= mean + 0.05 and mean - 0.05 <= upper for _, mean, lower, upper in curve.curve)


def test_with_many_labels_little_is_promised_and_with_few_the_interval_is_wide() -> None:
    few, many = learning_curve(*features(40)), learning_curve(*features(600))
    assert few is not None
    assert many is not None
    assert many.gain < few.gain
    assert np.subtract(*many.interval[::-1]) < np.subtract(*few.interval[::-1]) / 2


def test_the_same_labels_give_the_same_curve() -> None:
    assert learning_curve(*features(60), seed=3) == learning_curve(*features(60), seed=3)


def test_too_few_labels_tell_no_curve() -> None:
    rows, labels = features(LEAST - 1)
    assert learning_curve(rows, labels) is None
    rows, labels = features(100)
    labels = np.where(np.arange(100) < LEAST_OF_CLASS - 1, 5, labels)
    assert learning_curve(rows, labels) is None
    assert learning_curve(rows, np.zeros(100, np.int64)) is None


def test_many_labels_take_seconds() -> None:
    begun = time.process_time()
    assert learning_curve(*features(3000)) is not None
    assert time.process_time() - begun < 60
