"""The beginning of a curriculum step: old pseudo-labels are thrown away and the most confident images labelled anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebpl.learning.checking import look_again
from ebpl.learning.curriculum import Phase, pseudo_targets, select
from ebpl.learning.prediction import Predictions
from ebpl.learning.strangers import belonging, distances_from_the_others, familiar
from ebpl.learning.telling import PSEUDO_LABELS, outlier_rows, pseudo_label_rows

if TYPE_CHECKING:
    from ebpl.learning.trainer import Trainer


def begin_step(trainer: Trainer, phase: Phase) -> None:
    """Give the pseudo-labels of this step, list them in the run directory, and restart if the method does."""
    settings = trainer.settings
    predictions = trainer.predict(trainer.pool.images[trainer.labeled_count :])
    look_again(trainer, predictions.probabilities)
    allowed = _allowed(trainer, predictions, phase) if settings.reject_outliers else None
    by_class = predictions.labels if settings.selection == "class" else None
    chosen = select(predictions.confidences, phase.step, phase.steps, allowed, by_class)
    targets = torch.from_numpy(pseudo_targets(predictions, chosen, settings.pseudo_labels, settings.sharpening))
    set_pseudo_labels(trainer, chosen, targets)
    rows = pseudo_label_rows(trainer.data, trainer.unlabeled_index, predictions, chosen)
    trainer.run.save_table(f"{PSEUDO_LABELS}/step-{phase.step}.csv", rows)
    if trainer.method.restart:
        trainer.learner.initialise("step", phase.step)
    trainer.pseudo_label_accuracy = right = _share_right(trainer, predictions, chosen)
    known = "" if right is None else f", {100 * right:.1f} % of them right"
    trainer.say(f"{phase.name}: {len(chosen)} of {len(trainer.unlabeled)} images get a pseudo-label{known}")


def _allowed(trainer: Trainer, predictions: Predictions, phase: Phase) -> NDArray[np.bool_]:
    """Which unlabelled images belong; the others are left out from now on, and listed."""
    count = trainer.labeled_count
    labels = trainer.pool.targets[:count].argmax(1).cpu().numpy()
    known, unknown = trainer.features(trainer.pool.images[:count]), trainer.features(trainer.pool.images[count:])
    distances = familiar(known, labels).distances(unknown)
    others = distances_from_the_others(known, labels, trainer.settings.seed)
    allowed = belonging(distances, others, trainer.settings.reject_outliers)
    outliers = np.flatnonzero(~allowed)
    trainer.rejected = outliers.tolist()
    rows = outlier_rows(trainer.data, trainer.unlabeled_index, predictions, distances, outliers)
    trainer.run.save_table(f"{PSEUDO_LABELS}/outliers-{phase.step}.csv", rows)
    trainer.say(f"{phase.name}: {len(outliers)} of {len(trainer.unlabeled)} images do not belong and are left out")
    return allowed


def set_pseudo_labels(trainer: Trainer, chosen: NDArray[np.int64], targets: Tensor) -> None:
    """Let these unlabelled images, and no others, have these target distributions."""
    trainer.chosen = chosen.tolist()
    pseudo = trainer.pool.targets[trainer.labeled_count :]
    pseudo.zero_()
    pseudo[torch.from_numpy(chosen).to(trainer.device)] = targets.to(trainer.device, torch.float32)


def _share_right(trainer: Trainer, predictions: Predictions, chosen: NDArray[np.int64]) -> float | None:
    truth = trainer.unlabeled.labels[chosen]
    known = truth >= 0
    return float((predictions.labels[chosen] == truth)[known].mean()) if known.any() else None
