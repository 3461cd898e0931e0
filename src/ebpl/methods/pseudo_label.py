"""Pseudo-Label: unlabelled images are trained towards the class that the network predicts at the moment.

Lee 2013, "Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method for Deep Neural Networks", equations
(15) and (16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.nn import functional as F

from ebpl.config import Settings
from ebpl.methods import Method
from ebpl.models import HybridModel
from ebpl.training.losses import Loss, LossTerm, Outputs, Views, supervised_terms
from ebpl.training.training_set import UNLABELED

if TYPE_CHECKING:
    from ebpl.training.train_step import TrainStep

WEIGHT, RATIO = 3.0, 8
"""The weight in the end, and 256 unlabelled images for 32 labelled ones."""
BEGIN, END = 0.1, 0.6
"""When the weight begins to rise and is whole, in fractions of training. The paper counts epochs: 100 and 600."""


class PseudoLabel(LossTerm):
    """Cross-entropy of unlabelled images with the predicted class, at a weight that rises from 0."""

    logs = ("unlabeled_loss", "unlabeled_weight")
    stream = UNLABELED

    def __init__(self, weight: float = WEIGHT, ratio: int = RATIO) -> None:
        self.weight, self.ratio = weight, ratio

    def views(self, step: TrainStep) -> Views:
        images = step.training_set.take(step.positions[UNLABELED])
        weight = self.weight * ((step.fraction - BEGIN) / (END - BEGIN)).clamp(0, 1)
        return Views([step.noisy(step.weak(images))], more={"weight": weight})

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        scores, weight = outputs[0].scores, views.more["weight"]
        value = F.cross_entropy(scores, scores.detach().argmax(1))
        return Loss(weight * value, {"unlabeled_loss": value, "unlabeled_weight": weight})


def _terms(settings: Settings) -> list[LossTerm]:
    chosen = settings.unlabeled
    weight = WEIGHT if chosen.weight is None else chosen.weight
    return [*supervised_terms(settings), PseudoLabel(weight, chosen.ratio or RATIO)]


METHOD = Method(
    "Pseudo-Label",
    "unlabelled images are trained towards the class predicted for them (Lee 2013)",
    _terms,
    pseudo_labels=False,
    takes_features=False,
)
