"""Histogram binning: the confidence of an image becomes the accuracy of held-out labels at such confidences.

Zadrozny and Elkan 2001, "Obtaining calibrated probability estimates from decision trees and naive Bayesian
classifiers", on the confidence in the predicted class. People add it to finished classifiers, so runs are compared
with it; it is no part of their models.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Bins = tuple[tuple[float, float], ...]
"""The confidence at which each bin begins, and the confidence that images in it get."""
PER_BIN, MOST_BINS = 20, 10
"""Labels in a bin, at least, and bins, at most. All bins have as many labels, but for rounding."""

TIE = 1e-6
"""What is at least kept of a confidence above equal probabilities, so that the predicted class stays the same."""


def fit_bins(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Bins:
    """Bins from probabilities (N, C) and labels of images that the model has not learned from.

    Each counts one more image at the mean confidence, so that a bin in which all are right is not certain.
    """
    order = np.argsort(probabilities.max(1), kind="stable")
    confidences, right = probabilities.max(1)[order], (probabilities.argmax(1) == labels)[order]
    count = max(1, min(MOST_BINS, len(labels) // PER_BIN))
    ends = [round(i * len(labels) / count) for i in range(count + 1)]
    bins = []
    for first, end in pairwise(ends):
        begins = 0.0 if first == 0 else (confidences[first - 1] + confidences[first]) / 2
        accuracy = (right[first:end].sum() + confidences[first:end].mean()) / (end - first + 1)
        bins.append((float(begins), float(accuracy)))
    return tuple(bins)


def apply_bins(probabilities: NDArray[np.float64], bins: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """Probabilities (N, C) with the confidences of their bins; the predicted class stays the same.

    A confidence is lowered by mixing with equal probabilities, and raised by mixing with the predicted class.
    """
    even, top = 1 / probabilities.shape[1], probabilities.max(1)
    begins, given = np.array(bins).T
    least = even + (top - even) * TIE
    wanted = np.maximum(given[np.searchsorted(begins, top, side="right") - 1], least)
    other = np.where(wanted < top, even, 1.0)
    kept = np.divide(wanted - other, top - other, out=np.ones_like(top), where=top != other)[:, None]
    chosen = np.eye(probabilities.shape[1])[probabilities.argmax(1)]
    return np.asarray(kept * probabilities + (1 - kept) * np.where((wanted < top)[:, None], even, chosen))
