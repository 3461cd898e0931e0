"""Summary of a finished training: its images, steps, curves and samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.training.relabel import Phase
from ebpl.training.train_state import TrainState
from ebpl.training.training_set import TrainingSet

CURVES = ("cross_entropy", "energy_gap", "validation_accuracy", "validation_ece", "validation_confidence")
SAMPLES = 25
"""Samples that are kept to look at."""


def summary(state: TrainState, images: TrainingSet, schedule: Sequence[Phase]) -> dict[str, Any]:
    """The part of the result that needs no predictions."""
    progress = state.progress
    return {
        "images": images.counts(),
        "check": asdict(progress.check) if progress.check else None,
        "pseudo_labels": steps(progress.history, schedule),
        "curves": curves(progress.history),
        "seconds": round(state.seconds, 1),
        "healed_divergences": state.divergence.events,
    }


def steps(history: Iterable[Mapping[str, Any]], schedule: Sequence[Phase]) -> list[dict[str, Any]]:
    """How many images had a pseudo-label in each curriculum step, and which fraction of them was right, if known."""
    names = {phase.name: phase.step for phase in schedule if phase.step}
    rows = {names[row["phase"]]: row for row in history if row["phase"] in names}
    return [
        {
            "step": step,
            "images": row["pseudo_labels"],
            "accuracy": row["pseudo_label_accuracy"],
            "rejected": row.get("rejected", 0),
        }
        for step, row in sorted(rows.items())
    ]


def curves(history: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """How training went, epoch by epoch, in few digits; a curve is there if every epoch has it."""
    return {
        name: [float(f"{row[name]:.4g}") for row in history]
        for name in CURVES
        if history and all(name in row for row in history)
    }


def samples(state: TrainState) -> dict[str, NDArray[Any]]:
    """Samples from the energy model as images (N, H, W, C), where there are any."""
    if state.buffer is None or state.buffer.samples.ndim != 4:
        return {}
    kept = state.buffer.samples
    chosen = kept[:: max(1, len(kept) // SAMPLES)][:SAMPLES].nan_to_num().clamp(-1, 1)
    return {"samples": ((chosen + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()}


def selection(rows: Iterable[Mapping[str, str]], images: TrainingSet) -> dict[str, NDArray[Any]]:
    """Which training images a step's list gave which label; nothing if the list is of other images."""
    data = images.data
    names = {data.train.name(int(i)): int(i) for i in images.unlabeled_index}
    numbers = {name: number for number, name in enumerate(data.classes)}
    try:
        found = [(names[row["image"]], numbers[row["label"]]) for row in rows]
    except KeyError:
        return {}
    if not found:
        return {}
    return {
        "selected": np.array([image for image, _ in found], np.int32),
        "selected_labels": np.array([label for _, label in found], np.uint16),
    }
