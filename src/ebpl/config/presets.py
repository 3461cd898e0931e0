"""The named sets of settings, and settings in TOML files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebpl.config import Settings, fields
from ebpl.errors import UsageError, did_you_mean

# A rate ten times the paper's needs a tenth of its updates. Clamped samples, a clipped gradient and a penalty on the
# energies keep it stable. With its centre at weight / (2 * penalty) the penalty pulls images to an energy of 0, where
# a single class can explain them; with its centre at 0 it would pull them below, where several classes have to, and the
# model would be under-confident.
_STANDARD: dict[str, Any] = {
    "optim.epochs": 12,
    "optim.updates_per_epoch": 128,
    "optim.learning_rate": 1e-3,
    "optim.warmup_updates": 200,
    "optim.gradient_clip": 1.0,
    "curriculum.epochs": 6,
    "energy.penalty": 0.5,
    "energy.center": 1.0,
    "sgld.steps": 10,
    "sgld.clamp_samples": True,
}
# What was found to help on Blood and CIFAR-10. Strong views of unlabelled images learn the posterior that the averaged
# weights give to weak views: it is calibrated, so it needs neither a threshold nor sharpening. Mixup keeps the
# cross-entropy from zero, a quarter of true labels in every batch keeps the curriculum from drifting, and selection by
# class keeps hard classes in it. Pseudo-labels are sharpened because mixup flattens them. Where there are labels
# enough, some are held out until the first step and fit a temperature.
_BEST: dict[str, Any] = {
    **_STANDARD,
    "data.max_shift": 3,
    "data.mixup_probability": 0.5,
    "optim.epochs": 24,
    "optim.updates_per_epoch": 256,
    "curriculum.epochs": 4,
    "curriculum.selection": "class",
    "curriculum.pseudo_label_temperature": 0.8,
    "curriculum.labeled_batch_fraction": 0.25,
    "curriculum.calibration_holdout": 0.2,
    "energy.weight": 0.2,
    "energy.penalty": 0.1,
    "consistency.weight": 3.0,
    "consistency.confidence_threshold": 0.0,
    "consistency.temperature": 1.0,
    "sgld.steps": 5,
}
# On the features of a pretrained encoder. Both heads start from logistic regression, so the rate is low and the
# weight decay that of a linear map. Pseudo-labels agree with their neighbours'; more than two steps gained nothing
# on validation images. With this step and this noise the chains are Langevin's, and their density a true one.
_FEATURES: dict[str, Any] = {
    "model.encoder": "efficientnet_lite0",
    "data.augment": "none",
    "data.pixel_noise": 0.3,
    "optim.epochs": 2,
    "optim.learning_rate": 3e-3,
    "optim.final_lr_factor": 0.0,
    "optim.weight_decay": 6e-4,
    "optim.ema_decay": 0.99,
    "curriculum.steps": 2,
    "curriculum.epochs": 15,
    "sgld.steps": 5,
    "sgld.step_size": 0.1,
    "sgld.noise": 0.4472,
    "sgld.start": "gaussian",
    "sgld.buffer_size": 1000,
}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"model.depth": 28, "model.width": 10, "data.augment": "none", "optim.ema_decay": 0.0},
    "standard": _STANDARD,
    "best": _BEST,
    # Like best, with an energy of weight 1 and no penalty: a likelihood, if the chains keep up with it. For that they
    # start from a Gaussian fitted to the images and take twice the steps, and the rate is a third of best's and falls
    # to three tenths of that. Images are clamped like samples: their noise would take them where no sample can be. With
    # half the mixup it was better calibrated on validation images of Blood.
    "generative": {
        **{name: value for name, value in _BEST.items() if not name.startswith("energy.")},
        "data.mixup_probability": 0.25,
        "optim.learning_rate": 3e-4,
        "optim.final_lr_factor": 0.3,
        "energy.clamp_images": True,
        "sgld.steps": 10,
        "sgld.start": "gaussian",
    },
    "features": _FEATURES,
    # The encoder learns too, from the same start. Views of images are of use again, and are learned from as in best;
    # the density is that of features. The length does not depend on the number of images.
    "fine-tuned": {
        **_FEATURES,
        "model.fine_tune": "all",
        "data.augment": "flip",
        "data.mixup_probability": 0.5,
        "optim.epochs": 6,
        "optim.updates_per_epoch": 100,
        "optim.batch_size": 32,
        "optim.learning_rate": 1e-3,
        "optim.warmup_updates": 100,
        "optim.ema_decay": 0.995,
        "curriculum.epochs": 2,
        "curriculum.selection": "class",
        "curriculum.labeled_batch_fraction": 0.25,
        "consistency.weight": 3.0,
        "consistency.batch_size": 64,
        "consistency.confidence_threshold": 0.0,
        "consistency.temperature": 1.0,
    },
    # Only the end of the encoder learns, from views that are computed once: minutes on a CPU.
    "fine-tuned-end": {
        **_FEATURES,
        "model.fine_tune": "end",
        "optim.epochs": 1,
        "optim.updates_per_epoch": 20,
        "optim.batch_size": 32,
        "optim.learning_rate": 1e-3,
        "optim.encoder_lr_factor": 1.0,
        "optim.warmup_updates": 20,
        "curriculum.steps": 1,
        "curriculum.epochs": 5,
        "curriculum.selection": "class",
        "curriculum.pseudo_label_temperature": 0.6,
        "curriculum.labeled_batch_fraction": 0.5,
        "consistency.weight": 1.0,
        "consistency.batch_size": 64,
        "consistency.confidence_threshold": 0.0,
        "consistency.temperature": 1.0,
    },
    # The schedule and the strong views of FixMatch, with which FreeMatch, SoftMatch and others were compared too. The
    # papers' network has batch normalisation; here each image is normalised by itself.
    "fixmatch": {
        "method": "fixmatch",
        "model.depth": 28,
        "model.width": 2,
        "model.norm": "group",
        "data.strong_views": "randaugment",
        "data.max_shift": 4,
        "data.pixel_noise": 0.0,
        "optim.epochs": 1024,
        "optim.updates_per_epoch": 1024,
        "optim.optimizer": "sgd",
        "optim.learning_rate": 0.03,
        "optim.lr_schedule": "7/16-cosine",
        "optim.weight_decay": 5e-4,
        "optim.network_decay": 5e-4,
        "curriculum.pseudo_labels": "none",
    },
    # Like standard, at forty times the paper's rate. Mixup and sharper pseudo-labels cost so small a network accuracy.
    # It is the default on a CPU, so it must not starve rare classes: they are selected by class.
    "quick": {
        "model.depth": 10,
        "model.width": 1,
        "optim.epochs": 30,
        "optim.learning_rate": 4e-3,
        "optim.gradient_clip": 1.0,
        "optim.ema_decay": 0.99,
        "curriculum.epochs": 6,
        "curriculum.selection": "class",
        "energy.penalty": 0.5,
        "energy.center": 1.0,
        "sgld.steps": 5,
        "sgld.clamp_samples": True,
    },
}
PRESET_HELP = {
    "features": "a pretrained encoder's features: photographs in minutes on a CPU, once they are encoded",
    "fine-tuned": "a pretrained encoder that learns too: photographs in minutes on a GPU",
    "fine-tuned-end": "a pretrained encoder whose last block learns too: photographs in minutes on a CPU",
    "paper": "WRN-28-10 and the paper's schedule, for a large GPU",
    "standard": "WRN-16-4 and a short schedule at ten times the paper's learning rate, for a GPU",
    "best": "WRN-16-4 with consistency of views and mixup, for a GPU: the default there",
    "generative": "WRN-16-4 with a likelihood energy model: its samples look like the data, for a GPU",
    "fixmatch": "WRN-28-2, SGD and the schedule of FixMatch and its successors: 2^20 updates, for hours on a GPU",
    "quick": "WRN-10-1 and a short schedule: minutes on two CPU cores",
}

FINE_TUNED = {"end": "fine-tuned-end", "last": "fine-tuned", "all": "fine-tuned"}
"""The presets for what learns of an encoder."""
STEP_SETTINGS = (
    "curriculum.selection",
    "curriculum.pseudo_label_temperature",
    "curriculum.labeled_batch_fraction",
)
"""Without effect before the first curriculum step."""


def preset(name: str = "standard", changes: Mapping[str, Any] | None = None, /, **more: Any) -> Settings:
    """Settings of a named preset, with changes.

    >>> preset("quick", epochs=3).optim.epochs
    3
    """
    if name not in PRESETS:
        raise UsageError(f"There is no preset {name!r}. {did_you_mean(name, PRESETS)}")
    return Settings().changed(PRESETS[name]).changed(changes, **more)


def default_settings(device: str = "auto") -> Settings:
    """The preset that fits this machine: `best` with a GPU, `quick` without."""
    import torch

    return preset("best" if torch.cuda.is_available() and device != "cpu" else "quick")


def nearest_preset(settings: Settings) -> tuple[str, list[str]]:
    """The preset with the fewest differences to these settings, and what differs."""
    mine = settings.to_dict()
    differ = {}
    for name in PRESETS:
        other = preset(name).to_dict()
        differ[name] = [key for key in mine if mine[key] != other[key]]
    nearest = min(differ, key=lambda name: len(differ[name]))
    return nearest, differ[nearest]


def edited(stored: Mapping[str, Any], settings: Settings) -> list[str]:
    """What differs from stored settings, each with its value then and now; `runtime` may differ."""
    from ebpl.config.compat import settings_of_run

    then, now = Settings().changed(settings_of_run(stored)).to_dict(), settings.to_dict()
    differ = [name for name in now if now[name] != then[name] and not name.startswith("runtime.")]
    return [f"{name} (was {then[name]}, is {now[name]})" for name in differ]


def without_steps(settings: Settings) -> Settings:
    """Only the initial training of these settings."""
    defaults = {name: fields()[name].field.default for name in STEP_SETTINGS}
    return settings.changed(defaults, pseudo_labels="none")


def read_config(path: str | Path) -> dict[str, Any]:
    """Settings from a TOML file of groups (`[sgld]`, `steps = 5`) or from the settings.toml of a run."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"There is no file {path} to read settings from.")
    stored = read_toml(path)
    whole = stored.get("settings", stored)
    if not isinstance(whole, dict):
        raise UsageError(f"{path} holds no settings.")
    from ebpl.config.compat import modern_names, retired

    settings = modern_names(flat(whole))
    if gone := retired(settings):
        raise UsageError(f"{path} sets {', '.join(gone)}, which this version no longer has. Remove it there.")
    return {name: value for name, value in settings.items() if name != "preset"}


def flat(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Nested groups as full names.

    >>> flat({"seed": 1, "sgld": {"steps": 5}})
    {'seed': 1, 'sgld.steps': 5}
    """
    made: dict[str, Any] = {}
    for name, value in groups.items():
        made |= {f"{name}.{own}": each for own, each in value.items()} if isinstance(value, dict) else {name: value}
    return made


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Full names as nested groups: the opposite of `flat`."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        group, _, own = name.rpartition(".")
        (made.setdefault(group, {}) if group else made)[own] = value
    return made


def write_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values, which may hold one level of groups, as TOML; None is left out."""
    lines = []
    for section, entries in sections.items():
        plain = {name: value for name, value in entries.items() if not isinstance(value, dict)}
        lines += [f"[{section}]", *_entries(plain), ""]
        for group, inner in entries.items():
            if isinstance(inner, dict):
                lines += [f"[{section}.{group}]", *_entries(inner), ""]
    return "\n".join(lines)


def _entries(values: Mapping[str, Any]) -> list[str]:
    # JSON's strings, numbers and booleans are TOML's too, but for one character that TOML wants escaped
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in values.items()
        if value is not None
    ]


def read_toml(path: Path) -> dict[str, Any]:
    """What `write_toml` wrote; a damaged file is an error that names it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
