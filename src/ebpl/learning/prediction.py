"""Predictions for any number of images, in batches, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebpl.errors import DataError
from ebpl.learning.ranks import Ranks
from ebpl.model.hybrid import HybridModel

BATCH = 512


@dataclass(frozen=True)
class Predictions:
    """Class probabilities (N, C) and energies (N) as float64."""

    probabilities: NDArray[np.float64]
    energies: NDArray[np.float64]

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
    model: HybridModel, images: Tensor | NDArray[np.uint8], dtype: torch.dtype = torch.float32, batch: int = BATCH
) -> Predictions:
    """Predictions for uint8 images: a tensor (N, C, H, W), or an array (N, H, W, C) or, of gray ones, (N, H, W)."""
    return _predicted(model, images, dtype, batch, lambda _: None)


def predict_with_features(
    model: HybridModel, images: Tensor | NDArray[np.uint8], dtype: torch.dtype = torch.float32, batch: int = BATCH
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
    batch: int,
    see: Callable[[Tensor], None],
) -> Predictions:
    """Predictions in batches; `see` is shown the features of each."""
    if not isinstance(images, Tensor):
        images = images[..., None] if images.ndim == 3 else images
    channels = images.shape[1 if isinstance(images, Tensor) else -1]
    if images.ndim != 4 or channels != model.architecture.channels or "uint8" not in str(images.dtype):
        raise DataError(
            f"The model takes uint8 images with {model.architecture.channels} channels; "
            f"these are {images.dtype} of shape {tuple(images.shape)}."
        )
    device = next(model.parameters()).device
    probabilities, energies = [], []
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):  # around all: casts weights once
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            if not isinstance(part, Tensor):
                part = torch.from_numpy(np.require(part, requirements=["C", "W"])).permute(0, 3, 1, 2)
            # one memory layout wherever the images come from, so that the same images give the same last digits
            x = torch.empty(part.shape, device=device, memory_format=torch.channels_last)
            x.copy_(part.to(device)).div_(127.5).sub_(1)  # they travel as bytes
            features = model.features(x)
            see(features)
            scores, energy = model.heads(features)
            probabilities.append(torch.softmax(scores.double(), 1))
            energies.append(energy.double())
    if not probabilities:
        return Predictions(np.zeros((0, model.architecture.classes)), np.zeros(0))
    return Predictions(torch.cat(probabilities).cpu().numpy(), torch.cat(energies).cpu().numpy())


def predict_together(model: HybridModel, images: Tensor, dtype: torch.dtype, ranks: Ranks) -> Predictions:
    """The same predictions in every process, each of which computes its share of them."""
    if ranks.count == 1:
        return predict(model, images, dtype)
    mine = predict(model, _share(images, ranks), dtype)
    table = _gathered(np.column_stack([mine.probabilities, mine.energies]), images, ranks)
    return Predictions(table[:, :-1], table[:, -1])


def features_together(
    model: HybridModel, images: Tensor, dtype: torch.dtype, ranks: Ranks
) -> NDArray[np.float32] | NDArray[np.float64]:
    """What the heads see of each image, (N, D), the same in every process."""
    _, mine = predict_with_features(model, _share(images, ranks), dtype)
    return mine if ranks.count == 1 else _gathered(mine, images, ranks)


def _share(images: Tensor, ranks: Ranks) -> Tensor:
    """The images of this process; the last processes may have fewer."""
    share = -(-len(images) // ranks.count)
    return images[ranks.index * share : (ranks.index + 1) * share]


def _gathered(mine: NDArray[np.floating], images: Tensor, ranks: Ranks) -> NDArray[np.float64]:
    """The rows of all processes, one for each image."""
    rows = torch.zeros(-(-len(images) // ranks.count), mine.shape[1], dtype=torch.float64)
    rows[: len(mine)] = torch.from_numpy(mine)
    table: NDArray[np.float64] = ranks.gather(rows.to(images.device))[: len(images)].cpu().numpy()
    return table
