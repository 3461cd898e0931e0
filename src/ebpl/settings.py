"""Every setting, once.

The dataclass below is the settings file, the command line, the keyword arguments of `ebpl.train` and the reference
documentation at the same time: a field's metadata holds its line of help and the group it is listed under.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ebpl.errors import UsageError, did_you_mean


def _option(default: Any, group: str, text: str, *, low: float = -math.inf, high: float = math.inf) -> Any:
    """A field with its line of help, its group, and the range of values that make sense."""
    return dataclasses.field(default=default, metadata={"group": group, "help": text, "low": low, "high": high})


@dataclass(frozen=True)
class Settings:
    """How one run is trained. `preset(name)` gives the named sets; `changed` makes a variation."""

    method: Literal["ebpl", "curriculum-labeling"] = _option(
        "ebpl", "What to train", "EBPL, or the paper's baseline: the same network and schedule without the energy model"
    )
    pseudo_labels: Literal["none", "hard", "soft"] = _option(
        "soft", "What to train", "none: initial training only; hard: the predicted class; soft: the whole posterior"
    )
    labels_per_class: int | None = _option(
        None,
        "What to train",
        "labels kept per class, the rest is treated as unlabelled "
        "(default: the paper's number for a benchmark, all labels of your own data)",
        low=1,
    )
    validation_fraction: float | None = _option(
        None,
        "What to train",
        "share of the training images set apart, with labels, to choose the best weights "
        "(default: 0.3 for a benchmark as in the paper; 0.2 of your labels where each class has 50 or more, else 0: "
        "the last weights are kept)",
        low=0,
        high=0.9,
    )
    seed: int = _option(0, "What to train", "fixes split, labels, initialisation and sampling", low=0)

    depth: int = _option(16, "Network", "depth of the wide residual network: 10, 16, 22, 28, 40 ...", low=10, high=1000)
    width: int = _option(4, "Network", "width factor of the wide residual network", low=1)
    precision: Literal["identity", "diagonal", "full"] = _option(
        "diagonal", "Network", "shape of the Gaussian head's shared precision matrix"
    )

    epochs: int = _option(120, "Schedule", "epochs of the initial training", low=1)
    epoch_updates: int | None = _option(
        None, "Schedule", "updates in an epoch (default: as many as one pass over all training images takes)", low=1
    )
    steps: int = _option(4, "Schedule", "curriculum steps T; step t labels the top 100*t/T %% of the images", low=1)
    step_epochs: int = _option(20, "Schedule", "epochs in each curriculum step", low=0)
    selection: Literal["all", "class"] = _option(
        "all",
        "Schedule",
        "whose most confident images a step labels: of all images together, or of each predicted class",
    )
    sharpening: float = _option(
        1.0,
        "Schedule",
        "temperature of soft pseudo-labels: 1 leaves the posterior as it is, near 0 it is almost the predicted class",
        low=0.01,
        high=1,
    )
    labeled_share: float = _option(
        0.0,
        "Schedule",
        "share of the classified batch with true labels in the curriculum's steps (0: as many as come by chance)",
        low=0,
        high=0.9,
    )
    held_back: float = _option(
        0.0,
        "Schedule",
        "share of the labels of each class that wait until the first step to be learned from; until then they check "
        "the confidence, which is corrected if they prove it wrong (where that is 100 labels or more; without steps "
        "they are never learned from)",
        low=0,
        high=0.5,
    )
    reject_outliers: float = _option(
        0.0,
        "Schedule",
        "from the first step on, leave out unlabelled images that are further from every class than this share of "
        "images that belong, for instance 0.99 (0: off)",
        low=0,
        high=1,
    )
    batch_size: int = _option(64, "Schedule", "images in each of the classified and the density batch", low=1)
    learning_rate: float = _option(1e-4, "Schedule", "Adam's learning rate", low=0)
    warm_up: int = _option(0, "Schedule", "updates over which fresh weights come to the full learning rate", low=0)
    final_rate: float = _option(
        1.0,
        "Schedule",
        "share of the learning rate left at the end of the initial training and of each step, after a cosine "
        "(1: constant)",
        low=0,
        high=1,
    )
    gradient_clip: float = _option(0.0, "Schedule", "clip the parameter gradient at this norm (0: off)", low=0)
    weight_average: float = _option(
        0.999,
        "Schedule",
        "decay of the moving average of the weights, which predicts and is kept (0: off)",
        low=0,
        high=0.99999,
    )

    augment: Literal["auto", "none", "shift", "flip", "dihedral"] = _option(
        "auto",
        "Images",
        "label-safe augmentation of the classified batch; each kind contains the ones before it "
        "(auto: what suits the benchmark, shift for your own data)",
    )
    strong: float = _option(
        0.0,
        "Images",
        "share of the classified batch that is augmented strongly: turned, zoomed, slanted, in other light and "
        "colours, partly hidden",
        low=0,
        high=1,
    )
    strong_colors: float = _option(
        1.0,
        "Images",
        "how much light and colours change in strong views: all (1), or less, down to not at all (0), where they tell "
        "classes apart",
        low=0,
        high=1,
    )
    mix: float = _option(
        0.0,
        "Images",
        "share of the classified batch that is mixed with another image of it, labels likewise (mixup)",
        low=0,
        high=1,
    )
    mixed: Literal["all", "labeled"] = _option(
        "all", "Images", "which images are mixed: all that are classified, or those with a true label alone"
    )
    max_shift: int = _option(2, "Images", "largest shift in pixels", low=0)
    pixel_noise: float = _option(0.03, "Images", "Gaussian noise added in training to images in [-1, 1]", low=0)

    density_weight: float = _option(1.0, "Objective", "weight of the energy model's negative log-likelihood", low=0)
    coupling_weight: float = _option(0.001, "Objective", "lambda: weight of the coupling of both heads", low=0)
    energy_penalty: float = _option(0.0, "Objective", "weight of the squared energies, keeps them small", low=0)
    energy_center: float = _option(0.0, "Objective", "the energy that the penalty pulls to")

    consistency: float = _option(
        0.0,
        "Objective",
        "weight of the agreement of strong views of unlabelled images with what is predicted for the plain ones (0: "
        "off)",
        low=0,
    )
    gate: float = _option(
        0.95, "Objective", "least confidence of a prediction that strong views must agree with", low=0, high=1
    )
    consistency_sharpening: float = _option(
        0.0,
        "Objective",
        "temperature of the prediction that strong views must agree with: 1 is the posterior as it is, 0 the predicted "
        "class",
        low=0,
        high=1,
    )
    consistency_batch: int = _option(256, "Objective", "unlabelled images looked at twice for each update", low=1)

    sgld_steps: int = _option(20, "SGLD", "sampling steps K for each update", low=1)
    sgld_step_size: float = _option(1.0, "SGLD", "factor of the energy's gradient in one sampling step", low=0)
    sgld_noise: float = _option(0.01, "SGLD", "standard deviation of the noise in one sampling step", low=0)
    sgld_gradient_clip: float = _option(0.0, "SGLD", "clamp each value of that gradient to +-this (0: off)", low=0)
    clamp_samples: bool = _option(False, "SGLD", "keep samples inside the range of images, [-1, 1]")
    chains: int = _option(64, "SGLD", "chains sampled for each update", low=1)
    buffer_size: int = _option(10_000, "SGLD", "samples kept in the replay buffer", low=1)
    restart_probability: float = _option(0.05, "SGLD", "share of chains restarted from uniform noise", low=0, high=1)

    guard_tries: int = _option(5, "Guard", "how often a diverging run is healed before it gives up", low=0)
    guard_every: int = _option(10, "Guard", "updates between two looks at the losses and energies", low=1)
    guard_gap: float = _option(
        50.0, "Guard", "energies of images and samples further apart than this are running away", low=0
    )

    device: Literal["auto", "cpu", "cuda"] = _option("auto", "Machine", "where to compute (auto: the GPU if any)")
    dtype: Literal["auto", "float32", "bfloat16"] = _option(
        "auto", "Machine", "numbers in the network (auto: bfloat16 on a GPU, float32 on the CPU)"
    )
    checkpoint_seconds: float = _option(30.0, "Machine", "least time between two checkpoints (0: every epoch)", low=0)
    tensorboard: bool = _option(False, "Machine", "also write TensorBoard events (needs the extra 'tensorboard')")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        if (self.depth - 4) % 6:
            below = self.depth - (self.depth - 4) % 6
            raise UsageError(f"depth is {self.depth}, but must be 6n + 4. Nearest: {max(10, below)} or {below + 6}.")
        if self.chains > self.buffer_size:
            raise UsageError(
                f"chains ({self.chains}) exceed buffer_size ({self.buffer_size}). "
                "Raise --buffer-size or lower --chains."
            )

    def changed(self, **changes: Any) -> Settings:
        """The same settings with some changed; an unknown name is an error that suggests the right one."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise UsageError(f"There is no setting {name!r}. {did_you_mean(name, names)}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All settings by name, in the order of their definition."""
        return dataclasses.asdict(self)


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value in the field's own type, or an error that names the setting and what it takes."""
    kind = field_type(field.name)
    if value is None:
        if is_optional(field.name):
            return None
        raise UsageError(f"{field.name} needs a value.")
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"{field.name} is {value!r}. {did_you_mean(str(value), get_args(kind))}")
        return value
    wrong_bool = isinstance(value, bool) != (kind is bool)
    if wrong_bool or not isinstance(value, (int, float)):
        raise UsageError(f"{field.name} is {value!r}, but must be {_NAMES[kind]}.")
    if not math.isfinite(value):
        raise UsageError(f"{field.name} is {value}, but must be a finite number.")
    if kind is int and value != int(value):
        raise UsageError(f"{field.name} is {value!r}, but must be {_NAMES[kind]}.")
    low, high = field.metadata["low"], field.metadata["high"]
    if not low <= value <= high:
        wanted = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise UsageError(f"{field.name} is {value}, but must be {wanted}.")
    return kind(value)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false"}


def field_type(name: str) -> Any:
    """The type of a setting, without the `| None`."""
    hint = _hints()[name]
    if get_origin(hint) is types.UnionType:
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


def is_optional(name: str) -> bool:
    """Whether a setting may be left open (None), to be filled in from the data."""
    return type(None) in get_args(_hints()[name])


def _hints() -> dict[str, Any]:
    if not _HINTS:
        _HINTS.update(typing.get_type_hints(Settings))
    return _HINTS


_HINTS: dict[str, Any] = {}

# A rate ten times the paper's needs a tenth of its updates. Clamped samples, a clipped gradient and a penalty on the
# energies keep it stable. Around an energy of 1 / (2 * penalty) the penalty pulls images to 0, where one class may
# claim them alone; around 0 it would pull them below, where several must, and the confidence would be too low.
_STANDARD: dict[str, Any] = {
    "epochs": 12,
    "step_epochs": 6,
    "epoch_updates": 128,
    "learning_rate": 1e-3,
    "warm_up": 200,
    "gradient_clip": 1.0,
    "energy_penalty": 0.5,
    "energy_center": 1.0,
    "sgld_steps": 10,
    "clamp_samples": True,
}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"depth": 28, "width": 10, "augment": "none", "weight_average": 0.0},
    "standard": _STANDARD,
    # What was found to help on Blood and CIFAR-10. Strong views of all unlabelled images learn the posterior that the
    # averaged weights give to weak ones: it is calibrated, so it needs neither a gate nor sharpening. Mixed images keep
    # the cross-entropy from zero, a quarter of true labels in every batch keeps the steps from drifting,
    # and the most confident of each class keep hard classes from being forgotten in them. Pseudo-labels are made
    # sharper, as mixing made them flat. The energies may count less and be sampled in fewer steps. Where there are
    # labels enough, some wait until the first step and prove a confidence wrong that is.
    "best": {
        **_STANDARD,
        "epochs": 24,
        "step_epochs": 4,
        "epoch_updates": 256,
        "mix": 0.5,
        "max_shift": 3,
        "labeled_share": 0.25,
        "held_back": 0.2,
        "selection": "class",
        "sharpening": 0.8,
        "consistency": 3.0,
        "consistency_sharpening": 1.0,
        "gate": 0.0,
        "density_weight": 0.2,
        "energy_penalty": 0.1,
        "sgld_steps": 5,
    },
    # Like standard, at a rate forty times the paper's. Mixed images and sharper labels served so small a network badly.
    "quick": {
        "depth": 10,
        "width": 1,
        "epochs": 30,
        "step_epochs": 6,
        "learning_rate": 4e-3,
        "gradient_clip": 1.0,
        "energy_penalty": 0.5,
        "energy_center": 1.0,
        "weight_average": 0.99,
        "sgld_steps": 5,
        "clamp_samples": True,
    },
}
PRESET_HELP = {
    "paper": "WRN-28-10 and the paper's schedule with no extras; for a large GPU",
    "standard": "WRN-16-4, a short schedule at ten times the rate, light augmentation, averaged weights; for a GPU",
    "best": "WRN-16-4 with what was found to help, above all agreement of weak and strong views; for a GPU",
    "quick": "WRN-10-1 and a short schedule at a high rate; minutes on two CPU cores",
}


STEP_SETTINGS = ("selection", "sharpening", "labeled_share", "mixed")
"""Of no effect before the first curriculum step."""


def without_steps(settings: Settings) -> Settings:
    """The initial training of these settings alone."""
    return settings.changed(pseudo_labels="none", **{name: getattr(Settings, name) for name in STEP_SETTINGS})


def preset(name: str = "standard", **changes: Any) -> Settings:
    """Settings of a named preset, with changes.

    >>> preset("quick", epochs=3).epochs
    3
    """
    if name not in PRESETS:
        raise UsageError(f"There is no preset {name!r}. {did_you_mean(name, PRESETS)}")
    return Settings(**PRESETS[name]).changed(**changes)


def write_toml(values: dict[str, dict[str, Any]]) -> str:
    """Sections of plain values as TOML; None is left out, since TOML has no such value."""
    lines = []
    for section, entries in values.items():
        lines.append(f"[{section}]")
        for name, value in entries.items():
            if value is not None:
                # JSON's strings, numbers and booleans are TOML's too, but for one character that TOML wants escaped
                text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
                lines.append(f"{name} = {text}")
        lines.append("")
    return "\n".join(lines)


def read_toml(path: Path) -> dict[str, Any]:
    """What `write_toml` wrote; a damaged file is an error that names it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
