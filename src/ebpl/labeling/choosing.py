"""Few images that are worth a label: the model is unsure of them, and they are not all alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CANDIDATES = 10
"""So many times the wanted number, the most uncertain ones, are looked at for variety."""


def uncertainty(probabilities: Floats) -> Floats:
    """How near the second class comes to the first: 1 where they are equal, 0 where the first is certain.

    >>> uncertainty(np.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])).round(3).tolist()
    [1.0, 0.2]
    """
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    return np.asarray(1 - (first - second), np.float64)


def choose(
    probabilities: Floats,
    features: NDArray[np.float32],
    count: int,
    seed: int = 0,
    allowed: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Positions of `count` images, the most uncertain first; fewer if no more are allowed.

    The most uncertain images are grouped by their features into as many clusters as are wanted, where an image weighs
    as much as it is uncertain, and each cluster gives the image nearest to its middle (after Zhdanov 2019). So one
    kind of doubt is not labelled over and over.
    """
    from sklearn.cluster import KMeans

    doubt = uncertainty(probabilities)
    places = np.arange(len(doubt)) if allowed is None else np.flatnonzero(allowed)
    candidates = places[np.argsort(-doubt[places], kind="stable")][: CANDIDATES * count]
    if len(candidates) <= count:
        return candidates
    points = features[candidates].astype(np.float64)
    distinct = len(np.unique(points, axis=0))
    weights = np.maximum(doubt[candidates], 1e-6)
    groups = KMeans(min(count, distinct), n_init=3, random_state=seed).fit(points, sample_weight=weights)
    distances = ((points - groups.cluster_centers_[groups.labels_]) ** 2).sum(1)
    nearest = [candidates[_first(distances, groups.labels_ == group)] for group in range(groups.n_clusters)]
    rest = np.setdiff1d(candidates, nearest, assume_unique=True)  # images that are alike make fewer clusters
    rest = rest[np.argsort(-doubt[rest], kind="stable")][: count - len(nearest)]
    chosen = np.concatenate([np.array(nearest, np.int64), rest])
    return np.asarray(chosen[np.argsort(-doubt[chosen], kind="stable")], np.int64)


def _first(distances: Floats, inside: NDArray[np.bool_]) -> int:
    """The position of the smallest distance among those inside."""
    return int(np.argmin(np.where(inside, distances, np.inf)))
