"""The hybrid model: one feature extractor, a softmax classifier and, for EBPL, a Gaussian energy head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ebpl.model.gaussian_head import GaussianHead
from ebpl.model.wide_resnet import WideResNet, initialise_convolutions


@dataclass(frozen=True)
class Architecture:
    """All that is needed to build a model; stored beside the weights."""

    depth: int
    width: int
    channels: int
    classes: int
    precision: str | None
    """Shape of the Gaussian head's precision matrix; None: a classifier alone, as the baseline has it."""

    def build(self) -> HybridModel:
        """The model, with parameters still to be initialised or loaded."""
        return HybridModel(self)


class HybridModel(nn.Module):
    """Images in [-1, 1] in; `forward` gives class scores and energies from one pass through the network."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.features = WideResNet(architecture.depth, architecture.width, architecture.channels)
        dimension = self.features.dimension
        self.classifier = nn.Linear(dimension, architecture.classes)
        self.gaussian = (
            GaussianHead(dimension, architecture.classes, architecture.precision) if architecture.precision else None
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores (N, C), whose softmax is p(c | x), and energies (N).

        A model without the Gaussian head has no density; its energy is the free energy of the classifier's scores.
        """
        return self.heads(self.features(images))

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads on given features, in float32 whatever the network computes in."""
        with torch.autocast(features.device.type, enabled=False):
            scores = self.classifier(features)
            if self.gaussian is None:
                return scores, -torch.logsumexp(scores, 1)
            return scores, self.gaussian.energy(features)

    def coupling(self) -> Tensor:
        """The coupling penalty between both heads (zero for a classifier alone)."""
        if self.gaussian is None:
            return self.classifier.bias.new_zeros(())
        return self.gaussian.coupling(self.classifier.weight, self.classifier.bias)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> HybridModel:
        """Fresh parameters from the generator alone; the heads start in agreement, so the coupling starts at zero."""
        initialise_convolutions(self.features, generator)
        if self.gaussian is None:
            bound = 1 / math.sqrt(self.features.dimension)
            self.classifier.weight.uniform_(-bound, bound, generator=generator)
            self.classifier.bias.zero_()
        else:
            self.gaussian.initialise(generator)
            self.classifier.weight.copy_(self.gaussian.natural_weight())
            self.classifier.bias.copy_(self.gaussian.natural_bias())
        return self

    def parameter_count(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())
