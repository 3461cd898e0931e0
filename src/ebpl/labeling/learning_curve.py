"""What more labels are likely to bring: accuracy by the number of labels, from fewer of those that there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebpl.devices import threads
from ebpl.errors import number_of
from ebpl.labeling.label_errors import FOLDS, Labelled, Labels, best_decay, deal, fitted_together
from ebpl.rng import derived_seed

Floats = NDArray[np.float64]
SHARES = (0.3, 0.45, 0.65, 1.0)
"""Of the labels that are not held out: so many are learned from."""
REPEATS, MOST_FITS = 8, 200_000
"""How often folds are dealt and labels drawn anew; less often where there are many, so that the sum of labels that are
learned from stays below this."""
DRAWS = 400
POWERS = np.arange(0.1, 1.55, 0.1)
"""Exponents of the power law to choose from."""
LEAST, LEAST_OF_CLASS = 30, 4
"""Fewer labels, or fewer of a class, tell no curve."""
MORE = 50
ENDS = (0.05, 0.95)
"""Of the interval that the gain is in nine times of ten."""


@dataclass(frozen=True)
class LearningCurve:
    """Accuracy by the number of labels, measured by cross-validation up to those that there are, and beyond."""

    labels: int
    sizes: tuple[int, ...]
    """Labels that were learned from."""
    accuracies: tuple[float, ...]
    """Their mean accuracy on labels that were held out."""
    curve: tuple[tuple[int, float, float, float], ...]
    """Labels, accuracy and its interval, by the fitted law."""
    more: int
    gain: float
    """What so many more labels add to the accuracy."""
    interval: tuple[float, float]
    """That nine of ten gains are in."""

    def __str__(self) -> str:
        """What more labels are likely to bring, in a sentence.

        >>> str(LearningCurve(100, (), (), (), 50, 0.012, (-0.004, 0.031)))
        'The next 50 labels are likely to change accuracy by −0.4 to +3.1 percentage points (nine times of ten).'
        """
        low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in self.interval)
        more = number_of(self.more, "label is", "labels are")
        return f"The next {more} likely to change accuracy by {low} to {high} percentage points (nine times of ten)."


def more_labels(known: Labelled) -> tuple[LearningCurve | None, str]:
    """The learning curve of the labels of a run, and what it says, or why there is none."""
    if len(known.rows) > 1:
        return None, (
            "How accuracy depends on the number of labels was not measured: the network would have to be trained again "
            "on fewer of them. It is measured for runs on the features of an encoder."
        )
    curve = learning_curve(known.rows[0], known.images.labels, known.seed)
    few = f"It takes {LEAST} labels, and {LEAST_OF_CLASS} of each class."
    return curve, str(curve) if curve else f"What more labels would bring cannot be told from so few. {few}"


def learning_curve(rows: NDArray[np.float32], labels: Labels, seed: int = 0, more: int = MORE) -> LearningCurve | None:
    """The curve of logistic regression on features (N, D); None where there are too few labels to tell.

    Accuracy is one minus an error of a + b n^-c, a and b not negative. It is fitted to accuracies of cross-validation
    with all labels that are not held out, and with some of them. The interval is by bootstrap over the images and over
    the draws, and holds the chance of which images are labelled next.
    """
    counts = np.unique(labels, return_counts=True)[1]
    if len(labels) < LEAST or len(counts) < 2 or counts.min() < LEAST_OF_CLASS:
        return None
    numbers = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    random = np.random.RandomState(derived_seed(seed, "learning curve") % 2**32)
    with threads(1):
        sizes, right = _measured(torch.from_numpy(rows), numbers, random)
    at = np.unique(np.concatenate([sizes, np.linspace(sizes[0], len(labels) + 2 * more, 30).astype(int)]))
    at = np.unique(np.append(at, [len(labels), len(labels) + more]))
    images, draws = (random.randint(count, size=(DRAWS, count)) for count in (len(labels), len(right)))
    drawn = np.stack([right[draw][:, :, image].mean((0, 2)) for draw, image in zip(draws, images, strict=True)])
    found = fitted(sizes, np.concatenate([right.mean((0, 2))[None], drawn]), at)
    now, then = np.searchsorted(at, [len(labels), len(labels) + more])
    gains = found[:, then] - found[:, now]
    noise = _noise(right)
    low, high = np.quantile(gains[1:] + noise * random.standard_normal(DRAWS), ENDS)
    ends = np.quantile(found[1:], ENDS, axis=0)
    curve = tuple((int(n), float(found[0, i]), float(ends[0, i]), float(ends[1, i])) for i, n in enumerate(at))
    accuracies = tuple(right.mean((0, 2)).tolist())
    return LearningCurve(
        len(labels), tuple(sizes.tolist()), accuracies, curve, more, float(gains[0]), (float(low), float(high))
    )


def _measured(rows: Tensor, labels: Labels, random: np.random.RandomState) -> tuple[Labels, NDArray[np.bool_]]:
    """Numbers of labels, and which images are right after learning from so many others: (repeats, numbers, images)."""
    count = len(labels)
    sizes = np.array([round(share * count * (FOLDS - 1) / FOLDS) for share in SHARES], np.int64)
    decay = best_decay(rows, labels, deal(labels, random))[0]
    repeats = int(np.clip(MOST_FITS // (FOLDS * sizes.sum()), 2, REPEATS))
    right = np.zeros((repeats, len(sizes), count), bool)
    for repeat in range(repeats):
        part = deal(labels, random)
        orders = [random.permutation(np.flatnonzero(part != fold)) for fold in range(FOLDS)]
        learned = [order[:size] for size in sizes for order in orders]
        said = fitted_together(rows, labels, learned, [decay] * len(learned)).argmax(2).T.numpy()
        hits = (said == labels).reshape(len(sizes), FOLDS, count)
        right[repeat] = hits[:, part, np.arange(count)]
    return sizes, right


def _noise(right: NDArray[np.bool_]) -> float:
    """How much an accuracy depends on which images are labelled: the spread over draws of some of the labels."""
    return float(right.mean(2)[:, -2:].std(0, ddof=1).mean()) if len(right) > 1 else 0.0


def fitted(sizes: Labels, accuracies: Floats, at: Labels) -> Floats:
    """Accuracies (draws, at) of the power law that fits each row of accuracies (draws, sizes) best."""
    best, kept = np.full(len(accuracies), np.inf), np.zeros((len(accuracies), len(at)))
    errors, weights = 1 - accuracies, np.sqrt(sizes)
    weights = weights / weights.sum()
    for power in POWERS:
        x, there = sizes**-power, at**-power
        middle, mean = (weights * x).sum(), (weights * errors).sum(1)
        slope = ((weights * (x - middle)) * (errors - mean[:, None])).sum(1) / (weights * (x - middle) ** 2).sum()
        slope = np.clip(slope, 0, mean / middle)  # so that neither falls below 0
        start = mean - slope * middle
        loss = (weights * (errors - start[:, None] - slope[:, None] * x) ** 2).sum(1)
        better = loss < best - 1e-12
        best[better] = loss[better]
        kept[better] = 1 - (start[:, None] + slope[:, None] * there)[better]
    return kept
