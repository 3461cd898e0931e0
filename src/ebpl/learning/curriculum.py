"""The curriculum: which unlabelled images get a pseudo-label at each step, and what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebpl.learning.prediction import Predictions
from ebpl.settings import Settings


@dataclass(frozen=True)
class Phase:
    """A stretch of training: the initial one (step 0) or a curriculum step."""

    step: int
    steps: int
    epochs: int

    @property
    def name(self) -> str:
        """What the bar and the log call it."""
        return f"step {self.step} of {self.steps}" if self.step else "initial"


def phases(settings: Settings) -> list[Phase]:
    """The schedule: initial training, then T steps unless there are no pseudo-labels."""
    steps = 0 if settings.pseudo_labels == "none" else settings.steps
    curriculum = [Phase(step, steps, settings.step_epochs) for step in range(1, steps + 1)]
    return [Phase(0, steps, settings.epochs), *curriculum]


def rate_factor(settings: Settings, progress: float, updates: int) -> float:
    """What the learning rate is multiplied with, after this share of a phase and so many updates of fresh weights.

    It rises in a line while the weights are fresh, and falls along half a cosine over the phase.
    """
    warm = min(1.0, updates / settings.warm_up) if settings.warm_up else 1.0
    return warm * (settings.final_rate + (1 - settings.final_rate) * (1 + math.cos(math.pi * progress)) / 2)


def select(
    confidences: NDArray[np.float64],
    step: int,
    steps: int,
    allowed: NDArray[np.bool_] | None = None,
    labels: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Positions of the top 100 * step / steps % by confidence, most confident first; all of them in the last step.

    Only those that are allowed are looked at. With `labels` it is the top of each of them, rounded up, so that a class
    that the model is less sure of has its share too.
    """
    places = np.arange(len(confidences)) if allowed is None else np.flatnonzero(allowed)
    order = places[np.argsort(-confidences[places], kind="stable")]
    if labels is None:
        return order[: len(places) * step // steps]
    kept = np.zeros(len(order), bool)
    for label in np.unique(labels[order]):
        own = np.flatnonzero(labels[order] == label)
        kept[own[: -(-len(own) * step // steps)]] = True
    return order[kept]


def pseudo_targets(
    predictions: Predictions, chosen: NDArray[np.int64], kind: str, temperature: float = 1.0
) -> NDArray[np.float64]:
    """Target distributions of the chosen images: a posterior at a temperature (soft) or the predicted class."""
    probabilities: NDArray[np.float64] = predictions.probabilities[chosen]
    if kind == "soft":
        return tempered(probabilities, temperature)
    hard: NDArray[np.float64] = np.eye(probabilities.shape[1])[probabilities.argmax(1)]
    return hard


def tempered(probabilities: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Probabilities (N, C) as they are when the scores behind them are divided by a temperature."""
    if temperature == 1:
        return probabilities
    powers = (probabilities / probabilities.max(1, keepdims=True)) ** (1 / temperature)
    return np.asarray(powers / powers.sum(1, keepdims=True))
