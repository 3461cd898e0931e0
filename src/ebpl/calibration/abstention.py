"""Abstention with a promise: the lowest confidence at which the answered images have a wanted accuracy.

The promise holds with 95 % probability over the draw of the calibration labels. Thresholds are tested in an order that
is fixed before any label is seen, each by an exact binomial test (Clopper and Pearson 1934) on the calibration images
that it answers: from each of a few starts downwards, until a test fails (fixed-sequence testing). The starts share
the 5 % (Bonferroni), so that one of the promises is wrong with at most this probability. This is Learn then Test
(Angelopoulos, Bates, Candes, Jordan and Lei 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebpl.errors import DataError, UsageError, number_of
from ebpl.metrics.calibration import Floats

RISK = 0.05
"""The probability that the promise does not hold."""
STARTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
STEPS = 100
"""Of the thresholds between 0 and 1 that are tested."""
NUMBERS = sorted({math.ceil(10 * 1.05**power) for power in range(190)})
"""Of labels that could be enough, up to a hundred thousand."""


@dataclass(frozen=True)
class Abstention:
    """A threshold of confidence, and what it was found with."""

    accuracy: float
    """That was asked for."""
    threshold: float | None
    """Answer only at this confidence or above; None where nothing can be promised."""
    labels: int
    answered: int
    """Calibration images at this confidence or above; 0 without a threshold."""
    right: int
    """Those of them whose label is right."""
    needed: int | None = None
    """Without a threshold: so many labels could be enough; None if no number could."""

    def __str__(self) -> str:
        wanted = f"an accuracy of {100 * self.accuracy:g} %"
        if self.threshold is not None:
            return (
                f"images are labelled at a confidence of at least {self.threshold:.2f}, for {wanted} with 95 % "
                f"confidence; of {number_of(self.labels, 'calibration image')} this labels {self.answered}, and "
                f"{self.right} are right"
            )
        if self.needed is None:
            return f"{wanted} cannot be promised: at no confidence is the model clearly more accurate than that"
        return (
            f"{wanted} cannot be promised from {number_of(self.labels, 'label')}; about {self.needed} could be enough, "
            "if the model is as accurate on others as on these"
        )


def choose_threshold(confidences: Floats, right: NDArray[np.bool_], accuracy: float) -> Abstention:
    """The lowest threshold of confidence that promises an accuracy, from images that the model has not learned from.

    >>> confidences = np.linspace(0.5, 1, 300)
    >>> choose_threshold(confidences, confidences > 0.7, 0.9).threshold
    0.69
    """
    if not isinstance(accuracy, int | float | np.number) or not 0 < accuracy < 1:
        raise UsageError(f"accuracy is {accuracy!r}, but must be a number above 0 and below 1; 95 % is 0.95.")
    if not len(confidences):
        raise DataError("A threshold of confidence needs labelled images that the model has not learned from.")
    found: list[float] = []
    for start in STARTS:
        for number in range(round(start * STEPS), -1, -1):
            answered = confidences >= number / STEPS
            if not _passes(int(right[answered].sum()), int(answered.sum()), accuracy):
                break
            found.append(number / STEPS)
    labels = len(confidences)
    if not found:
        return Abstention(accuracy, None, labels, 0, 0, _needed(confidences, right, accuracy))
    answered = confidences >= min(found)
    return Abstention(accuracy, min(found), labels, int(answered.sum()), int(right[answered].sum()))


def _passes(right: int, answered: int, accuracy: float) -> bool:
    """Whether so many right ones would be improbable at a lower accuracy."""
    from scipy.special import betainc

    return bool(right > 0 and betainc(right, answered - right + 1, accuracy) <= RISK / len(STARTS))


def _needed(confidences: Floats, right: NDArray[np.bool_], accuracy: float) -> int | None:
    """Labels with which a start would pass, at the accuracy and share of answers that it has in these."""
    found = []
    for start in STARTS:
        answered = confidences >= start
        count, hits = int(answered.sum()), int(right[answered].sum())
        enough = (n for n in NUMBERS if count and _passes(math.floor(hits / count * n), n, accuracy))
        if (number := next(enough, None)) is not None:
            found.append(math.ceil(number * len(confidences) / count))
    return min(found, default=None)
