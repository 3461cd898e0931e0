"""What tests of encoders need: small ones, and photographs."""

import io
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import nn

from ebpl.encoders import ENCODERS, Encoder, load_encoder

MOBILENET = pytest.param(
    "mobilenet_v2",
    marks=pytest.mark.skipif(
        ENCODERS["mobilenet_v2"].path is None, reason=f"not installed: {ENCODERS['mobilenet_v2'].install}"
    ),
)
PUBLISHED = ["efficientnet_lite0", MOBILENET]


def photographs() -> np.ndarray:
    """A palace and a flower, 427 x 640, in colour."""
    return np.stack(load_sample_images().images)


def crops(count: int, size: int = 64) -> np.ndarray:
    """Different pieces of the photographs."""
    random = np.random.default_rng(0)
    rows, columns = random.integers(0, 427 - size, count), random.integers(0, 640 - size, count)
    images = photographs()
    return np.stack(
        [images[i % 2, r : r + size, c : c + size] for i, (r, c) in enumerate(zip(rows, columns, strict=True))]
    )


def description(weights: object, **changes: object) -> Path:
    """A TOML file that describes weights; what is None is left out."""
    weights = str(weights) if isinstance(weights, Path) else weights
    entries = {"weights": weights, "size": 32, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], **changes}
    path = Path("mine.toml")
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in entries.items() if value is not None))
    return path


def small(name: str = "efficientnet_lite0", size: int = 64) -> Encoder:
    """A published encoder for smaller images, which is quicker."""
    info = ENCODERS[name]
    how = {"architecture": name, "size": size, "mean": info.mean, "std": info.std}
    return load_encoder(str(description(info.path, **how)))


def tiny_network(features: int = 5) -> nn.Module:
    """A few filters."""
    layers = (nn.Conv2d(3, features, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers[0].reset_parameters()
    return nn.Sequential(*layers).eval()


def export_onnx(network: nn.Module, path: str = "tiny.onnx", *, size: int = 32, fixed: bool = False) -> Path:
    """A network as ONNX, for any batch unless it is fixed to two images."""
    made = io.BytesIO()
    axes = {} if fixed else {"images": {0: "batch"}, "features": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network,
            (torch.zeros(2, 3, size, size),),
            made,
            dynamo=False,
            input_names=["images"],
            output_names=["features"],
            dynamic_axes=axes,
        )
    Path(path).write_bytes(made.getvalue())
    return Path(path)


def tiny(features: int = 5) -> Encoder:
    """An encoder that takes no time."""
    return load_encoder(str(description(export_onnx(tiny_network(features)))))
