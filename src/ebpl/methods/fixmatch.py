"""FixMatch: strong views of unlabelled images are taught the class that is predicted for weak views with confidence.

Sohn et al. 2020, "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", equations (3) and
(4). Pseudo-labels come from the current weights; the averaged ones are for predictions.
"""

from __future__ import annotations

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


def _terms(settings: Settings) -> list[LossTerm]:
    chosen = settings.unlabeled
    weight = WEIGHT if chosen.weight is None else chosen.weight
    return [*supervised_terms(settings), FixMatch(weight, chosen.threshold, chosen.ratio or RATIO)]


METHOD = Method(
    "FixMatch",
    "strong views are taught the class predicted for weak views, above a threshold (Sohn et al. 2020)",
    _terms,
    pseudo_labels=False,
    takes_features=False,
)
