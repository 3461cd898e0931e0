"""One run, or the seeds of several as one model whose probabilities are the mean of theirs."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ebpl.devices import device_and_dtype
from ebpl.errors import RunError
from ebpl.inference.sources import model_of
from ebpl.metrics.calibration import Floats
from ebpl.models import HybridModel
from ebpl.models.outliers import OutlierLimit
from ebpl.models.predictions import predict
from ebpl.runs import Run, readable_seeds, resume_command, seed_folders


@dataclass(frozen=True)
class Answers:
    """What is said of each image; with several seeds, energies and errors are the mean of theirs."""

    probabilities: Floats
    energies: Floats
    outliers: NDArray[np.bool_] | None
    """Unlike the training images, by most of the seeds; None for models that cannot tell."""
    disagreement: Floats | None
    """Of the seeds; None for a single run."""
    reconstruction_errors: Floats | None = None
    """For models on principal components of features."""


@dataclass(frozen=True)
class _Member:
    """A run with its model on its device."""

    run: Run
    model: HybridModel
    dtype: torch.dtype
    limit: OutlierLimit | None


class Ensemble:
    """The models of some runs, which answer together."""

    def __init__(
        self,
        runs: Sequence[Run],
        outlier_quantile: float = 0.99,
        class_mix: str | os.PathLike[str] | None = None,
    ) -> None:
        self.runs = list(runs)
        self.members, self.description = [], dict[str, Any]()
        for run in self.runs:
            model, description = model_of(run, class_mix)
            wanted = {name: description[name] for name in ("classes", "image_shape")}
            first = self.description or description
            if wanted != {name: first[name] for name in wanted}:
                raise RunError(
                    f"{run.path} and {self.runs[0].path} have different classes or image sizes, so they cannot answer "
                    "together. Name one of them."
                )
            self.description = first
            device, dtype = device_and_dtype(run.settings.runtime)
            self.members.append(_Member(run, model.to(device), dtype, run.outlier_limit(outlier_quantile)))

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the probabilities."""
        names: list[str] = self.description["classes"]
        return names

    @property
    def has_outliers(self) -> bool:
        """Whether outliers can be told."""
        return all(member.limit is not None for member in self.members)

    @property
    def has_errors(self) -> bool:
        """Whether there are reconstruction errors."""
        return all(member.model.features.discards_components for member in self.members)

    def predict(self, pixels: NDArray[np.uint8]) -> Answers:
        """What the runs say of images (N, H, W, C) together."""
        found = [predict(member.model, pixels, member.dtype) for member in self.members]
        outlying = [
            member.limit.exceeded(each)
            for each, member in zip(found, self.members, strict=True)
            if member.limit is not None
        ]
        known = [each.reconstruction_errors for each in found if each.reconstruction_errors is not None]
        errors = np.mean(known, axis=0) if self.has_errors and known else None
        if len(found) == 1:
            return Answers(found[0].probabilities, found[0].energies, outlying[0] if outlying else None, None, errors)
        each_probabilities = np.stack([each.probabilities for each in found])
        return Answers(
            each_probabilities.mean(0),
            np.mean([each.energies for each in found], axis=0),
            np.mean(outlying, axis=0) > 0.5 if self.has_outliers else None,
            disagreement(each_probabilities),
            errors,
        )


def disagreement(probabilities: Floats) -> Floats:
    """How much seeds (K, N, C) differ on each image, in nats: the entropy of their mean less the mean of theirs.

    It is the mutual information of class and seed, 0 where all say the same. An image that every seed finds equally
    ambiguous has none; one that each is sure of in another way has much.

    >>> disagreement(np.array([[[0.5, 0.5], [1, 0]], [[0.5, 0.5], [0, 1]]])).round(2).tolist()
    [0.0, 0.69]
    """

    def entropy(shares: Floats) -> Floats:
        found: Floats = -(shares * np.log(np.maximum(shares, np.finfo(np.float64).tiny))).sum(-1)
        return found

    return np.asarray(np.maximum(entropy(probabilities.mean(0)) - entropy(probabilities).mean(0), 0.0))


def members_of(run: Run | str | os.PathLike[str]) -> list[Run]:
    """The run, or all finished ones of a folder of several seeds."""
    if isinstance(run, Run):
        return [run]
    folder = Path(run)
    if not seed_folders(folder):
        return [Run(folder)]
    runs, broken = readable_seeds(folder)
    finished = [each for each in runs if each.finished]
    if not finished:
        raise RunError(
            next(iter(broken.values()), f"No seed in {folder} is finished. Continue with: {resume_command(runs)}")
        )
    if left := sorted([*broken, *(each.settings.seed for each in runs if not each.finished)]):
        logging.getLogger("ebpl").warning("Not finished or damaged, and left out: seed %s", ", ".join(map(str, left)))
    return finished
