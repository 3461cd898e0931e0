"""Metrics of a set of predictions, in one registry: tables, schema, report and documentation are made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any

from ebpl.metrics import calibration, classification
from ebpl.metrics.calibration import Floats, Labels


@dataclass(frozen=True)
class Metric:
    """A number that says how good probabilities (N, C) are for true labels (N)."""

    name: str
    """In files and in Python."""
    title: str
    """In tables."""
    compute: Callable[[Floats, Labels], float]
    percent: bool = True
    """Whether it is a fraction of one, shown in per cent."""
    lower_is_better: bool = False
    distance: bool = False
    """Whether it is 0 only where every probability is true, so that few images make it larger than it is."""


METRICS: dict[str, Metric] = {}


def register_metric(metric: Metric) -> None:
    """Add a metric: from then on every evaluation computes it, and tables show it."""
    METRICS[metric.name] = metric


_ECE, _DISTANCE = calibration.expected_calibration_error, {"lower_is_better": True, "distance": True}
for _metric in (
    Metric("images", "labelled images", lambda _, labels: float(len(labels)), percent=False),
    Metric("accuracy", "accuracy", classification.accuracy),
    Metric("balanced_accuracy", "balanced accuracy", classification.balanced_accuracy),
    Metric("f_score", "macro F-score", classification.macro_f_score),
    Metric("auroc", "AUROC, one against rest", classification.macro_auroc),
    Metric("ece", "ECE, 15 bins", partial(_ECE, bins=15), **_DISTANCE),
    Metric("ece_10_bins", "ECE, 10 bins", partial(_ECE, bins=10), **_DISTANCE),
    Metric("adaptive_ece", "adaptive ECE", calibration.adaptive_calibration_error, **_DISTANCE),
    Metric("classwise_ece", "class-wise ECE", calibration.classwise_calibration_error, **_DISTANCE),
    Metric("overconfidence", "confidence minus accuracy", calibration.overconfidence),
    Metric("nll", "negative log-likelihood", calibration.negative_log_likelihood, percent=False, lower_is_better=True),
    Metric("brier", "Brier score", calibration.brier_score, percent=False, lower_is_better=True),
    Metric("aurc", "area under risk-coverage", calibration.area_under_risk_coverage, lower_is_better=True),
):
    register_metric(_metric)


def measure(probabilities: Floats, labels: Labels) -> dict[str, float]:
    """Every metric by name, as fractions of one; images without a label (-1) are left out."""
    known = labels >= 0
    probabilities, labels = probabilities[known], labels[known]
    return {name: metric.compute(probabilities, labels) for name, metric in METRICS.items()}


def title_of(name: str) -> str:
    """A metric as tables call it."""
    return METRICS[name].title


def spread(results: Sequence[dict[str, float | None]]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation (of a sample, so n - 1; 0 for a single one) of each metric over several results.

    A metric that one of them lacks is left out.
    """
    columns = {name: [result.get(name) for result in results] for name in results[0]}
    whole = {name: _known(values) for name, values in columns.items() if None not in values}
    return {name: (fmean(values), stdev(values) if len(values) > 1 else 0.0) for name, values in whole.items()}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def as_number(name: str, *values: float) -> tuple[str, list[str]]:
    """A metric's title with its unit, and values of it as bare numbers, for a table with many columns."""
    metric = METRICS[name]
    if metric.percent:
        return f"{metric.title} %", [f"{100 * value:.1f}" for value in values]
    return metric.title, [f"{value:.0f}" if name == "images" else f"{value:.3f}" for value in values]


def in_words(name: str, value: float | None, direction: str | None = None) -> str:
    """A metric as people read it: a percentage where it is one, with the direction of a wrong confidence if given."""
    if value is None:
        return "–"
    if name == "images":
        return f"{value:.0f}"
    if not METRICS[name].percent:
        return f"{value:.3f}"
    if name == "overconfidence":
        word = "within chance" if direction == "neither" else direction
        return f"{100 * value:+.1f} %" + (f" ({word})" if word else "")
    return f"{100 * value:.1f} %"


def confidence_direction(gap: float | None, bins: Any) -> str | None:
    """Whether a model is over-confident ("over"), under-confident ("under"), or chance explains it ("neither").

    `gap` is the mean confidence minus the accuracy, `bins` the table of `by_bin`; None where there is none. The number
    of right answers strays by chance even if every confidence is true; further than that in 5 % of the cases.
    """
    filled = [row for row in bins if row["images"] and row["confidence"] is not None] if bins else []
    images = sum(row["images"] for row in filled)
    if gap is None or not images:
        return None
    variance = sum(row["images"] * row["confidence"] * (1 - row["confidence"]) for row in filled)
    if abs(gap) * images <= 1.96 * max(variance, 0.0) ** 0.5:
        return "neither"
    return "over" if gap > 0 else "under"


def by_bin(probabilities: Floats, labels: Labels, bins: int = 15) -> list[dict[str, Any]]:
    """The reliability diagram as a table, for JSON."""
    known = labels >= 0
    found = calibration.reliability(probabilities[known], labels[known], bins)
    return [
        {
            "above": float(found.edges[i]),
            "up_to": float(found.edges[i + 1]),
            "images": int(found.counts[i]),
            "accuracy": float(found.accuracy[i]),
            "confidence": float(found.confidence[i]),
        }
        for i in range(bins)
    ]
