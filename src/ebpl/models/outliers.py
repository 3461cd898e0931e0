"""Outliers: images that do not belong to any class.

In both rules an image is an outlier when its score is above that of a given fraction of images that belong.

A finished model scores by its energy, and the training images belong (`OutlierLimit`). On principal components of
features it scores by the reconstruction error instead: features have one length, and those of other images are mostly
outside of the components. Inside, other images are near the centre, where the energy is low. Components fit the images
that they are from better than others, so the errors of training images are cross-validated.

During training the energy cannot score: it does not flag outliers that were in the training data, since the energy
model learns the density of all images that it is given. So training scores by the Mahalanobis distance to the nearest
class. Gaussians with a common covariance, as the energy head has them, are fitted to the features of the labelled
images, which are known to belong. Where outliers are rejected, the density is learned from labelled images only until
the first step has judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.models.predictions import Predictions

Floats = NDArray[np.float64]
FOLDS = 50
"""Most folds of the cross-validation; with fewer labelled images it is leave-one-out."""
SCORES = ("reconstruction_errors", "energies")
"""Of predictions, as their fields are called; the first that a run knows of its training images is used."""
HIGHEST = 0.9999
"""A fraction of 1 is taken for this; a normal distribution has no end."""


@dataclass(frozen=True)
class MahalanobisDetector:
    """The mean of each class, after a map that makes the covariance within classes the identity."""

    whitening: Floats
    means: Floats

    def distances(self, features: NDArray[np.floating]) -> Floats:
        """The squared distance of each row from the nearest class."""
        white = features.astype(np.float64) @ self.whitening
        squared = (white**2).sum(1)[:, None] + (self.means**2).sum(1) - 2 * white @ self.means.T
        nearest: Floats = squared.min(1).clip(min=0)
        return nearest


def fit_detector(features: NDArray[np.floating], labels: NDArray[np.integer]) -> MahalanobisDetector:
    """Fitted to labelled images; the covariance is shrunk as their number demands (Ledoit and Wolf 2004)."""
    from sklearn.covariance import ledoit_wolf

    values = features.astype(np.float64)
    classes, number = np.unique(labels, return_inverse=True)
    means = np.stack([values[number == i].mean(0) for i in range(len(classes))])
    within = values - means[number]
    # where every class has a single image there is no spread: all directions count the same
    covariance = ledoit_wolf(within, assume_centered=True)[0] if within.any() else np.eye(values.shape[1])
    least = 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    lower = np.linalg.cholesky(np.linalg.inv(covariance + least))
    return MahalanobisDetector(lower, means @ lower)


def cross_validated_distances(features: NDArray[np.floating], labels: NDArray[np.integer], seed: int = 0) -> Floats:
    """The distance of each labelled image from the classes as the other labelled images show them."""
    found = np.zeros(len(labels))
    folds = np.array_split(np.random.default_rng(seed).permutation(len(labels)), min(FOLDS, len(labels)))
    for fold in folds:
        others = np.setdiff1d(np.arange(len(labels)), fold)
        if len(others):
            found[fold] = fit_detector(features[others], labels[others]).distances(features[fold])
        else:
            found[fold] = np.inf  # the only labelled image: nothing is known of what belongs
    return found


def belonging(distances: Floats, labeled_distances: Floats, fraction: float) -> NDArray[np.bool_]:
    """Which images are no further away than this fraction of those that belong is expected to be.

    There are two views of that, and either is enough.

    The first is that of the labelled images. A network that has memorised its few labelled images has them nearer than
    any other, and would reject almost all; so the second is that of the unlabelled images themselves, most of which
    belong: the median and as many deviations above it as leave that fraction of a normal distribution below. Half of
    them could be outliers before it is moved much.
    """
    known = np.quantile(labeled_distances, fraction, method="higher")
    usual = np.sqrt(distances)
    middle = np.median(usual)
    deviation = np.median(abs(usual - middle)) / NormalDist().inv_cdf(0.75)
    expected = middle + NormalDist().inv_cdf(min(fraction, HIGHEST)) * deviation
    return np.asarray(distances <= max(known, expected**2))


@dataclass(frozen=True)
class OutlierLimit:
    """The value of a score that an outlier is above."""

    score: str
    """Of `SCORES`."""
    value: float

    def exceeded(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Which images are outliers; one whose score is no number is."""
        return np.asarray(~(getattr(predictions, self.score) <= self.value))


def outlier_limit(result: Mapping[str, Any], fraction: float) -> OutlierLimit | None:
    """The limit that this fraction of the training images stays below; None where a run's result has no scores."""
    for score in SCORES:
        if values := result.get(f"training_{score}"):
            return OutlierLimit(score, float(np.quantile(values, fraction)))
    return None
