"""FixMatch: strong views of unlabelled images are trained towards confident predictions for weak views.

Sohn et al. 2020, "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", equations (3) and
(4). Pseudo-labels come from the current weights; the averaged ones are for predictions.
"""

from __future__ import annotations

from torch import Tensor

from ebpl.config import Settings
from ebpl.methods import Method
from ebpl.training.losses import Consistency, LossTerm, supervised_terms

WEIGHT, RATIO = 1.0, 7
"""The paper's lambda_u and mu."""


class FixMatch(Consistency):
    """Consistency with the confident classes of the current weights."""

    current_teacher = True

    def __init__(self, weight: float = WEIGHT, threshold: float = 0.95, ratio: int = RATIO) -> None:
        super().__init__(weight, threshold)
        self.ratio = ratio

    @classmethod
    def terms(cls, settings: Settings) -> list[LossTerm]:
        """The supervised terms and this one, as the settings have it."""
        chosen = settings.unlabeled
        weight = WEIGHT if chosen.weight is None else chosen.weight
        return [*supervised_terms(settings), cls._of(weight, chosen.ratio or RATIO, settings)]

    @classmethod
    def _of(cls, weight: float, ratio: int, settings: Settings) -> FixMatch:
        return cls(weight, settings.unlabeled.threshold, ratio)


class AdaptiveFixMatch(FixMatch):
    """FixMatch with moving averages over the weak views in place of a fixed threshold."""

    def __init__(self, weight: float = WEIGHT, ratio: int = RATIO, momentum: float = 0.999) -> None:
        super().__init__(weight, ratio=ratio)
        self.momentum = momentum

    @classmethod
    def _of(cls, weight: float, ratio: int, settings: Settings) -> FixMatch:
        return cls(weight, ratio, settings.unlabeled.momentum)

    def follow(self, average: Tensor, value: Tensor) -> None:
        """Move an average towards a value of this update."""
        average.lerp_(value, 1 - self.momentum)


METHOD = Method(
    "FixMatch",
    "strong views are trained towards the class predicted for weak views, above a threshold (Sohn et al. 2020)",
    FixMatch.terms,
    pseudo_labels=False,
    takes_features=False,
)
