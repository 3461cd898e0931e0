"""Equation (3) of the paper: cross-entropy + negative log-likelihood of the energy model + coupling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ebpl.model.hybrid import HybridModel


@dataclass(frozen=True)
class Terms:
    """The loss and its parts, each a mean over its own batch."""

    loss: Tensor
    cross_entropy: Tensor
    energy_images: Tensor
    energy_samples: Tensor
    coupling: Tensor
    consistency: Tensor
    asked: Tensor
    """The share of strong views that something is asked of."""


def objective(
    model: HybridModel,
    classified: Tensor,
    targets: Tensor,
    images: Tensor | None = None,
    samples: Tensor | None = None,
    *,
    density_weight: float = 1.0,
    coupling_weight: float = 0.001,
    energy_penalty: float = 0.0,
    energy_center: float = 0.0,
    strong: Tensor | None = None,
    agreed: Tensor | None = None,
    consistency: float = 0.0,
    features: Callable[[Tensor], Tensor] | None = None,
) -> Terms:
    """The loss of one update; without `images` and `samples` it is the classifier's cross-entropy alone.

    `targets` are probabilities, one-hot for true and hard labels. The gradient of -log p(x) is that of
    E(images) - E(samples), with samples drawn from the model and held fixed. `strong` views of unlabelled images shall
    be given the probabilities `agreed`, rows of zeros where nothing is asked of them. `features` may stand in for the
    model's own feature extractor.
    """
    network = (lambda images: model.heads(features(images))) if features else model
    parts = [part for part in (classified, images, samples, strong) if part is not None]
    # without normalisation layers the images of a batch do not see each other: one pass serves all parts
    scores, energies = network(torch.cat(parts))
    first, last = len(classified), len(scores) - (0 if strong is None else len(strong))
    cross_entropy = F.cross_entropy(scores[:first], targets)
    zero = torch.zeros_like(cross_entropy)
    loss, agreement, asked = cross_entropy, zero, zero
    if agreed is not None:
        agreement, asked = F.cross_entropy(scores[last:], agreed), agreed.sum(1).mean()
        loss = cross_entropy + consistency * agreement
    if images is None or samples is None:
        return Terms(loss, cross_entropy, zero, zero, zero, agreement, asked)
    energy_images, energy_samples = energies[first : first + len(images)], energies[first + len(images) : last]
    density = energy_images.mean() - energy_samples.mean()
    coupling = model.coupling()
    loss = loss + density_weight * density + coupling_weight * coupling
    if energy_penalty:
        away = [(energies - energy_center).square().mean() for energies in (energy_images, energy_samples)]
        loss = loss + energy_penalty * sum(away)
    return Terms(loss, cross_entropy, energy_images.mean(), energy_samples.mean(), coupling, agreement, asked)
