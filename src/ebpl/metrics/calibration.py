"""Calibration: does a confidence of 60 % mean right in 60 % of the cases?

Every function takes probabilities (N, C) and true labels (N); empty input gives NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ReliabilityBins:
    """Bins of confidence (a, b] with what fell into them; accuracy and confidence of an empty bin are NaN."""

    edges: Floats
    counts: Labels
    accuracy: Floats
    confidence: Floats


def _bins(values: Floats, hits: NDArray[np.bool_], edges: Floats) -> ReliabilityBins:
    """Bin values into (edge_i, edge_{i+1}]; a value at or below the first edge counts in the first bin."""
    count = len(edges) - 1
    index = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, count - 1)
    counts = np.bincount(index, minlength=count)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(index, hits, count) / counts
        confidence = np.bincount(index, values, count) / counts
    return ReliabilityBins(edges, counts, accuracy, confidence)


def _gap(bins: ReliabilityBins) -> float:
    total = bins.counts.sum()
    if total == 0:
        return float("nan")
    filled = bins.counts > 0
    distance = np.abs(bins.accuracy - bins.confidence)[filled]
    return float((bins.counts[filled] * distance).sum() / total)


def reliability(probabilities: Floats, labels: Labels, bins: int = 15) -> ReliabilityBins:
    """Equal-width bins I_m = ((m - 1) / M, m / M] of the confidence, as the paper defines them."""
    hits = probabilities.argmax(1) == labels
    return _bins(probabilities.max(1), hits, np.linspace(0, 1, bins + 1))


def expected_calibration_error(probabilities: Floats, labels: Labels, bins: int = 15) -> float:
    """ECE: mean distance of accuracy and confidence over the bins, weighted by how many images are in each."""
    return _gap(reliability(probabilities, labels, bins))


def calibration_error_by_chance(confidences: Floats, bins: int = 15, draws: int = 100) -> float:
    """The mean ECE of a perfectly calibrated model on this number of images.

    Bins are never exact with few images, so an ECE near this says nothing against the model.
    """
    if len(confidences) == 0:
        return float("nan")
    random = np.random.default_rng(0)
    edges = np.linspace(0, 1, bins + 1)
    gaps = [_gap(_bins(confidences, random.random(len(confidences)) < confidences, edges)) for _ in range(draws)]
    return float(np.mean(gaps))


def adaptive_calibration_error(probabilities: Floats, labels: Labels, bins: int = 15) -> float:
    """ECE with bins that hold equally many images each (Nixon et al. 2019, for the top label)."""
    if len(labels) == 0:
        return float("nan")
    confidence = probabilities.max(1)
    hits = probabilities.argmax(1) == labels
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    distance = [len(part) * abs(hits[part].mean() - confidence[part].mean()) for part in parts]
    return float(sum(distance) / len(labels))


def classwise_calibration_error(probabilities: Floats, labels: Labels, bins: int = 15) -> float:
    """Mean over the classes of the ECE of "is it this class?" (Kull et al. 2019)."""
    edges = np.linspace(0, 1, bins + 1)
    gaps = [_gap(_bins(probabilities[:, c], labels == c, edges)) for c in range(probabilities.shape[1])]
    return float(np.mean(gaps))


def overconfidence(probabilities: Floats, labels: Labels) -> float:
    """Mean confidence minus accuracy: above zero over-confident, below zero under-confident."""
    if len(labels) == 0:
        return float("nan")
    return float(probabilities.max(1).mean() - (probabilities.argmax(1) == labels).mean())


def negative_log_likelihood(probabilities: Floats, labels: Labels) -> float:
    """Mean of -log p(true class)."""
    if len(labels) == 0:
        return float("nan")
    true = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(true, np.finfo(np.float64).tiny)).mean())


def brier_score(probabilities: Floats, labels: Labels) -> float:
    """Mean squared distance of the probabilities from the one-hot truth, summed over the classes."""
    if len(labels) == 0:
        return float("nan")
    return float(np.square(probabilities - np.eye(probabilities.shape[1])[labels]).sum(1).mean())


def risk_coverage(probabilities: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """Coverage and error rate when only the k most confident images are answered, k = 1 ... N."""
    order = np.argsort(-probabilities.max(1), kind="stable")
    errors = np.cumsum(probabilities.argmax(1)[order] != labels[order])
    answered = np.arange(1, len(labels) + 1)
    return answered / max(1, len(labels)), errors / answered


def area_under_risk_coverage(probabilities: Floats, labels: Labels) -> float:
    """Mean error rate over all coverages: low when the errors are the least confident answers."""
    if len(labels) == 0:
        return float("nan")
    return float(risk_coverage(probabilities, labels)[1].mean())
