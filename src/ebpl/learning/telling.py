"""What a training tells of itself: how it begins, which images got which label, and what its samples look like."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.images import ImageSet
from ebpl.learning.checking import FEWEST, share_to_wait
from ebpl.learning.prediction import Predictions

if TYPE_CHECKING:
    from ebpl.learning.trainer import Trainer

PSEUDO_LABELS = "pseudo_labels"
CURVES = ("cross_entropy", "gap", "validation_accuracy", "validation_ece", "validation_confidence")
SAMPLES = 25
"""So many samples are kept to look at."""


def introduction(trainer: Trainer) -> list[str]:
    """What is trained on what, and what looks odd about it."""
    data, settings, validation = trainer.data, trainer.settings, trainer.validation
    parts = f"{trainer.labeled_count} labelled, {len(trainer.unlabeled)} unlabelled"
    chosen_by = f"{len(validation)} more choose the weights" if validation else "the last weights are kept"
    shape = " x ".join(str(n) for n in data.shape)
    shown = [f"{name} {count}" for name, count in image_counts(trainer)["labelled"].items()]
    classes = ", ".join(shown[:12]) + (f" ... and {len(shown) - 12} more" if len(shown) > 12 else "")
    network = f"WRN-{settings.depth}-{settings.width}, {trainer.learner.model.parameter_count():,} parameters"
    numbers = str(trainer.dtype).removeprefix("torch.")
    return [
        *data.notes,
        *(["there are no unlabelled images to learn from"] if not len(trainer.unlabeled) else []),
        f"{data.name}: {parts} images of {shape} in {len(data.classes)} classes; {chosen_by}",
        f"labels: {classes}",
        *_waiting(trainer),
        f"{settings.method}, {network}, {numbers} on {trainer.device}, augmentation {trainer.augmentation}, "
        f"{trainer.updates} updates an epoch; run directory {trainer.run.path}",
        *([f"going on after {len(trainer.history)} epochs"] if trainer.history else []),
    ]


def _waiting(trainer: Trainer) -> list[str]:
    if trainer.waiting and not any(phase.step and phase.epochs for phase in trainer.schedule):
        return [f"{trainer.waiting} of these labels check the confidence; without steps they are not learned from"]
    if trainer.waiting:
        return [f"{trainer.waiting} of these labels wait for the first step, and check the confidence until then"]
    if share_to_wait(trainer.settings):
        return [f"all labels are learned from at once; to check the confidence (held_back) takes {FEWEST} that wait"]
    return []


def image_counts(trainer: Trainer) -> dict[str, Any]:
    """How many images were used how: labels of each class, and images without, to choose the weights, and to test."""
    counts = trainer.pool.targets[: trainer.labeled_count].sum(0).int().tolist()
    test = trainer.data.test
    return {
        "labelled": dict(zip(trainer.data.classes, counts, strict=True)),
        "unlabelled": len(trainer.unlabeled),
        "validation": len(trainer.validation or ()),
        "test": 0 if test is None else int(test.labeled.sum()),
    }


def pseudo_label_rows(
    data: ImageSet, unlabeled: NDArray[Any], predictions: Predictions, chosen: NDArray[Any]
) -> list[dict[str, Any]]:
    """A row for each chosen one of the unlabelled images, which stand at these positions among the training images."""
    labels, confidences = predictions.labels, predictions.confidences
    rows = []
    for i in chosen:
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
    """A row for each of the unlabelled images that do not belong, the strangest first."""
    order = outliers[np.argsort(-distances[outliers], kind="stable")]
    return [
        {
            "image": data.train.name(int(unlabeled[i])),
            "distance": f"{distances[i]:.6g}",
            "energy": f"{predictions.energies[i]:.6g}",
        }
        for i in order
    ]


def steps(trainer: Trainer) -> list[dict[str, Any]]:
    """How many images had a pseudo-label in each curriculum step, and which share of them was right, if known."""
    names = {phase.name: phase.step for phase in trainer.schedule if phase.step}
    rows = {names[row["phase"]]: row for row in trainer.history if row["phase"] in names}
    return [
        {
            "step": step,
            "images": row["pseudo_labels"],
            "accuracy": row["pseudo_label_accuracy"],
            "rejected": row.get("rejected", 0),
        }
        for step, row in sorted(rows.items())
    ]


def curves(trainer: Trainer) -> dict[str, list[float]]:
    """How training went, epoch by epoch, in few digits."""
    rows = [{**row, "gap": row["energy_images"] - row["energy_samples"]} for row in trainer.history]
    return {name: [float(f"{row[name]:.4g}") for row in rows] for name in CURVES if rows and name in rows[0]}


def details(trainer: Trainer) -> dict[str, NDArray[Any]]:
    """Samples from the energy model as images (N, H, W, C), and which images the first step gave which label."""
    found: dict[str, NDArray[Any]] = {}
    if trainer.learner.buffer is not None:
        every = max(1, len(trainer.learner.buffer.samples) // SAMPLES)
        samples = trainer.learner.buffer.samples[::every][:SAMPLES].nan_to_num().clamp(-1, 1)
        found["samples"] = ((samples + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    first = trainer.run.path / PSEUDO_LABELS / "step-1.csv"
    return {**found, **_selection(first, trainer.data, trainer.unlabeled_index)} if first.is_file() else found


def _selection(path: Path, data: ImageSet, unlabeled: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Positions among the training images and labels, as `pseudo_label_rows` wrote them; nothing if they are others."""
    names = {data.train.name(int(i)): int(i) for i in unlabeled}
    numbers = {name: number for number, name in enumerate(data.classes)}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {
            "selected": np.array([names[row["image"]] for row in rows], np.int32),
            "selected_labels": np.array([numbers[row["label"]] for row in rows], np.uint16),
        }
    except (KeyError, UnicodeDecodeError, csv.Error):
        return {}
