"""FreeMatch: FixMatch with a threshold for each class that follows the network's confidence, and a fairness loss.

Wang et al. 2023, "FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning", equations (5) to (11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ebpl.methods import Method
from ebpl.methods.fixmatch import AdaptiveFixMatch
from ebpl.models import HybridModel
from ebpl.training.losses import Loss, Outputs, Views, predicted_class

if TYPE_CHECKING:
    from ebpl.training.train_step import TrainStep

FAIRNESS = 0.01
"""The paper's w_f."""


class FreeMatch(AdaptiveFixMatch):
    """Consistency above self-adaptive thresholds, and self-adaptive fairness.

    The memory holds the paper's tau (mean confidence), p (mean prediction) and h (how often each class is predicted),
    moving averages over the weak views.
    """

    logs = (*AdaptiveFixMatch.logs, "threshold", "fairness")

    def memory(self, classes: int) -> dict[str, Tensor]:
        even = torch.full((classes,), 1 / classes)
        return {"tau": even[0].clone(), "p": even.clone(), "h": even.clone()}

    def views(self, step: TrainStep) -> Views:
        views = super().views(step)
        expected = _normalised(step.memory["p"] / step.memory["h"])
        return replace(views, more={"expected": expected, "threshold": step.memory["tau"].clone()})

    def targets(self, step: TrainStep, scores: Tensor) -> Tensor:
        probabilities = scores.softmax(1)
        confidence, predicted = probabilities.amax(1), predicted_class(scores)
        memory, now = step.memory, {"tau": confidence.mean(), "p": probabilities.mean(0), "h": predicted.mean(0)}
        for name, value in now.items():
            self.follow(memory[name], step.mean_of_all(value))
        thresholds = memory["tau"] * memory["p"] / memory["p"].max()
        return predicted * (confidence >= predicted @ thresholds)[:, None]

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        assert views.targets is not None
        found = super().loss(model, outputs, views)
        value = fairness(outputs[0].scores.softmax(1), views.targets.sum(1), views.more["expected"])
        logs = {**found.logs, "threshold": views.more["threshold"], "fairness": value}
        return Loss(found.value + FAIRNESS * value, logs)


def fairness(probabilities: Tensor, mask: Tensor, expected: Tensor) -> Tensor:
    """Minus the cross-entropy of the mean prediction for strong views, each class divided by how often it is predicted.

    Only images of the mask count; classes that are predicted for none of them are left out. Without any it is 0.
    """
    count = mask.sum().clamp(min=1)
    frequency = (predicted_class(probabilities.detach()) * mask[:, None]).sum(0) / count
    mean = (probabilities * mask[:, None]).sum(0) / count
    there = frequency > 0
    balanced = _normalised(torch.where(there, mean / torch.where(there, frequency, 1.0), 0.0))
    return (expected * torch.where(there, balanced, 1.0).log()).sum()


def _normalised(values: Tensor) -> Tensor:
    return values / values.sum().clamp(min=1e-12)


METHOD = Method(
    "FreeMatch",
    "FixMatch with thresholds that follow the confidence in each class, and fairness (Wang et al. 2023)",
    FreeMatch.terms,
    pseudo_labels=False,
    takes_features=False,
)
