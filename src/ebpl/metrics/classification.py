"""How often the class is right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebpl.metrics.calibration import Floats, Labels


def confusion(probabilities: Floats, labels: Labels) -> NDArray[np.int64]:
    """Counts of images by true class (rows) and predicted class (columns)."""
    classes = probabilities.shape[1]
    cells = labels * classes + probabilities.argmax(1)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def accuracy(probabilities: Floats, labels: Labels) -> float:
    """Share of images whose most probable class is the true one."""
    return float((probabilities.argmax(1) == labels).mean()) if len(labels) else float("nan")


def macro_f_score(probabilities: Floats, labels: Labels) -> float:
    """F1 of each class that occurs in truth or prediction, averaged with equal weight."""
    matrix = confusion(probabilities, labels)
    right = np.diag(matrix)
    involved = matrix.sum(0) + matrix.sum(1)
    present = involved > 0
    return float((2 * right[present] / involved[present]).mean()) if present.any() else float("nan")


def balanced_accuracy(probabilities: Floats, labels: Labels) -> float:
    """Recall of each class that occurs, averaged with equal weight: rare classes count as much as frequent ones."""
    matrix = confusion(probabilities, labels)
    there = matrix.sum(1)
    present = there > 0
    return float((np.diag(matrix)[present] / there[present]).mean()) if present.any() else float("nan")


def macro_auroc(probabilities: Floats, labels: Labels) -> float:
    """Area under the ROC curve of each class against the rest, averaged over the classes that occur.

    It is the probability that an image of the class gets a higher probability of it than another image.
    """
    found = []
    for number in range(probabilities.shape[1]):
        own = labels == number
        positive, negative = int(own.sum()), int((~own).sum())
        if positive and negative:
            _, place, counts = np.unique(probabilities[:, number], return_inverse=True, return_counts=True)
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
            found.append((ranks[own].sum() - positive * (positive + 1) / 2) / (positive * negative))
    return float(np.mean(found)) if found else float("nan")


@dataclass(frozen=True)
class ByClass:
    """Measures of each class; NaN where a class was never said (precision) or does not occur (recall)."""

    images: Labels
    predicted: Labels
    """Images that are predicted to be of the class."""
    precision: Floats
    precision_interval: list[tuple[float, float]]
    """95 % intervals (Wilson) of the precision; from 0 to 1 where a class was never said."""
    confidence: Floats
    """Mean confidence of these predictions: that of a calibrated classifier is the precision."""
    recall: Floats
    recall_interval: list[tuple[float, float]]
    """95 % intervals (Wilson) of the recall; from 0 to 1 where a class does not occur."""
    f_score: Floats


def by_class(probabilities: Floats, labels: Labels) -> ByClass:
    """How often each class was right when said, how sure that was, and how often it was found when there."""
    matrix = confusion(probabilities, labels)
    right, there, said = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    of_recall, of_precision = (
        [wilson_interval(int(found), int(total)) for found, total in zip(right, totals, strict=True)]
        for totals in (there, said)
    )
    sure = np.bincount(probabilities.argmax(1), probabilities.max(1), len(right))
    with np.errstate(invalid="ignore"):
        precision, recall = (right / said, of_precision), (right / there, of_recall)
        return ByClass(there, said, *precision, sure / said, *recall, 2 * right / (there + said))


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """95 % confidence interval of a proportion: `right` of `total` (Wilson 1927).

    >>> low, high = wilson_interval(90, 100)
    >>> round(low, 3), round(high, 3)
    (0.826, 0.945)
    """
    if total == 0:
        return 0.0, 1.0
    z = 1.959963984540054
    share, spare = right / total, z * z / total
    middle = (share + spare / 2) / (1 + spare)
    reach = z * np.sqrt(share * (1 - share) / total + spare / (4 * total)) / (1 + spare)
    return float(max(0.0, middle - reach)), float(min(1.0, middle + reach))
