"""Old names of settings and results, so that runs and ledger records of version 0.1 can still be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OLD_NAMES = {
    "labels_per_class": "data.labels_per_class",
    "validation_fraction": "data.validation_fraction",
    "augment": "data.augment",
    "max_shift": "data.max_shift",
    "pixel_noise": "data.pixel_noise",
    "mix": "data.mixup_probability",
    "strong_colors": "data.color_jitter",
    "depth": "model.depth",
    "width": "model.width",
    "precision": "model.precision_matrix",
    "epochs": "optim.epochs",
    "epoch_updates": "optim.updates_per_epoch",
    "batch_size": "optim.batch_size",
    "learning_rate": "optim.learning_rate",
    "warm_up": "optim.warmup_updates",
    "final_rate": "optim.final_lr_factor",
    "gradient_clip": "optim.gradient_clip",
    "weight_average": "optim.ema_decay",
    "pseudo_labels": "curriculum.pseudo_labels",
    "steps": "curriculum.steps",
    "step_epochs": "curriculum.epochs",
    "selection": "curriculum.selection",
    "sharpening": "curriculum.pseudo_label_temperature",
    "labeled_share": "curriculum.labeled_batch_fraction",
    "held_back": "curriculum.calibration_holdout",
    "reject_outliers": "curriculum.reject_outliers",
    "density_weight": "energy.weight",
    "coupling_weight": "energy.coupling_weight",
    "energy_penalty": "energy.penalty",
    "energy_center": "energy.center",
    "consistency": "consistency.weight",
    "consistency_batch": "consistency.batch_size",
    "gate": "consistency.confidence_threshold",
    "consistency_sharpening": "consistency.temperature",
    "sgld_steps": "sgld.steps",
    "sgld_step_size": "sgld.step_size",
    "sgld_noise": "sgld.noise",
    "sgld_gradient_clip": "sgld.gradient_clip",
    "clamp_samples": "sgld.clamp_samples",
    "chains": "sgld.chains",
    "buffer_size": "sgld.buffer_size",
    "restart_probability": "sgld.restart_probability",
    "guard_tries": "divergence.retries",
    "guard_gap": "divergence.max_energy_gap",
    "device": "runtime.device",
    "dtype": "runtime.dtype",
    "checkpoint_seconds": "runtime.checkpoint_seconds",
    "tensorboard": "runtime.tensorboard",
}
"""Settings of version 0.1, which had no groups."""
RETIRED: dict[str, Any] = {"strong": 0.0, "mixed": "all", "guard_every": 10}
"""Settings of version 0.1 that are gone, with the value at which nothing changes without them."""
BEFORE: dict[str, Any] = {"model.stages": 3, "model.square_root": "never"}
"""What runs were trained with before there was such a setting, where that is not its default."""
OLD_COLUMNS = {"asked": "mask_rate", "gap": "energy_gap"}
"""Columns of metrics.csv and names of curves."""


def modern_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their names of today; those that are retired keep theirs where they have an effect."""
    # how often losses were looked at, guard_every, is without effect on the result
    kept = {name: each for name, each in settings.items() if name != "guard_every" and RETIRED.get(name, ...) != each}
    return {OLD_NAMES.get(name, name): value for name, value in kept.items()}


def settings_of_run(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run was written with, which may be older than some of today's."""
    return {**BEFORE, **modern_names(stored)}


def retired(settings: Mapping[str, Any]) -> list[str]:
    """Which of these settings this version no longer has."""
    return [name for name in settings if name in RETIRED]


def modern_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics.csv under today's column names."""
    return {OLD_COLUMNS.get(name, name): value for name, value in row.items()}


def _with_gap(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an epoch with the energy gap, which version 0.1 did not write down."""
    images, samples = row.get("energy_images"), row.get("energy_samples")
    if "energy_gap" in row or not isinstance(images, float) or not isinstance(samples, float):
        return row
    return {**row, "energy_gap": images - samples}


def modern_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result of a run under today's names."""
    made = dict(result)
    if isinstance(made.get("curves"), dict):
        made["curves"] = modern_row(made["curves"])
    return made


def modern_checkpoint(stored: Any) -> Any:
    """A checkpoint of version 0.1 as today's; anything else is left for the checkpoint's own rules to refuse."""
    if not isinstance(stored, dict) or "learner" not in stored or not isinstance(stored["learner"], dict):
        return stored
    renamed = {"chosen": "selected", "good": "last_good", "guard": "divergence"}
    made = {renamed.get(name, name): value for name, value in stored.items() if name != "learner"}
    made["tensors"] = stored["learner"].get("tensors")
    made["ema_updates"] = stored["learner"].get("averaged_updates")
    if isinstance(made.get("divergence"), dict):
        limits = {"tries": "retries", "gap": "max_gap"}
        made["divergence"] = {limits.get(name, name): value for name, value in made["divergence"].items()}
    if isinstance(made.get("history"), list):
        made["history"] = [_with_gap(modern_row(row)) if isinstance(row, dict) else row for row in made["history"]]
    if "last_good" in made:
        made["last_good"] = modern_checkpoint(made["last_good"])
    return made


def modern_architecture(described: Any, image_shape: Any) -> Any:
    """The architecture in a file of weights of version 0.1 as today's."""
    if not isinstance(described, dict) or "depth" not in described:
        return described
    return {
        "backbone": "wide_resnet",
        "image_shape": image_shape,
        "classes": described.get("classes"),
        "precision_matrix": described.get("precision"),
        "options": {name: described.get(name) for name in ("depth", "width")},
    }
