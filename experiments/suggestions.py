"""Active learning on real data: label what `ebpl suggest` lists, or as many images at random, and train again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.config import Settings
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.split import split_for
from ebpl.labeling import suggest
from ebpl.runs import Run
from experiments.multi_run import Arm, MultiRun

SUGGESTED = 40


class Suggestions(MultiRun):
    """A training with few labels, with suggested images labelled, and with random images labelled."""

    name = "suggestions"

    def measure(self, data: str, settings: Settings) -> dict[str, Any] | None:
        whole = self.load(data)
        parts = split_for(whole, settings)
        first = _as_own_data(whole, parts.labeled, parts.validation)
        without = settings.changed(validation_fraction=0.0)
        begun = self.trained([(f"suggestions-{data}-before", without)], first)
        if begun is None:
            return None
        chosen = np.array([each.index for each in suggest(begun[0], SUGGESTED, data=first)])
        rest = np.flatnonzero(~first.train.labeled)
        chance = np.random.default_rng(settings.seed).choice(rest, len(chosen), replace=False)
        truth = np.delete(whole.train.labels, parts.validation)
        found = {"before": _measured(begun[0], truth, np.zeros(0, int), len(whole.classes))}
        for arm, added in {"suggested": chosen, "random": chance}.items():
            labels = first.train.labels.copy()
            labels[added] = truth[added]
            images = replace(first, train=Images(first.train.pixels, labels))
            again = self.trained([(f"suggestions-{data}-{arm}", without)], images)
            if again is None:
                return None
            found[arm] = _measured(again[0], truth, added, len(whole.classes))
        return {"added": len(chosen), "arms": found}


EXPERIMENT = Suggestions


def _measured(run: Run, truth: NDArray[Any], added: NDArray[Any], classes: int) -> Arm:
    result = run.metrics()
    counts = np.bincount(truth[added], minlength=classes)
    return {"metrics": result["metrics"], "added": counts.tolist(), "seconds": result["seconds"]}


def _as_own_data(data: ImageSet, labeled: NDArray[Any], left_out: NDArray[Any]) -> ImageSet:
    """The benchmark as a user's own data: few labels, the rest unlabelled, and no validation images."""
    labels = np.full(len(data.train), UNLABELED)
    labels[labeled] = data.train.labels[labeled]
    train = Images(np.delete(data.train.pixels, left_out, axis=0), np.delete(labels, left_out))
    return replace(data, train=train, labels_per_class=None)
