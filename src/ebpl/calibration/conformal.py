"""Prediction sets: for each image the classes that hold the true one with a wanted probability.

Split conformal prediction: a score says how badly a class fits an image. Of n labelled images that the model has not
learned from, the score at rank (n + 1) * coverage, rounded up, is the threshold; a set holds every class whose score is
not above it. Where new images are drawn as the labelled ones were, sets hold the true class with at least this
probability, whatever the model (Vovk, Gammerman and Shafer 2005). The scores are LAC (Sadinle, Lei and Wasserman 2019),
APS (Romano, Sesia and Candes 2020) and RAPS (Angelopoulos, Bates, Malik and Jordan 2021).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration import apply_temperature, likeliest_temperature
from ebpl.errors import DataError, UsageError, did_you_mean, number_of, some_of
from ebpl.metrics.calibration import Floats, Labels
from ebpl.metrics.classification import wilson_interval

METHODS = {
    "lac": "one minus the probability of the class: the smallest sets",
    "aps": "the probability of all more probable classes: larger sets for difficult images, and none that is empty",
    "raps": "the same, with a penalty on each class after the second: no very large sets",
    "random-aps": "APS with a random share of the probability of the class itself, for an exact coverage",
    "random-raps": "RAPS in the same way",
}
PENALTY = 0.1
"""Of RAPS, for each more probable class but the first. With few labels there is nothing to choose it with."""
UNLABELLED_WEIGHT = 200
"""Labels that the unlabelled images count as, however many they are: with more labels, these decide."""
TEMPERATURE_SCALE = 0.2
"""Deviation of the log-temperature from 0 before any label is seen."""
_ROUNDING = 1e-9
Inside = NDArray[np.bool_]


def scores(probabilities: Floats, method: str = "lac", random: np.random.Generator | None = None) -> Floats:
    """How badly each class (N, C) fits each image: the higher, the worse. Random methods draw a number an image.

    >>> scores(np.array([[0.5, 0.3, 0.2]]), "lac").round(2).tolist()
    [[0.5, 0.7, 0.8]]
    >>> scores(np.array([[0.5, 0.3, 0.2]]), "aps").round(2).tolist()
    [[0.0, 0.5, 0.8]]
    """
    check_method(method)
    if method == "lac":
        return 1 - probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranks = np.argsort(order, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(probabilities, order, 1), axis=1)
    found: Floats = np.maximum(np.take_along_axis(sums, ranks, 1) - probabilities, 0.0)
    if method.startswith("random"):
        assert random is not None, "a random method needs a generator"
        found = found + random.random((len(found), 1)) * probabilities
    return found + PENALTY * np.maximum(ranks - 1, 0) if method.endswith("raps") else found


def check_method(method: str) -> None:
    """Raise where there is no such score."""
    if method not in METHODS:
        raise UsageError(f"There is no set method {method!r}. {did_you_mean(method, METHODS)}")


def least_labels(coverage: float) -> int:
    """Labels that a coverage needs: with fewer, every class is in every set.

    >>> least_labels(0.9), least_labels(0.95)
    (9, 19)
    """
    return max(1, math.ceil(1 / (1 - coverage) - 1 - _ROUNDING))


def quantile(values: Floats, coverage: float) -> float:
    """The threshold of split conformal prediction from the scores of n true classes; infinite if they are too few.

    >>> quantile(np.arange(1.0, 20.0), 0.9), quantile(np.arange(8.0), 0.9)
    (18.0, inf)
    """
    rank = math.ceil((len(values) + 1) * coverage - _ROUNDING)
    return float(np.sort(values)[rank - 1]) if rank <= len(values) else math.inf


def weighted_quantile(values: Floats, weights: Floats, mass: float) -> float:
    """The lowest value up to which there is this much weight; infinite if there is less in all."""
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), mass - _ROUNDING))
    return float(values[order][place]) if place < len(values) else math.inf


@dataclass(frozen=True)
class PredictionSets:
    """Thresholds from labelled images, and what is known of them."""

    coverage: float
    method: str
    by_class: bool
    thresholds: Floats
    """Of each class; infinite where there were too few labels, so that the class is in every set."""
    counts: Labels
    """Labels of each class that they were found with."""
    unlabelled: int = 0
    """Unlabelled images that they were found with."""

    def contains(self, probabilities: Floats, random: np.random.Generator | None = None) -> Inside:
        """Which classes (N, C) are in the set of each image."""
        if not len(probabilities):
            return np.zeros(probabilities.shape, bool)
        return np.asarray(scores(probabilities, self.method, random or generator()) <= self.thresholds)

    @property
    def likely(self) -> tuple[float, float]:
        """Where the coverage of new images is in 90 of 100 draws of as many labels; on average it is as wanted.

        Given the labels it has a beta distribution (Vovk 2012).
        """
        from scipy.special import betaincinv

        count = int(self.counts.sum())
        rank = min(count, math.ceil((count + 1) * self.coverage - _ROUNDING))
        low, high = (float(betaincinv(rank, count + 1 - rank, share)) for share in (0.05, 0.95))
        return low, high

    def too_few(self, classes: Sequence[str]) -> list[str]:
        """The classes that are in every set, since they have too few labels."""
        return [name for name, limit in zip(classes, self.thresholds, strict=True) if math.isinf(limit)]


def generator(probabilities: Floats | None = None) -> np.random.Generator:
    """What random methods draw from: the same images in the same order get the same sets.

    For calibration it depends on the probabilities, so that the numbers differ from draw to draw of the labels.
    """
    return np.random.default_rng(0 if probabilities is None else zlib.crc32(probabilities.tobytes()))


def calibrate(
    probabilities: Floats,
    labels: Labels,
    coverage: float,
    method: str = "lac",
    *,
    by_class: bool = False,
    unlabelled: Floats | None = None,
) -> PredictionSets:
    """Thresholds from the probabilities (N, C) and labels of images that the model has not learned from.

    `by_class` promises the coverage within each class (Mondrian), and needs as many labels of each.

    With the probabilities of `unlabelled` images the thresholds vary less from draw to draw of few labels. The model's
    probabilities, at the temperature that the labels make likely, tell how probable each class of each unlabelled image
    is, so each counts as labelled with all classes in these shares; together they count as `UNLABELLED_WEIGHT` labels.
    The guarantee then holds as far as these probabilities do, and for any model only as labels become many.
    """
    check_coverage(coverage)
    known = np.flatnonzero(labels >= 0)
    probabilities, labels = probabilities[known], labels[known]
    random = generator(probabilities)
    classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=classes)
    if not len(labels):
        raise DataError("Prediction sets need labelled images that the model has not learned from.")
    true = scores(probabilities, method, random)[np.arange(len(labels)), labels]
    many = 0 if unlabelled is None else len(unlabelled)
    if many == 0 or unlabelled is None:
        groups = [true[labels == each] for each in range(classes)] if by_class else [true] * classes
        thresholds = np.array([quantile(group, coverage) for group in groups])
        return PredictionSets(coverage, method, by_class, thresholds, counts)
    shares = apply_temperature(unlabelled, likeliest_temperature(probabilities, labels, TEMPERATURE_SCALE)) / many
    others = scores(unlabelled, method, random)
    if by_class:
        own = [labels == each for each in range(classes)]
        found = (_semi_supervised(true[own[c]], others[:, c], shares[:, c], coverage) for c in range(classes))
        thresholds = np.array(list(found))
    else:
        thresholds = np.full(classes, _semi_supervised(true, others.ravel(), shares.ravel(), coverage))
    return PredictionSets(coverage, method, by_class, thresholds, counts, many)


def _semi_supervised(true: Floats, others: Floats, shares: Floats, coverage: float) -> float:
    """A threshold from the scores of true classes, and from scores of classes that are true in these shares.

    The shares say which coverage the threshold of the labels alone has. How far that is from the wanted one, beyond
    what chance explains, is how far they can be trusted: they count as so many labels as would have an error as large.
    """
    alone, variance = quantile(true, coverage), coverage * (1 - coverage)
    gap = float(shares[others <= alone].sum() / max(shares.sum(), np.finfo(np.float64).tiny)) - coverage
    error = variance / UNLABELLED_WEIGHT + max(0.0, gap**2 - variance / (len(true) + 2))
    weights = np.concatenate([np.ones(len(true)), shares * (variance / error)])
    return weighted_quantile(np.concatenate([true, others]), weights, coverage * (weights.sum() + 1))


def check_coverage(coverage: float) -> None:
    """Raise where a coverage cannot be promised by any number of labels."""
    if not isinstance(coverage, int | float | np.number) or not 0 < coverage < 1:
        raise UsageError(f"coverage is {coverage!r}, but must be a number above 0 and below 1; 90 % is 0.9.")


def check_enough(sets: PredictionSets, classes: Sequence[str]) -> str | None:
    """Raise where every class is in every set; a warning where that is so of some classes."""
    missing, needed = sets.too_few(classes), least_labels(sets.coverage)
    if len(missing) == len(classes):
        of_each = " of each class" if sets.by_class else ""
        raise DataError(
            f"A coverage of {100 * sets.coverage:g} % needs at least {needed} labels{of_each} that the model has not "
            f"learned from, and here are {number_of(int(sets.counts.sum()), 'label')}: every class would be in every "
            "set. Label more images, or ask for less."
        )
    if missing:
        return (
            f"Too few labels for a coverage of {100 * sets.coverage:g} % within each class, which needs {needed} of "
            f"each: always in the set {'is' if len(missing) == 1 else 'are'} {some_of(missing, 10)}."
        )
    return None


def cross_fitted(
    probabilities: Floats, labels: Labels, coverage: float, method: str = "lac", *, by_class: bool = False
) -> Inside:
    """The sets (N, C) of labelled images, each by thresholds from the others in ten folds: a fair test of them."""
    order = np.random.default_rng(0).permutation(len(labels))
    inside = np.zeros(probabilities.shape, bool)
    for fold in np.array_split(order, min(10, len(labels))):
        others = np.setdiff1d(order, fold)
        if len(others) and len(fold):
            sets = calibrate(probabilities[others], labels[others], coverage, method, by_class=by_class)
            inside[fold] = sets.contains(probabilities[fold])
    return inside


def measure_sets(inside: Inside, labels: Labels, classes: Sequence[str]) -> dict[str, Any]:
    """Coverage and mean size of the sets (N, C) of labelled images, over all and by class, with 95 % intervals."""
    sizes, holds = inside.sum(1), inside[np.arange(len(labels)), labels]

    def measured(chosen: Inside) -> dict[str, Any]:
        count, hits = int(chosen.sum()), int(holds[chosen].sum())
        reach = 1.96 * float(sizes[chosen].std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
        mean = float(sizes[chosen].mean()) if count else math.nan
        return {
            "images": count,
            "coverage": hits / count if count else math.nan,
            "coverage_interval": list(wilson_interval(hits, count)),
            "mean_size": mean,
            "mean_size_interval": [max(0.0, mean - reach), min(float(len(classes)), mean + reach)],
        }

    return {
        **measured(np.full(len(labels), True)),
        "empty": float((sizes == 0).mean()),
        "single": float((sizes == 1).mean()),
        "by_class": [{"class": name, **measured(labels == number)} for number, name in enumerate(classes)],
    }
