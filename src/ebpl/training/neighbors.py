"""Pseudo-labels that agree with those of similar images: label spreading (Zhou et al. 2004) on a graph of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NEIGHBORS = 10
ROUNDS = 20
POWER = 3
"""Of a cosine similarity in the weight of an edge: near neighbours count more."""
WHITENING = 0.5
"""Power of its standard deviation that a principal component is divided by: 0 leaves it as it is, 1 whitens. Held-out
training images are closer to those of their class when the first components, which differ for reasons such as light and
background, count less."""
ROWS = 1024
"""Rows of the similarity matrix that are in memory at a time."""


@dataclass(frozen=True)
class Graph:
    """Each image with those most similar to it; edges are normalised by the degrees of both ends."""

    edges: csr_array

    @staticmethod
    def of(features: NDArray[np.floating], neighbors: int = NEIGHBORS) -> Graph:
        """The graph of principal components (N, D), partly whitened, by their cosine similarity."""
        from scipy.sparse import coo_array, diags_array

        count = len(features)
        scaled = features / np.maximum(np.sqrt(np.square(features).mean(0)), 1e-12) ** WHITENING
        lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
        rows = (scaled / np.maximum(lengths, 1e-12)).astype(np.float32)
        most = min(neighbors, count - 1)
        columns, weights = [], []
        for start in range(0, count, ROWS):
            similarity = rows[start : start + ROWS] @ rows.T
            own = np.arange(len(similarity))
            similarity[own, start + own] = -np.inf
            nearest = np.argpartition(-similarity, max(most - 1, 0), axis=1)[:, :most]
            columns.append(nearest)
            weights.append(np.take_along_axis(similarity, nearest, 1).clip(min=0) ** POWER)
        places = (np.repeat(np.arange(count), most), np.concatenate(columns).ravel())
        edges = coo_array((np.concatenate(weights).ravel().astype(np.float64), places), (count, count)).tocsr()
        edges = edges + edges.T
        scale = diags_array(1 / np.sqrt(np.maximum(edges.sum(1), 1e-12)))
        return Graph((scale @ edges @ scale).tocsr())

    def spread(self, targets: NDArray[np.float64], amount: float, rounds: int = ROUNDS) -> NDArray[np.float64]:
        """Distributions (N, C) after each was mixed with its neighbours': 0 changes nothing, below 1 it converges."""
        if not amount:
            return targets
        mixed = targets
        for _ in range(rounds):
            mixed = amount * (self.edges @ mixed) + (1 - amount) * targets
        spread: NDArray[np.float64] = mixed / np.maximum(mixed.sum(1, keepdims=True), 1e-12)
        return spread
