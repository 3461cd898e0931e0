"""How far a number that was measured on few images may be off: 95 % intervals of metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ebpl.metrics import METRICS, Metric, classification
from ebpl.metrics.calibration import Floats, Labels

DRAWS, MOST = 200, 2000
"""Resamplings, and the images of each at most. Of more images, so many are drawn, and the deviations are scaled by the
root of the ratio (m out of n bootstrap), so that it takes no longer."""
ENDS = (0.025, 0.975)
WITHOUT = ("images", "ece_10_bins", "adaptive_ece", "classwise_ece")
"""Metrics that get none: a count, and variants of ECE."""

Intervals = dict[str, tuple[float, float]]


def intervals(probabilities: Floats, labels: Labels) -> Intervals:
    """95 % intervals of metrics by name: Wilson's for accuracy, for the others by bootstrap over the images.

    Images without a label (-1) are left out, and so are metrics that have no spread to judge by, as the F-score without
    a single error. The same images always give the same intervals.

    >>> said, true = np.tile([[0.8, 0.2], [0.4, 0.6]], (50, 1)), np.tile([0, 1, 0, 1, 1, 0, 0, 1, 0, 0], 10)
    >>> low, high = intervals(said, true)["accuracy"]
    >>> round(low, 2), round(high, 2)
    (0.6, 0.78)
    """
    known = labels >= 0
    probabilities, labels = probabilities[known], labels[known]
    if not len(labels):
        return {}
    drawn = np.random.default_rng(0).integers(len(labels), size=(DRAWS, min(MOST, len(labels))))
    metrics = {name: metric for name, metric in METRICS.items() if name not in WITHOUT}
    found = {name: _bootstrapped(metric, probabilities, labels, drawn) for name, metric in metrics.items()}
    right = int((probabilities.argmax(1) == labels).sum())
    found["accuracy"] = classification.wilson_interval(right, len(labels))
    return {name: ends for name, ends in found.items() if ends is not None}


def _bootstrapped(metric: Metric, probabilities: Floats, labels: Labels, drawn: Labels) -> tuple[float, float] | None:
    """The interval by resampling; None where there is no spread."""
    value = metric.compute(probabilities, labels)
    values = np.array([metric.compute(probabilities[at], labels[at]) for at in drawn])
    if not np.isfinite([value, *values]).all() or np.ptp(values) == 0:
        return None
    scale = np.sqrt(drawn.shape[1] / len(labels))
    below, above = scale * (np.quantile(values, ENDS) - value)
    if not metric.distance:
        return float(min(value + below, value)), float(max(value + above, value))
    # a resampling adds to a distance what few images have added to it already, so its deviations are mirrored
    by_chance = scale * np.quantile(_by_chance(metric, probabilities, drawn), ENDS[1])
    low = value - above if value > by_chance else 0.0
    return float(np.clip(low, 0, value)), float(np.clip(value - below, value, 1))


def _by_chance(metric: Metric, probabilities: Floats, drawn: Labels) -> Floats:
    """Values of the metric were every probability true."""
    random, below = np.random.default_rng(1), np.cumsum(probabilities, axis=1)
    found = []
    for at in drawn:
        labels = (random.random((len(at), 1)) * below[at, -1:] >= below[at, :-1]).sum(1)
        found.append(metric.compute(probabilities[at], labels))
    return np.array(found)


def interval_in_words(name: str, ends: Sequence[float] | None) -> str:
    """An interval as people read it: in per cent where the metric is; nothing where there is none.

    >>> [interval_in_words(*each) for each in (("accuracy", (0.871, 0.92)), ("nll", (0.3, 0.41)), ("ece", None))]
    ['87.1 to 92.0 %', '0.300 to 0.410', '']
    """
    if ends is None:
        return ""
    low, high = ends
    if not METRICS[name].percent:
        return f"{low:.3f} to {high:.3f}"
    sign = "+" if name == "overconfidence" else ""
    return f"{100 * low:{sign}.1f} to {100 * high:{sign}.1f} %"
