"""Sentences of the page: numbers as people say them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ebpl.measuring.calibration import calibration_error_by_chance, expected_calibration_error

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
SURE = 0.9


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent; a dash where there is none.

    >>> percent(0.254), percent(None)
    ('25.4\xa0%', '–')
    """
    return "–" if value is None or not np.isfinite(value) else f"{100 * value:.{digits}f}\u00a0%"


def count(value: float) -> str:
    """A number of things, with a thin gap between thousands.

    >>> count(12345)
    '12\u202f345'
    """
    return f"{value:,.0f}".replace(",", "\u202f")


def things(value: int, one: str, many: str | None = None) -> str:
    """So many of them.

    >>> things(1, "image"), things(2, "class", "classes")
    ('1 image', '2 classes')
    """
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def points(value: float) -> str:
    """A difference of percentages."""
    return f"{abs(100 * value):.1f} percentage points"


def direction(gap: float, images: int, variance: float) -> tuple[str, str]:
    """Over- or under-confident, in one word and in a sentence; neither where so few images cannot tell.

    `gap` is the mean confidence minus the accuracy, `variance` the sum of p (1 - p) over the confidences: how far the
    number of right answers strays by chance if every confidence is true.
    """
    if abs(gap) * images <= 1.96 * variance**0.5:
        return "neither", (
            f"On average its confidence is {points(gap)} {'above' if gap > 0 else 'below'} its accuracy, "
            f"no more than chance explains with {things(images, 'image')}: neither over- nor under-confident."
        )
    word = "over-confident" if gap > 0 else "under-confident"
    return word, (
        f"It is {word}: on average it is {points(gap)} "
        f"{'surer than it is right' if gap > 0 else 'less sure than it could be'}."
    )


def calibration_error(probabilities: Floats, labels: Labels) -> str:
    """The ECE in a sentence, beside the one that chance alone would give."""
    error = expected_calibration_error(probabilities, labels)
    draws = int(np.clip(2_000_000 // max(1, len(labels)), 5, 100))
    chance = calibration_error_by_chance(probabilities.max(1), draws=draws)
    return (
        f"The expected calibration error (ECE, 15 bins) is {percent(error)}: so far are confidence and accuracy apart, "
        f"averaged over the bins. A model whose every confidence is true would show about {percent(chance)} on so many "
        "images."
    )


def sure_ones(probabilities: Floats, labels: Labels) -> str:
    """How often it is right when it is sure."""
    sure = probabilities.max(1) >= SURE
    if not sure.any():
        return f"It is nowhere {percent(SURE, 0)} sure."
    right = float((probabilities.argmax(1) == labels)[sure].mean())
    return (
        f"It is at least {percent(SURE, 0)} sure of {things(int(sure.sum()), 'image')} ({percent(sure.mean(), 0)} of "
        f"all), and right on {percent(right)} of those."
    )
