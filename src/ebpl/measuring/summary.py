"""All measures of a set of predictions at once."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from ebpl.measuring import calibration, classification
from ebpl.measuring.calibration import Floats, Labels


def measure(probabilities: Floats, labels: Labels) -> dict[str, float]:
    """Every measure by name, as fractions of one; images without a label (-1) are left out."""
    known = labels >= 0
    probabilities, labels = probabilities[known], labels[known]
    return {
        "images": float(len(labels)),
        "accuracy": classification.accuracy(probabilities, labels),
        "f_score": classification.macro_f_score(probabilities, labels),
        "ece": calibration.expected_calibration_error(probabilities, labels, 15),
        "ece_10_bins": calibration.expected_calibration_error(probabilities, labels, 10),
        "adaptive_ece": calibration.adaptive_calibration_error(probabilities, labels),
        "classwise_ece": calibration.classwise_calibration_error(probabilities, labels),
        "overconfidence": calibration.overconfidence(probabilities, labels),
        "nll": calibration.negative_log_likelihood(probabilities, labels),
        "brier": calibration.brier_score(probabilities, labels),
        "aurc": calibration.area_under_risk_coverage(probabilities, labels),
    }


NAMES = {
    "images": "labelled images",
    "accuracy": "accuracy",
    "f_score": "macro F-score",
    "ece": "ECE, 15 bins",
    "ece_10_bins": "ECE, 10 bins",
    "adaptive_ece": "adaptive ECE",
    "classwise_ece": "class-wise ECE",
    "overconfidence": "confidence minus accuracy",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "aurc": "area under risk-coverage",
}
_PERCENT = {"accuracy", "f_score", "ece", "ece_10_bins", "adaptive_ece", "classwise_ece", "overconfidence", "aurc"}


def spread(results: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation (of a sample, so n - 1; 0 for a single one) of each measure over several results."""
    columns = {name: [result[name] for result in results] for name in results[0]}
    return {name: (fmean(values), stdev(values) if len(values) > 1 else 0.0) for name, values in columns.items()}


def as_number(name: str, *values: float) -> tuple[str, list[str]]:
    """A measure's title with its unit, and values of it as bare numbers, for a table with many columns."""
    if name == "images":
        return NAMES[name], [f"{value:.0f}" for value in values]
    if name not in _PERCENT:
        return NAMES[name], [f"{value:.3f}" for value in values]
    return f"{NAMES[name]} %", [f"{100 * value:.1f}" for value in values]


def in_words(name: str, value: float) -> str:
    """A measure as people read it: a percentage where it is one, with the direction of a wrong confidence."""
    if name == "images":
        return f"{value:.0f}"
    if name not in _PERCENT:
        return f"{value:.3f}"
    text = f"{100 * value:.1f} %"
    if name == "overconfidence":
        text = f"{100 * value:+.1f} % ({'over' if value > 0 else 'under'})"
    return text


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


def accuracy_at_coverage(bins: Sequence[dict[str, Any]], coverage: float) -> float | None:
    """Accuracy of this share of the images, the most confident ones, from the table that `by_bin` makes.

    Images of one bin are taken for alike, so it is exact where the coverage ends with a bin.
    """
    wanted = coverage * sum(row["images"] for row in bins)
    right = taken = 0.0
    for row in sorted(bins, key=lambda row: -row["above"]):
        part = min(row["images"], wanted - taken)
        if part > 0:
            right, taken = right + part * row["accuracy"], taken + part
    return right / taken if taken else None
