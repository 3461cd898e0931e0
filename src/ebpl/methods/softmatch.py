"""SoftMatch: FixMatch with a weight in place of the threshold, a Gaussian of the confidence below its running mean.

Chen et al. 2023, "SoftMatch: Addressing the Quantity-Quality Trade-off in Semi-supervised Learning", equations (5) to
(9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ebpl.methods import Method
from ebpl.methods.fixmatch import AdaptiveFixMatch
from ebpl.training.losses import predicted_class

if TYPE_CHECKING:
    from ebpl.training.train_step import TrainStep

SIGMAS = 2.0
"""The variance is divided by its square, as in the authors' experiments."""


class SoftMatch(AdaptiveFixMatch):
    """Consistency weighted by the confidence after uniform alignment.

    The memory holds mean and variance of that confidence and the mean prediction, moving averages over the weak views.
    """

    def memory(self, classes: int) -> dict[str, Tensor]:
        even = torch.full((classes,), 1 / classes)
        return {"mean": even[0].clone(), "variance": torch.ones(()), "p": even.clone()}

    def targets(self, step: TrainStep, scores: Tensor) -> Tensor:
        memory, probabilities = step.memory, scores.softmax(1)
        self.follow(memory["p"], step.mean_of_all(probabilities.mean(0)))
        aligned = probabilities / memory["p"]  # times 1 / C, which the normalisation takes away
        confidence = (aligned / aligned.sum(1, keepdim=True)).amax(1)
        mean, count = step.mean_of_all(confidence.mean()), step.ranks.count * len(confidence)
        variance = step.mean_of_all((confidence - mean).square().mean()) * count / max(1, count - 1)
        self.follow(memory["mean"], mean)
        self.follow(memory["variance"], variance)
        below = (confidence - memory["mean"]).clamp(max=0)
        weights = torch.exp(-(below**2) * SIGMAS**2 / (2 * memory["variance"]))
        return predicted_class(scores) * weights[:, None]


METHOD = Method(
    "SoftMatch",
    "FixMatch with weights that fall with the confidence, in place of a threshold (Chen et al. 2023)",
    SoftMatch.terms,
    pseudo_labels=False,
    takes_features=False,
)
