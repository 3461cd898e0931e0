"""The curriculum: its phases, and which unlabelled images get a pseudo-label at each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration import apply_temperature
from ebpl.calibration.class_mix import ClassMix
from ebpl.config import Settings
from ebpl.data.dataset import ImageSet
from ebpl.errors import number_of, some_of
from ebpl.models.outliers import belonging, cross_validated_distances, fit_detector
from ebpl.models.predictions import Predictions
from ebpl.training.neighbors import Graph
from ebpl.training.training_set import TrainingSet

PSEUDO_LABELS = "pseudo_labels"
"""The folder of a run with a list for each step."""
SHOWN_CLASSES = 5
"""Of many classes, only those with the most pseudo-labels are named."""


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
    curriculum = settings.curriculum
    steps = 0 if curriculum.pseudo_labels == "none" else curriculum.steps
    return [
        Phase(0, steps, settings.optim.epochs),
        *(Phase(step, steps, curriculum.epochs) for step in range(1, steps + 1)),
    ]


def lr_factor(settings: Settings, progress: float, updates: float) -> float:
    """The factor of the learning rate after this fraction of a phase and `updates` since an initialisation.

    It rises linearly while the weights are fresh, and falls along half a cosine over the phase, or as in FixMatch.
    """
    optim = settings.optim
    warm = min(1.0, updates / optim.warmup_updates) if optim.warmup_updates else 1.0
    if optim.lr_schedule == "7/16-cosine":
        return warm * math.cos(7 / 16 * math.pi * progress)
    return warm * (optim.final_lr_factor + (1 - optim.final_lr_factor) * (1 + math.cos(math.pi * progress)) / 2)


@dataclass(frozen=True)
class Relabeling:
    """What a curriculum step begins with."""

    selected: NDArray[np.int64]
    """Positions among the unlabelled images, most confident first."""
    targets: NDArray[np.float64]
    """Their target distributions."""
    accuracy: float | None
    """The fraction of right pseudo-labels, where the true ones are known."""
    rows: list[dict[str, Any]]
    """The list of them, for the run directory."""
    rejected: list[int]
    """Positions of outliers, which are left out."""
    outlier_rows: list[dict[str, Any]] | None
    """The list of those; None where outliers are not rejected."""
    counts: dict[str, int]
    """Pseudo-labels of each class, by its name."""


def relabel(
    training_set: TrainingSet,
    predictions: Predictions,
    features: Callable[[], tuple[NDArray[Any], NDArray[Any]]],
    settings: Settings,
    phase: Phase,
    spreading: float = 0.0,
    mix: ClassMix | None = None,
) -> Relabeling:
    """Throw the old pseudo-labels away and give the most confident images new ones.

    `predictions` are for all unlabelled images; `features` gives those of labelled and unlabelled ones, and is called
    where outliers are rejected, or posteriors are spread among similar images. `mix` is their class mix.
    """
    if spreading:
        predictions = spread_predictions(predictions, training_set.labels, *features(), spreading, mix)
    curriculum, data, index = settings.curriculum, training_set.data, training_set.unlabeled_index
    allowed, rejected, outliers = None, list[int](), None
    if curriculum.reject_outliers:
        labels = training_set.labels
        known, unknown = features()
        distances = fit_detector(known, labels).distances(unknown)
        others = cross_validated_distances(known, labels, settings.seed)
        allowed = belonging(distances, others, curriculum.reject_outliers)
        left_out = np.flatnonzero(~allowed)
        rejected = left_out.tolist()
        outliers = outlier_rows(data, index, predictions, distances, left_out)
    by_class = predictions.labels if curriculum.selection == "class" else None
    selected = select(predictions.confidences, phase.step, phase.steps, allowed, by_class)
    targets = pseudo_targets(predictions, selected, curriculum.pseudo_labels, curriculum.pseudo_label_temperature)
    rows = pseudo_label_rows(data, index, predictions, selected)
    truth = training_set.hidden_labels[selected]
    known_truth = truth >= 0
    right = (predictions.labels[selected] == truth)[known_truth]
    found = np.bincount(predictions.labels[selected], minlength=len(data.classes)).tolist()
    counts = dict(zip(data.classes, found, strict=True))
    accuracy = float(right.mean()) if len(right) else None
    return Relabeling(selected, targets, accuracy, rows, rejected, outliers, counts)


def spread_predictions(
    predictions: Predictions,
    labels: NDArray[np.int64],
    known: NDArray[Any],
    unknown: NDArray[Any],
    amount: float,
    mix: ClassMix | None = None,
) -> Predictions:
    """Posteriors of unlabelled images, spread with the true labels among images of similar features.

    Where the classes have other shares among the labels, a label counts as much as its class is more frequent among the
    unlabelled images.
    """
    true = np.eye(predictions.probabilities.shape[1])[labels]
    true = true * np.exp(mix.log_ratio) if mix else true
    graph = Graph.of(np.concatenate([known, unknown]))
    spread = graph.spread(np.concatenate([true, predictions.probabilities]), amount)
    return Predictions(spread[len(labels) :], predictions.energies)


def described_counts(counts: Mapping[str, int]) -> str:
    """The classes with the most pseudo-labels, and how many classes got none.

    >>> described_counts({"cat": 7, "dog": 9, "emu": 0})
    'dog: 9, cat: 7; 1 class got none'
    """
    given = sorted((pair for pair in counts.items() if pair[1]), key=lambda pair: -pair[1])
    shown = [f"{name}: {number}" for name, number in given]
    text = some_of(shown, SHOWN_CLASSES, many="more classes") or "no class"
    none = len(counts) - len(given)
    return text + (f"; {number_of(none, 'class', 'classes')} got none" if none else "")


def select(
    confidences: NDArray[np.float64],
    step: int,
    steps: int,
    allowed: NDArray[np.bool_] | None = None,
    labels: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Positions of the top 100 * step / steps % by confidence, most confident first; all of them in the last step.

    Only those that are allowed are looked at. With `labels` it is the top of each of them, rounded up, so that a class
    that the model is less confident of has its share too.
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
    predictions: Predictions, selected: NDArray[np.int64], kind: str, temperature: float = 1.0
) -> NDArray[np.float64]:
    """Target distributions of the selected images: a posterior at a temperature (soft) or the predicted class."""
    probabilities: NDArray[np.float64] = predictions.probabilities[selected]
    if kind == "soft":
        return apply_temperature(probabilities, temperature)
    hard: NDArray[np.float64] = np.eye(probabilities.shape[1])[probabilities.argmax(1)]
    return hard


def pseudo_label_rows(
    data: ImageSet, unlabeled: NDArray[Any], predictions: Predictions, selected: NDArray[Any]
) -> list[dict[str, Any]]:
    """A row for each selected one of the unlabelled images, which stand at these positions of the training images."""
    labels, confidences = predictions.labels, predictions.confidences
    rows = []
    for i in selected:
        at = int(unlabeled[i])
        truth = data.train.labels[at]
        row = {
            "image": data.train.name(at),
            "label": data.classes[labels[i]],
            "confidence": repr(float(confidences[i])),
            "truth": data.classes[truth] if truth >= 0 else "",
        }
        posterior = zip(data.classes, predictions.probabilities[i], strict=True)
        rows.append(row | {f"p({name})": f"{p:.6f}" for name, p in posterior})
    return rows


def outlier_rows(
    data: ImageSet,
    unlabeled: NDArray[Any],
    predictions: Predictions,
    distances: NDArray[np.float64],
    outliers: NDArray[Any],
) -> list[dict[str, Any]]:
    """A row for each outlier among the unlabelled images, the furthest first."""
    order = outliers[np.argsort(-distances[outliers], kind="stable")]
    return [
        {
            "image": data.train.name(int(unlabeled[i])),
            "distance": f"{distances[i]:.6g}",
            "energy": f"{predictions.energies[i]:.6g}",
        }
        for i in order
    ]
