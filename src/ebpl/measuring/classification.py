"""How often the class is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ebpl.measuring.calibration import Floats, Labels


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
