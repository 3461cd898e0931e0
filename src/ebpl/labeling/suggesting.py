"""Suggestions for a run: which of its unlabelled images to label next."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.images import ImageSet
from ebpl.data.split import split_for
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, UsageError
from ebpl.labeling.choosing import choose
from ebpl.learning.prediction import predict_with_features
from ebpl.predicting import outlier_limit
from ebpl.runs import Run


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
    outliers: bool = False,
    outlier_quantile: float = 0.99,
) -> list[Suggestion]:
    """The `n` unlabelled images of a finished run that are most worth a label, the most uncertain first.

    Images that do not look like the others are left out unless `outliers` is true: their label would teach little.

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
    device, dtype = device_and_dtype(run.settings)
    predictions, features = predict_with_features(model.to(device), images.train.pixels[unlabeled], dtype)
    limit = None if outliers else outlier_limit(run, outlier_quantile)
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
