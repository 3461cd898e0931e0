"""Predictions for any number of images, in batches, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebpl.errors import DataError
from ebpl.models import Backbone, HybridModel

BATCH = Backbone.batch
"""Images that are predicted at once, unless their backbone says otherwise."""


@dataclass(frozen=True)
class Predictions:
    """Class probabilities (N, C), energies (N), and for principal components reconstruction errors (N), as float64."""

    probabilities: NDArray[np.float64]
    energies: NDArray[np.float64]
    reconstruction_errors: NDArray[np.float64] | None = None

    @property
    def labels(self) -> NDArray[np.int64]:
        """The most probable class of each image."""
        best: NDArray[np.int64] = self.probabilities.argmax(1)
        return best

    @property
    def confidences(self) -> NDArray[np.float64]:
        """The probability of that class."""
        highest: NDArray[np.float64] = self.probabilities.max(1)
        return highest


def predict(
    model: HybridModel,
    images: Tensor | NDArray[np.uint8],
    dtype: torch.dtype = torch.float32,
    batch: int | None = None,
) -> Predictions:
    """Predictions for inputs as the model keeps them, or for uint8 images (N, H, W, C) or, of gray ones, (N, H, W)."""
    return _predicted(model, images, dtype, batch, lambda _: None)


def predict_with_features(
    model: HybridModel,
    images: Tensor | NDArray[np.uint8],
    dtype: torch.dtype = torch.float32,
    batch: int | None = None,
) -> tuple[Predictions, NDArray[np.float32]]:
    """The same, and what the heads saw of each image, (N, D)."""
    features: list[NDArray[np.float32]] = []
    predictions = _predicted(model, images, dtype, batch, lambda seen: features.append(seen.float().cpu().numpy()))
    return predictions, np.concatenate(features) if features else np.zeros((0, model.features.dimension), np.float32)


@torch.no_grad()
def _predicted(
    model: HybridModel,
    images: Tensor | NDArray[np.uint8],
    dtype: torch.dtype,
    batch: int | None,
    see: Callable[[Tensor], None],
) -> Predictions:
    """Predictions in batches, by default as large as the backbone says; `see` is shown the features of each."""
    batch = batch or model.features.batch
    if not isinstance(images, Tensor):
        images = images[..., None] if images.ndim == 3 else images
        _check(model, images)
    device = next(model.parameters()).device
    backbone = model.features.for_prediction()
    probabilities, energies, errors = [], [], []
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):  # around all: casts weights once
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            prepared = part if isinstance(part, Tensor) else backbone.prepare(part)
            x = _ready(backbone.scale(prepared.to(device)))  # they travel as bytes
            features = backbone(x)
            see(features)
            scores, energy = model.heads(features)
            probabilities.append(torch.softmax(scores.double(), 1))
            energies.append(energy.double())
            if (error := backbone.reconstruction_error(features)) is not None:
                errors.append(error)
    if not probabilities:
        return Predictions(np.zeros((0, model.architecture.classes)), np.zeros(0))
    left_out = torch.cat(errors).cpu().numpy() if errors else None
    return Predictions(torch.cat(probabilities).cpu().numpy(), torch.cat(energies).cpu().numpy(), left_out)


def _ready(inputs: Tensor) -> Tensor:
    """Images in one memory layout wherever they come from, so that the same images give the same last digits."""
    if inputs.ndim != 4:
        return inputs
    return torch.empty(inputs.shape, device=inputs.device, memory_format=torch.channels_last).copy_(inputs)


def _check(model: HybridModel, images: NDArray[np.uint8]) -> None:
    channels = model.architecture.image_shape[0]
    if images.ndim != 4 or images.shape[-1] != channels or images.dtype != np.uint8:
        raise DataError(
            f"The model takes uint8 images with {channels} channels; "
            f"these are {images.dtype} of shape {tuple(images.shape)}."
        )
