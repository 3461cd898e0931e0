"""Images that do not belong: far from every class, as the labelled images show the classes.

The labelled images are known to belong. Gaussians with a common covariance, as the energy head has them, are fitted to
their features, and an image's distance is Mahalanobis' to the nearest one. It belongs if it is no further away than the
labelled images are when each is judged by the others, or than is usual among the unlabelled ones.

The energy alone could not tell strangers that it was trained on: the energy model learns the density of all images that
it is given. So where outliers are rejected, it is given labelled images alone until the first step has judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FOLDS = 50
"""Labelled images are left out in so many groups at most, each on its own where there are no more."""
SUREST = 0.9999
"""A share of 1 is taken for this; a normal distribution has no end."""


@dataclass(frozen=True)
class Familiar:
    """What the labelled images look like: the mean of each class, after a map that makes their spread the identity."""

    whitening: Floats
    means: Floats

    def distances(self, features: NDArray[np.floating]) -> Floats:
        """The squared distance of each row from the nearest class."""
        white = features.astype(np.float64) @ self.whitening
        squared = (white**2).sum(1)[:, None] + (self.means**2).sum(1) - 2 * white @ self.means.T
        nearest: Floats = squared.min(1).clip(min=0)
        return nearest


def familiar(features: NDArray[np.floating], labels: NDArray[np.integer]) -> Familiar:
    """Fitted to labelled images; the covariance is shrunk as their number demands (Ledoit and Wolf 2004)."""
    from sklearn.covariance import ledoit_wolf

    values = features.astype(np.float64)
    classes, number = np.unique(labels, return_inverse=True)
    means = np.stack([values[number == i].mean(0) for i in range(len(classes))])
    within = values - means[number]
    # where every class has one image alone, there is no spread to speak of: all directions count the same
    covariance = ledoit_wolf(within, assume_centered=True)[0] if within.any() else np.eye(values.shape[1])
    least = 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    lower = np.linalg.cholesky(np.linalg.inv(covariance + least))
    return Familiar(lower, means @ lower)


def distances_from_the_others(features: NDArray[np.floating], labels: NDArray[np.integer], seed: int = 0) -> Floats:
    """The distance of each labelled image from what the others look like, as if it had had no label."""
    found = np.zeros(len(labels))
    folds = np.array_split(np.random.default_rng(seed).permutation(len(labels)), min(FOLDS, len(labels)))
    for fold in folds:
        others = np.setdiff1d(np.arange(len(labels)), fold)
        if len(others):
            found[fold] = familiar(features[others], labels[others]).distances(features[fold])
        else:
            found[fold] = np.inf  # the only labelled image: nothing is known of what belongs
    return found


def belonging(distances: Floats, labeled_distances: Floats, share: float) -> NDArray[np.bool_]:
    """Which images are no further away than this share of those that belong is expected to be, by either of two views.

    The first is that of the labelled images, which are known to belong. A network that knows its few labelled images by
    heart has them nearer than any other, and would reject almost all; so the second is that of the unlabelled images
    themselves, of which most belong: the median and as many deviations above it as leave that share of a normal
    distribution below. Half of them could be strangers before it is moved much.
    """
    known = np.quantile(labeled_distances, share, method="higher")
    usual = np.sqrt(distances)
    middle = np.median(usual)
    deviation = np.median(abs(usual - middle)) / NormalDist().inv_cdf(0.75)
    expected = middle + NormalDist().inv_cdf(min(share, SUREST)) * deviation
    return np.asarray(distances <= max(known, expected**2))
