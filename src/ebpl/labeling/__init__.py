"""Active learning: which unlabelled images to label next. The model is unsure of them, and they are not all alike."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.dataset import ImageSet
from ebpl.data.split import split_for
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, UsageError
from ebpl.models.predictions import predict_with_features
from ebpl.runs import Run

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


@dataclass(frozen=True)
class Suggestion:
    """An image to label, what the model takes it for, and how sure it is."""

    image: str
    index: int
    """Its position among the training images."""
    label: str
    confidence: float
    second_label: str
    second_confidence: float
    energy: float

    def row(self, rank: int) -> dict[str, Any]:
        """A line of the list."""
        return {
            "rank": rank,
            "image": self.image,
            "label": self.label,
            "confidence": f"{self.confidence:.6f}",
            "second_label": self.second_label,
            "second_confidence": f"{self.second_confidence:.6f}",
            "energy": f"{self.energy:.6g}",
        }


def suggest(
    run: Run | str | os.PathLike[str],
    n: int = 50,
    *,
    data: ImageSet | None = None,
    with_outliers: bool = False,
    outlier_quantile: float = 0.99,
) -> list[Suggestion]:
    """The `n` unlabelled images of a finished run that are most worth a label, the most uncertain first.

    Images that do not look like the others are left out unless `with_outliers` is true: their label would teach little.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/few", epochs=2, pseudo_labels="none")
    >>> [len(ebpl.suggest(run, n=3)), ebpl.suggest(run, n=1)[0].confidence < 1]
    [3, True]
    """
    run = run if isinstance(run, Run) else Run(Path(run))
    if n < 1:
        raise UsageError(f"n is {n}, but must be at least 1.")
    model, description = run.load_model()
    images = run.load_data(data)
    unlabeled = split_for(images, run.settings).unlabeled
    if not len(unlabeled):
        raise DataError(f"{run.data_name} has no unlabelled images to choose from.")
    device, dtype = device_and_dtype(run.settings.runtime)
    predictions, features = predict_with_features(model.to(device), images.train.pixels[unlabeled], dtype)
    limit = None if with_outliers else run.energy_limit(outlier_quantile)
    allowed = predictions.energies <= limit if limit is not None else None
    chosen = choose(predictions.probabilities, features, n, run.settings.seed, allowed)
    classes = description["classes"]
    return [
        _suggestion(
            images.train.name(int(unlabeled[i])),
            int(unlabeled[i]),
            predictions.probabilities[i],
            float(predictions.energies[i]),
            classes,
        )
        for i in chosen
    ]


def _suggestion(
    image: str, index: int, probabilities: NDArray[np.float64], energy: float, classes: list[str]
) -> Suggestion:
    second, first = np.argsort(probabilities, kind="stable")[-2:]
    return Suggestion(
        image,
        index,
        classes[first],
        float(probabilities[first]),
        classes[second],
        float(probabilities[second]),
        energy,
    )
