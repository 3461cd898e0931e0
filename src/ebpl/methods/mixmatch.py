"""MixMatch: unlabelled images are trained towards sharpened mean predictions for their views, mixed with labelled ones.

Berthelot et al. 2019, "MixMatch: A Holistic Approach to Semi-Supervised Learning", algorithm 1 and equations (3) to
(12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ebpl.config import Settings
from ebpl.methods import Method
from ebpl.models import HybridModel
from ebpl.training.losses import CrossEntropy, Loss, LossTerm, Outputs, Views, supervised_terms
from ebpl.training.training_set import UNLABELED

if TYPE_CHECKING:
    from ebpl.training.train_step import TrainStep

WEIGHT, RATIO = 75.0, 1
"""The paper's lambda_U for CIFAR-10, and as many unlabelled as labelled images."""
VIEWS, TEMPERATURE, ALPHA = 2, 0.5, 0.75
"""The paper's K, T and alpha."""
RAMP = 1 / 64
"""The fraction of training in which the weight rises."""


class Guesses(LossTerm):
    """Squared distance of the probabilities of mixed unlabelled images from their targets."""

    logs = ("unlabeled_loss", "unlabeled_weight")
    stream = UNLABELED
    current_teacher = True

    def __init__(self, weight: float = WEIGHT, ratio: int = RATIO) -> None:
        self.weight, self.ratio = weight, ratio
        self.mixed = Views()

    def guessed(self, step: TrainStep) -> tuple[Tensor, Tensor]:
        """Views of unlabelled images, and the target that those of an image share."""
        with torch.no_grad():
            images = step.training_set.take(step.positions[UNLABELED])
            views = [step.weak(images) for _ in range(VIEWS)]
            mean = torch.stack([step.teacher_scores(view).softmax(1) for view in views]).mean(0)
            sharper = mean ** (1 / TEMPERATURE)
            return torch.cat(views), (sharper / sharper.sum(1, keepdim=True)).repeat(VIEWS, 1)

    def views(self, step: TrainStep) -> Views:
        mixed, self.mixed = self.mixed, Views()  # by `MixedLabels`, whose views are made before
        return mixed

    def finish(self, step: TrainStep, views: Views) -> Views:
        weight = self.weight * (step.fraction / RAMP).clamp(max=1)
        return replace(views, inputs=[step.noisy(views.inputs[0])], more={"weight": weight})

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        assert views.targets is not None
        scores = outputs[0].scores if views.log_mix is None else outputs[0].scores - views.log_mix
        value = (scores.softmax(1) - views.targets).square().mean()
        weight = views.more["weight"]
        return Loss(weight * value, {"unlabeled_loss": value, "unlabeled_weight": weight})


class MixedLabels(CrossEntropy):
    """Cross-entropy of labelled images, each mixed with any other image of the batch."""

    def __init__(self, guesses: Guesses, label_smoothing: float = 0.0) -> None:
        super().__init__(label_smoothing=label_smoothing)
        self.guesses = guesses

    def views(self, step: TrainStep) -> Views:
        labeled = super().views(step)
        assert labeled.targets is not None
        assert labeled.log_mix is not None
        others, guesses = self.guesses.guessed(step)
        count, total = len(labeled.inputs[0]), len(labeled.inputs[0]) + len(others)
        share, order = mixing_shares(total, step), step.random(total).argsort()

        def mixed(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            both = torch.cat([first, second])
            both = both + share.view(-1, *[1] * (both.ndim - 1)) * (both[order] - both)
            return both[:count], both[count:]

        images, targets = mixed(labeled.inputs[0], others), mixed(labeled.targets, guesses)
        log_mix = mixed(labeled.log_mix, torch.zeros_like(guesses))
        self.guesses.mixed = Views([images[1]], targets[1], log_mix[1])
        return Views([images[0]], targets[0], log_mix[0])


def mixing_shares(count: int, step: TrainStep) -> Tensor:
    """The share of the other image, at most a half: min(l, 1 - l) with l from Beta(alpha, alpha)."""
    parameters = torch.full((2, count), ALPHA, device=step.state.device)
    gamma = torch._standard_gamma(parameters, generator=step.generator)
    share = gamma[0] / gamma.sum(0)
    return torch.minimum(share, 1 - share)


def _terms(settings: Settings) -> list[LossTerm]:
    chosen = settings.unlabeled
    guesses = Guesses(WEIGHT if chosen.weight is None else chosen.weight, chosen.ratio or RATIO)
    return [MixedLabels(guesses, settings.optim.label_smoothing), *supervised_terms(settings)[1:], guesses]


METHOD = Method(
    "MixMatch",
    "mean predictions for views, sharpened, and mixup of all images (Berthelot et al. 2019)",
    _terms,
    pseudo_labels=False,
    takes_features=False,
)
