"""A layout of features in two dimensions by t-SNE (van der Maaten and Hinton 2008), for up to a few thousand rows.

Rows attract their nearest neighbours through a sparse matrix (van der Maaten 2014), and repel all others, which is
computed exactly. Two thousand rows take some seconds on one core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
PERPLEXITY = 20.0
"""About how many neighbours of a row count."""
UPDATES, EARLY = 300, 80
"""The first updates have a stronger attraction, so that groups form."""
EXAGGERATION = 12.0
START = 1e-4
"""Spread of the first coordinate before the first update."""


def layout(features: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Two coordinates for each row, the same every time; None where there are too few rows or all are the same.

    >>> rows = np.random.default_rng(0).normal(size=(40, 8))
    >>> layout(rows).shape, layout(rows[:3])
    ((40, 2), None)
    """
    from scipy.sparse import csr_matrix

    rows = np.nan_to_num(features.astype(np.float64), posinf=0, neginf=0)
    rows -= rows.mean(0) if len(rows) else 0
    largest = np.abs(rows).max(initial=0)
    if len(rows) < 4 or not largest:
        return None
    near = _affinities(rows / largest)
    begin = np.repeat(np.arange(len(rows)), np.diff(near.indptr))
    strength = near.data.astype(np.float32)
    places = _principal_plane(rows / largest)
    velocity, gain = np.zeros_like(places), np.ones_like(places)
    rate = max(50.0, len(rows) / EXAGGERATION)
    for update in range(UPDATES):
        factor, momentum = (EXAGGERATION, 0.5) if update < EARLY else (1.0, 0.8)
        squared = sum(np.square(axis[begin] - axis[near.indices]) for axis in np.ascontiguousarray(places.T))
        pull = factor * strength / (1 + squared)
        gradient = _pushed(csr_matrix((pull, near.indices, near.indptr)), places) - _repulsion(places)
        gain = np.maximum(np.where((gradient > 0) == (velocity > 0), 0.8 * gain, gain + 0.2), 0.01)
        velocity = momentum * velocity - rate * gain * gradient
        places = places + velocity
        places -= places.mean(0)
    return places.astype(np.float64)


def _principal_plane(rows: NDArray[np.float64]) -> Floats:
    """The first two principal components, made small; where there is one, the second is zero."""
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    plane = np.zeros((len(rows), 2))
    plane[:, : len(directions)] = rows @ directions[:2].T
    signs = np.sign(plane[np.abs(plane).argmax(0), [0, 1]])  # a component has no sign of its own
    return np.asarray(plane * signs / plane[:, 0].std() * START, np.float32)


def _affinities(rows: NDArray[np.float64]) -> Any:
    """How strongly rows attract their neighbours: sparse, symmetric, with the sum one."""
    from scipy.sparse import csr_matrix
    from sklearn.neighbors import NearestNeighbors

    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    neighbors = min(len(rows) - 1, int(3 * perplexity))
    distances, others = NearestNeighbors(n_neighbors=neighbors).fit(rows).kneighbors()
    squared = np.square(distances)
    squared -= squared[:, :1]
    scale = np.maximum(squared.mean(1, keepdims=True), 1e-12)
    low, high = np.full_like(scale, -12.0), np.full_like(scale, 12.0)  # logarithms of the precision
    for _ in range(40):
        middle = (low + high) / 2
        weights = np.exp(-np.exp(middle) * squared / scale)
        weights /= weights.sum(1, keepdims=True)
        entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(1, keepdims=True)
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    begin = np.repeat(np.arange(len(rows)), neighbors)
    found = csr_matrix((weights.ravel(), (begin, others.ravel())), (len(rows), len(rows)))
    both = (found + found.T).tocsr()
    return both / both.sum()


def _pushed(weights: Any, places: Floats) -> Floats:
    """For each row the sum over others of their weight times the difference of places."""
    ones = np.ones((len(places), 1), np.float32)
    sums = weights @ np.hstack([ones, places])
    return np.asarray(sums[:, :1] * places - sums[:, 1:], np.float32)


def _repulsion(places: Floats) -> Floats:
    """The same with weights that are high between places close together."""
    ones, lengths = np.ones((len(places), 1), np.float32), np.square(places).sum(1, keepdims=True)
    near = np.hstack([-2 * places, lengths + 1, ones]) @ np.hstack([places, ones, lengths]).T  # 1 + squared distance
    near = np.reciprocal(np.maximum(near, 1, out=near), out=near)
    total = float(near.sum()) - len(places)
    return _pushed(np.square(near, out=near), places) / total
