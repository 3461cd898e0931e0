import time

import numpy as np
import pytest

from ebpl.metrics import METRICS, Metric, measure, register_metric
from ebpl.metrics.calibration import Floats, Labels
from ebpl.metrics.classification import wilson_interval
from ebpl.metrics.intervals import WITHOUT, interval_in_words, intervals


def answers(count: int, temperature: float = 1.0, seed: int = 0) -> tuple[Floats, Labels]:
    """Probabilities that are true at a temperature of 1, and labels drawn by them."""
    random = np.random.default_rng(seed)
    scores = 2.5 * random.normal(size=(count, 4))
    true = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    labels = (random.random((count, 1)) >= np.cumsum(true, 1)[:, :-1]).sum(1)
    said = np.exp(scores / temperature)
    return said / said.sum(1, keepdims=True), labels


def test_every_metric_but_counts_and_variants_has_an_interval_around_its_value() -> None:
    found, values = intervals(*answers(300)), measure(*answers(300))
    assert found.keys() == METRICS.keys() - set(WITHOUT)
    for name, (low, high) in found.items():
        assert low <= values[name] <= high, name
        assert low < high, name


def test_the_interval_of_accuracy_is_wilsons() -> None:
    probabilities, labels = answers(80)
    right = int((probabilities.argmax(1) == labels).sum())
    assert intervals(probabilities, labels)["accuracy"] == wilson_interval(right, 80)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_nearly_all_intervals_hold_the_true_value(temperature: float) -> None:
    true = measure(*answers(100_000, temperature, seed=99))
    if temperature == 1:
        true["ece"] = 0.0  # as it would be with images without end
    found = [intervals(*answers(200, temperature, seed)) for seed in range(40)]
    for name in found[0]:
        hits = sum(ends[name][0] <= true[name] <= ends[name][1] for ends in found)
        assert hits >= 33, name


@pytest.mark.parametrize("name", ["accuracy", "f_score", "ece", "nll", "brier"])
def test_four_times_the_images_make_it_half_as_wide_also_where_not_all_are_drawn(name: str) -> None:
    widths = [np.subtract(*intervals(*answers(count, 0.5))[name][::-1]) for count in (400, 1600, 6400)]
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.35)
    assert widths[1] / widths[2] == pytest.approx(2, rel=0.35)


def test_the_same_images_give_the_same_intervals_and_unlabelled_ones_do_not_count() -> None:
    probabilities, labels = answers(60)
    more = np.concatenate([probabilities, probabilities[:5]]), np.concatenate([labels, np.full(5, -1)])
    assert intervals(probabilities, labels) == intervals(*more)


def test_where_nothing_varies_there_is_no_interval() -> None:
    probabilities, labels = np.tile([[0.9, 0.1], [0.1, 0.9]], (4, 1)), np.tile([0, 1], 4)
    found = intervals(probabilities, labels)
    assert "f_score" not in found
    assert found["accuracy"] == wilson_interval(8, 8)
    assert intervals(probabilities[:0], labels[:0]) == {}


def test_a_metric_that_is_registered_gets_one_too() -> None:
    register_metric(Metric("toy", "mean of the first class", lambda said, _: float(said[:, 0].mean())))
    try:
        low, high = intervals(*answers(50))["toy"]
    finally:
        del METRICS["toy"]
    assert 0 < low < high < 1


def test_it_is_quick() -> None:
    many = answers(20_000)
    begun = time.process_time()
    intervals(*many)
    assert time.process_time() - begun < 5


def test_an_interval_reads_as_its_metric_does() -> None:
    assert interval_in_words("overconfidence", (-0.01, 0.02)) == "-1.0 to +2.0 %"
    assert interval_in_words("brier", (0.1, 0.25)) == "0.100 to 0.250"
    assert interval_in_words("f_score", None) == ""
