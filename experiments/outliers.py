"""Outliers in real data: a fifth of the unlabelled images are another dataset's, and are kept or rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebpl.config import Settings
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.formats import resized
from ebpl.data.split import PAPER_VALIDATION, split_for
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, UsageError
from ebpl.models.outliers import fit_detector
from ebpl.models.predictions import predict, predict_with_features
from ebpl.runs import Run
from ebpl.runs.reader import PSEUDO_LABELS, read_table
from experiments.multi_run import Arm, Column, MultiRun

if TYPE_CHECKING:
    import torch

    from ebpl.models import HybridModel

FRACTION = 0.2
"""Of the unlabelled images that are another dataset's."""
REJECTED_ABOVE = 0.99
OTHERS = {"blood": "cifar10", "digits": "fashion"}
"""Where the outliers come from."""
UNSEEN = {"blood": ("fashion", "svhn")}
"""Whose images are met only when the model is used."""
MOST = 2000
"""So many test images of each dataset are compared."""


def contaminated(data: ImageSet, other: ImageSet, fraction: float, seed: int) -> tuple[ImageSet, NDArray[np.bool_]]:
    """A benchmark some of whose training images are another's, without a label, and which these are."""
    random = np.random.default_rng(seed)
    # outliers are never labelled nor among the validation images, so that all of them are unlabelled
    labels = (data.labels_per_class or 0) * len(data.classes)
    kept = 1 - PAPER_VALIDATION
    count = round(fraction * (kept * len(data.train) - labels) / (1 - PAPER_VALIDATION * fraction))
    if count > len(other.train):
        raise DataError(f"{other.name} has {len(other.train)} images, of which {count} are wanted.")
    places = random.permutation(len(data.train))[:count]
    taken = random.permutation(len(other.train))[:count]
    pixels, given = data.train.pixels.copy(), data.train.labels.copy()
    foreign = other.train.take(taken).with_channels(data.shape[0])
    pixels[places] = resized(foreign.pixels, data.shape[1:])
    given[places] = UNLABELED
    outlier = np.zeros(len(given), bool)
    outlier[places] = True
    return replace(data, name=f"{data.name}+{other.name}", train=Images(pixels, given)), outlier


def _last(name: str) -> Column:
    """Of the last curriculum step; None where it is 0 in all of them."""

    def value(arm: Arm) -> float | None:
        steps = arm["pseudo_labels"]
        found: float | None = steps[-1][name] if any(step[name] for step in steps) else None
        return found

    return value


def _unseen(name: str) -> Column:
    """The mean over datasets that were not seen in training."""
    return lambda arm: fmean(each[name] for each in arm["unseen"].values()) if arm["unseen"] else None


class Outliers(MultiRun):
    """The same training with outliers kept and with outliers rejected."""

    name = "outliers"
    columns = {  # noqa: RUF012
        "AUROC of the energy %": lambda arm: arm["auroc"],
        "of the distance %": lambda arm: arm["auroc_distance"],
        "of the energy, unseen datasets %": _unseen("energy"),
        "of the confidence, unseen datasets %": _unseen("confidence"),
        "outliers rejected %": _last("rejected_strangers"),
        "other images rejected %": _last("rejected_others"),
        "right pseudo-labels in the last step %": _last("right"),
    }

    def measure(self, data: str, settings: Settings) -> dict[str, Any] | None:
        if data not in OTHERS:
            raise UsageError(f"There is no other dataset for {data} to take outliers from. Use {' or '.join(OTHERS)}.")
        other = self.load(OTHERS[data])
        images, outlier = contaminated(self.load(data), other, FRACTION, settings.seed)
        arms = {"kept": settings, "rejected": settings.changed({"curriculum.reject_outliers": REJECTED_ABOVE})}
        runs = self.trained([(f"outliers-{data}-{arm}", each) for arm, each in arms.items()], images)
        if runs is None:
            return None
        unseen = [self.load(each) for each in UNSEEN.get(data, ())]
        found = {arm: _measured(run, images, outlier, unseen) for arm, run in zip(arms, runs, strict=True)}
        return {"other": other.name, "share": FRACTION, "arms": found}


EXPERIMENT = Outliers


def _measured(run: Run, images: ImageSet, outlier: NDArray[np.bool_], unseen: Sequence[ImageSet]) -> Arm:
    """How well energy and distance detect outliers, seen in training or not, and what they did to pseudo-labels."""
    device, dtype = device_and_dtype(run.settings.runtime)
    model = run.load_model()[0].to(device)
    parts = split_for(images, run.settings)
    _, known = predict_with_features(model, images.train.pixels[parts.labeled], dtype)
    predictions, unknown = predict_with_features(model, images.train.pixels[parts.unlabeled], dtype)
    distances = fit_detector(known, images.train.labels[parts.labeled]).distances(unknown)
    foreign = outlier[parts.unlabeled]
    result = run.metrics()
    return {
        "auroc": auroc(predictions.energies[~foreign], predictions.energies[foreign]),
        "auroc_distance": auroc(distances[~foreign], distances[foreign]),
        "unseen": {other.name: of_unseen(model, images, other, dtype) for other in unseen},
        "metrics": result["metrics"],
        "last": result["last"]["metrics"],
        "pseudo_labels": [
            _of_step(run, step, outlier, int((~foreign).sum())) for step in range(1, run.settings.curriculum.steps + 1)
        ],
        "seconds": result["seconds"],
    }


def _of_step(run: Run, step: int, outlier: NDArray[np.bool_], others: int) -> dict[str, Any]:
    """How many outliers have a pseudo-label in a step, how many were rejected, and how many other images."""
    rows = read_table(run.path, f"{PSEUDO_LABELS}/step-{step}.csv")
    right = sum(row["truth"] == row["label"] for row in rows)  # an outlier's truth is empty: no label is right
    rejected = [outlier[int(row["image"])] for row in read_table(run.path, f"{PSEUDO_LABELS}/outliers-{step}.csv")]
    return {
        "step": step,
        "images": len(rows),
        "strangers": int(sum(outlier[int(row["image"])] for row in rows)),
        "right": right / max(1, len(rows)),
        "rejected_strangers": sum(rejected) / outlier.sum(),
        "rejected_others": (len(rejected) - sum(rejected)) / others,
    }


def of_unseen(model: HybridModel, images: ImageSet, other: ImageSet, dtype: torch.dtype) -> dict[str, float]:
    """How well the energy, and for comparison the confidence, separates test images from another dataset's."""
    assert images.test is not None
    assert other.test is not None
    foreign = other.test.with_channels(images.shape[0]).pixels[:MOST]
    mine = predict(model, images.test.pixels[:MOST], dtype)
    theirs = predict(model, resized(foreign, images.shape[1:]), dtype)
    return {
        "energy": auroc(mine.energies, theirs.energies),
        "confidence": auroc(-mine.confidences, -theirs.confidences),
    }


def auroc(belonging: NDArray[np.float64], outliers: NDArray[np.float64]) -> float:
    """The area under the ROC curve: how often an outlier has the higher value."""
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([0, 1], [len(belonging), len(outliers)])
    return float(roc_auc_score(truth, np.concatenate([belonging, outliers])))
