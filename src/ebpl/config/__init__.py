"""Settings in groups: each field is the settings file, `--set group.name=value`, a keyword in Python and the reference.

A setting has a full name such as `sgld.steps`. Python keywords spell the dot as two underscores (`sgld__steps=5`), and
a name that is an option of the command line or unique among the groups may be given without its group (`epochs=20`).
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ebpl.config.setting import Setting as Setting
from ebpl.errors import UsageError, did_you_mean


def _setting(default: Any, text: str, *, low: float = -math.inf, high: float = math.inf, option: bool = False) -> Any:
    """A field with its line of help, the range of values that make sense, and whether `--help` shows it."""
    return dataclasses.field(default=default, metadata={"help": text, "low": low, "high": high, "option": option})


@dataclass(frozen=True)
class DataSettings:
    """Which images are used how, and how they are augmented."""

    labels_per_class: int | None = _setting(
        None,
        "labels kept per class; the other images are treated as unlabelled (default: the paper's number for a "
        "benchmark, all labels of your own data)",
        low=1,
        option=True,
    )
    validation_fraction: float | None = _setting(
        None,
        "fraction of the labelled images held out to choose the best weights (default: 0.3 for a benchmark; for your "
        "own data 0.2 where each class has 50 labels or more, else 0)",
        low=0,
        high=0.9,
        option=True,
    )
    class_mix: str | None = _setting(
        None,
        "class mix of the unlabelled images, which the probabilities assume: that of the labels, auto (estimated), "
        "balanced, or a CSV of class and share (default: auto for your own data with an encoder, else labels)",
        option=True,
    )
    augment: Literal["auto", "none", "shift", "flip", "dihedral"] = _setting(
        "auto",
        "label-preserving augmentation; each kind contains the ones before it (auto: what suits the benchmark, shift "
        "for your own data)",
        option=True,
    )
    max_shift: int = _setting(2, "largest shift in pixels; above 32 pixels, in 32nds of the side", low=0, high=4096)
    pixel_noise: float = _setting(
        0.03, "standard deviation of Gaussian noise added to training images, or to an encoder's features", low=0
    )
    mixup_probability: float = _setting(
        0.0, "probability that an image of the classified batch is mixed with another (mixup)", low=0, high=1
    )
    strong_views: Literal["combined", "randaugment"] = _setting(
        "combined",
        "strong views: every change at a random strength, or RandAugment (2 of 14 operations) with cutout",
    )
    color_jitter: float = _setting(
        1.0,
        "strength of brightness, contrast and saturation changes in strong views (0: none); for randaugment, the "
        "probability of changes of colour",
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class ModelSettings:
    """The network and its Gaussian head."""

    encoder: str | None = _setting(
        None, "learn from the features of this pretrained encoder, see ebpl encoders (default: none)", option=True
    )
    components: int = _setting(128, "principal components of an encoder's features", low=1, high=100_000)
    square_root: Literal["auto", "always", "never"] = _setting(
        "auto", "take the square root of a frozen encoder's features (auto: where it suits the labels clearly better)"
    )
    fine_tune: Literal["none", "end", "last", "all"] = _setting(
        "none", "the encoder's weights that are learned too: none, its last block, its last third, or all", option=True
    )
    backbone: str = _setting("wide_resnet", "feature extractor, by its name in the registry of backbones")
    depth: int = _setting(16, "depth of the wide residual network: 10, 16, 22, 28 ...", low=10, high=1000, option=True)
    width: int = _setting(4, "width factor of the wide residual network", low=1, high=100, option=True)
    stages: int = _setting(
        0, "stages of the wide residual network (0: 3 for images of up to 48 pixels, 4 up to 96, else 5)", low=0, high=5
    )
    norm: Literal["none", "group"] = _setting(
        "none", "normalisation in the wide residual network: none, or group norm with weight standardisation"
    )
    precision_matrix: Literal["identity", "diagonal", "full"] = _setting(
        "diagonal", "shape of the precision matrix that all classes of the Gaussian head share"
    )

    @property
    def frozen_encoder(self) -> str | None:
        """The encoder, if it stays as it is."""
        return self.encoder if self.fine_tune == "none" else None

    @property
    def feature_options(self) -> dict[str, int]:
        """Options of a model on features: whether their square root may be taken. Older models have none."""
        return {} if self.square_root == "never" else {"square_root": 1}

    @property
    def network(self) -> str:
        """The network as papers call it."""
        if self.encoder:
            return self.encoder if self.frozen_encoder else f"fine-tuned {self.encoder}"
        return f"WRN-{self.depth}-{self.width}" if self.backbone == "wide_resnet" else self.backbone


@dataclass(frozen=True)
class OptimSettings:
    """Length of the initial training and the optimiser."""

    epochs: int = _setting(120, "epochs of the initial training", low=1, high=10_000, option=True)
    updates_per_epoch: int | None = _setting(
        None, "updates in an epoch (default: one pass over all training images)", low=1, high=1_000_000
    )
    batch_size: int = _setting(
        64, "images in the classified batch and in the density batch", low=1, high=100_000, option=True
    )
    optimizer: Literal["adam", "sgd"] = _setting("adam", "Adam, or SGD with Nesterov momentum of 0.9")
    learning_rate: float = _setting(1e-4, "learning rate of the optimiser", low=0, option=True)
    encoder_lr_factor: float = _setting(
        0.1, "learning rate of a fine-tuned encoder, as a fraction of optim.learning_rate", low=0, high=1
    )
    warmup_updates: int = _setting(0, "updates of linear warm-up after an initialisation", low=0, high=1e9)
    final_lr_factor: float = _setting(
        1.0, "fraction of the learning rate left at the end of each phase, after a cosine (1: constant)", low=0, high=1
    )
    lr_schedule: Literal["half-cosine", "7/16-cosine"] = _setting(
        "half-cosine", "the fall to that fraction, or FixMatch's: cos(7/16 pi t) at the fraction t of a phase"
    )
    gradient_clip: float = _setting(0.0, "clip the parameter gradient at this norm (0: off)", low=0)
    weight_decay: float = _setting(0.0, "weight decay of the classifier's weights", low=0)
    network_decay: float = _setting(0.0, "weight decay of the network's weights (not biases)", low=0)
    label_smoothing: float = _setting(
        0.0, "share of each target in the cross-entropy that is spread evenly over all classes", low=0, high=0.9
    )
    ema_decay: float = _setting(
        0.999, "decay of the moving average of the weights, which predicts and is kept (0: off)", low=0, high=0.99999
    )


@dataclass(frozen=True)
class CurriculumSettings:
    """Pseudo-labels: how many, which, and how they are learned from."""

    pseudo_labels: Literal["none", "hard", "soft"] = _setting(
        "soft", "none: initial training only; hard: the predicted class; soft: the whole posterior", option=True
    )
    steps: int = _setting(
        4, "curriculum steps T; step t labels the most confident 100*t/T %% of the images", low=1, high=1000
    )
    epochs: int = _setting(20, "epochs in each curriculum step", low=0, high=10_000)
    selection: Literal["all", "class"] = _setting(
        "all", "take the most confident images of all, or of each predicted class"
    )
    pseudo_label_temperature: float = _setting(
        1.0, "temperature of soft pseudo-labels; below 1 they are sharper than the posterior", low=0.01, high=1
    )
    labeled_batch_fraction: float = _setting(
        0.0, "fraction of the classified batch with true labels in curriculum steps (0: as sampled)", low=0, high=0.9
    )
    calibration_holdout: float = _setting(
        0.0,
        "fraction of the labels of each class held out to fit a temperature, where that is 100 labels or more; they "
        "rejoin training at step 1",
        low=0,
        high=0.5,
    )
    reject_outliers: float = _setting(
        0.0,
        "reject unlabelled images further from every class than this quantile of the labelled images, unless their "
        "distance is usual among the unlabelled ones; for instance 0.99 (0: off)",
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class EnergySettings:
    """The energy-based model's terms of the loss."""

    weight: float = _setting(1.0, "weight of the energy model's negative log-likelihood", low=0)
    coupling_weight: float = _setting(0.001, "lambda: weight of the coupling of both heads", low=0)
    penalty: float = _setting(0.0, "weight of the squared distance of energies from the centre", low=0)
    center: float = _setting(0.0, "energy that the penalty pulls to")
    clamp_images: bool = _setting(
        False, "keep the noisy images of the density batch inside the range of images, as clamped samples are"
    )


@dataclass(frozen=True)
class ConsistencySettings:
    """Agreement of strong views of unlabelled images with predictions for weak views."""

    weight: float = _setting(0.0, "weight of the consistency loss (0: off)", low=0)
    batch_size: int = _setting(256, "unlabelled images in the consistency batch", low=1, high=100_000)
    confidence_threshold: float = _setting(0.95, "least confidence of a prediction used as a target", low=0, high=1)
    final_threshold: float | None = _setting(
        None, "final threshold, reached linearly by the end of the initial training (default: the same)", low=0, high=1
    )
    temperature: float = _setting(
        0.0, "temperature of the target: 1 is the posterior, 0 the predicted class", low=0, high=1
    )
    final_temperature: float | None = _setting(
        None,
        "final temperature, reached linearly by the end of the initial training (default: the same)",
        low=0,
        high=1,
    )
    distribution_alignment: bool = _setting(
        False, "divide targets by the running mean prediction, and multiply by the class mix (ReMixMatch)"
    )


@dataclass(frozen=True)
class UnlabeledSettings:
    """How the methods of other papers learn from unlabelled images; EBPL and its baseline do not use this group."""

    weight: float | None = _setting(None, "weight of their loss (default: that of the method's paper)", low=0)
    ratio: int | None = _setting(
        None, "unlabelled images for each labelled one (default: that of the method's paper)", low=1, high=1000
    )
    threshold: float = _setting(0.95, "FixMatch: least confidence of a prediction used as a target", low=0, high=1)
    momentum: float = _setting(
        0.999, "FreeMatch and SoftMatch: decay of the running statistics of predictions", low=0, high=0.99999
    )


@dataclass(frozen=True)
class SGLDSettings:
    """The sampler of the energy-based model."""

    steps: int = _setting(20, "sampling steps K for each update", low=1, high=100_000)
    step_size: float = _setting(1.0, "factor of the energy's gradient in a sampling step", low=0)
    noise: float = _setting(0.01, "standard deviation of the noise in a sampling step", low=0)
    gradient_clip: float = _setting(0.0, "clamp each value of the energy's gradient to +-this (0: off)", low=0)
    clamp_samples: bool = _setting(False, "keep samples inside the range of images, [-1, 1]")
    chains: int = _setting(64, "chains sampled for each update", low=1, high=100_000)
    buffer_size: int = _setting(10_000, "samples in the replay buffer, up to 512 MiB", low=1, high=10_000_000)
    restart_probability: float = _setting(0.05, "probability that a chain restarts", low=0, high=1)
    start: Literal["uniform", "gaussian"] = _setting(
        "uniform", "where chains start: uniform noise, or a Gaussian fitted to the training images"
    )


@dataclass(frozen=True)
class DivergenceSettings:
    """What counts as divergence, and how often training recovers from it."""

    retries: int = _setting(5, "recoveries from divergence before training stops with an error", low=0, high=1000)
    max_energy_gap: float = _setting(50.0, "largest distance between energies of images and samples", low=0)


@dataclass(frozen=True)
class RuntimeSettings:
    """Where to compute and what to write; without effect on the result."""

    device: Literal["auto", "cpu", "cuda"] = _setting("auto", "where to compute (auto: a GPU if any)", option=True)
    dtype: Literal["auto", "float32", "bfloat16"] = _setting(
        "auto", "number format of the network (auto: bfloat16 on a GPU, float32 on the CPU)"
    )
    checkpoint_seconds: float = _setting(30.0, "least time between two checkpoints (0: every epoch)", low=0)
    tensorboard: bool = _setting(False, "also write TensorBoard events (needs the extra 'tensorboard')")


@dataclass(frozen=True)
class Settings:
    """How one run is trained. `preset(name)` gives the named sets; `changed` makes a variation.

    >>> Settings().changed(epochs=3, sgld__steps=5).sgld.steps
    5
    """

    method: str = _setting("ebpl", "training method, see `ebpl train --help`", option=True)
    seed: int = _setting(0, "seed of split, labels, initialisation and sampling", low=0, option=True)
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optim: OptimSettings = OptimSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    energy: EnergySettings = EnergySettings()
    consistency: ConsistencySettings = ConsistencySettings()
    unlabeled: UnlabeledSettings = UnlabeledSettings()
    sgld: SGLDSettings = SGLDSettings()
    divergence: DivergenceSettings = DivergenceSettings()
    runtime: RuntimeSettings = RuntimeSettings()

    def __post_init__(self) -> None:
        for setting in fields().values():
            owner = getattr(self, setting.group) if setting.group else self
            object.__setattr__(owner, setting.field.name, setting.checked(getattr(owner, setting.field.name)))
        if (self.model.depth - 4) % 6 and self.model.backbone == "wide_resnet":
            below = self.model.depth - (self.model.depth - 4) % 6
            raise UsageError(
                f"model.depth is {self.model.depth}, but must be 6n + 4. Nearest: {max(10, below)} or {below + 6}."
            )
        if self.sgld.chains > self.sgld.buffer_size:
            raise UsageError(
                f"sgld.chains ({self.sgld.chains}) exceeds sgld.buffer_size ({self.sgld.buffer_size}). Raise the "
                "buffer or lower the chains."
            )

    def changed(self, changes: Mapping[str, Any] | None = None, /, **more: Any) -> Settings:
        """The same settings with some changed; an unknown name is an error that suggests the right one.

        Names are `group.name`, `group__name`, or just the name where it is an option or unique.
        """
        groups: dict[str, dict[str, Any]] = {}
        for given, value in _flat({**(changes or {}), **more}):
            setting = find(given)
            groups.setdefault(setting.group, {})[setting.field.name] = value
        made = {name: dataclasses.replace(getattr(self, name), **own) for name, own in groups.items() if name}
        return dataclasses.replace(self, **groups.get("", {}), **made)

    def to_dict(self) -> dict[str, Any]:
        """All settings by their full names, in the order of their definition."""
        return {name: self[name] for name in fields()}

    def __getitem__(self, name: str) -> Any:
        setting = find(name)
        return getattr(getattr(self, setting.group) if setting.group else self, setting.field.name)


@cache
def fields() -> dict[str, Setting]:
    """Every setting by its full name."""
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(Settings):
        kind = typing.get_type_hints(Settings)[field.name]
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            inner = [Setting(field.name, own, hints[own.name]) for own in dataclasses.fields(kind)]
        else:
            inner = [Setting("", field, kind)]
        found |= {setting.name: setting for setting in inner}
    return found


@cache
def groups() -> dict[str, str]:
    """The groups and what each is about; '' stands for the settings outside of them."""
    named = typing.get_type_hints(Settings)
    docs = {name: kind.__doc__ or "" for name, kind in named.items() if dataclasses.is_dataclass(kind)}
    return {"": "What is trained.", **docs}


def find(name: str) -> Setting:
    """The setting that a name stands for: `sgld.steps`, `sgld__steps`, or just `epochs` where that is clear."""
    known = fields()
    full = name.replace("__", ".", 1)
    if full in known:
        return known[full]
    alike = [setting for setting in known.values() if setting.field.name == name]
    options = [setting for setting in alike if setting.is_option]
    if len(options) == 1 or len(alike) == 1:
        return (options or alike)[0]
    if alike:
        raise UsageError(f"{name} could be {' or '.join(setting.name for setting in alike)}. Give the whole name.")
    words = [*known, *(setting.field.name for setting in known.values() if setting.is_option)]
    raise UsageError(f"There is no setting {name!r}. {did_you_mean(full, words)}")


def _flat(changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Changes with whole names; a group may be given as a dictionary."""
    for name, value in changes.items():
        if name in groups() and isinstance(value, Mapping):
            yield from ((f"{name}.{own}", each) for own, each in value.items())
        else:
            yield name, value
