"""Wide residual network without normalisation layers (Zagoruyko and Komodakis 2016, as used by JEM).

Batch normalisation would mix the statistics of real and sampled images, so there is none; LeakyReLU keeps the energy's
gradient with respect to the image alive everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebpl.models import Backbone

SLOPE = 0.2


class ResidualBlock(nn.Module):
    """Activation, convolution, twice, plus a shortcut (1 x 1 convolution where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.leaky_relu(x, SLOPE))
        outer: Tensor = self.conv2(F.leaky_relu(inner, SLOPE))
        shortcut: Tensor = self.shortcut(x)
        return outer + shortcut


class WideResNet(Backbone):
    """Images (N, channels, H, W) in, features (N, 64 * width) out; depth = 6n + 4."""

    def __init__(self, depth: int, width: int, channels: int) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        widths = [16, 16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        layers: list[nn.Module] = []
        for group in range(3):
            for block in range(blocks):
                inputs = widths[group] if block == 0 else widths[group + 1]
                stride = 2 if block == 0 and group > 0 else 1
                layers.append(ResidualBlock(inputs, widths[group + 1], stride))
        self.blocks = nn.Sequential(*layers)
        self.dimension = widths[3]

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return F.leaky_relu(x, SLOPE).mean((2, 3), dtype=torch.float32)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Uniform in +-1/sqrt(fan in): small enough that the residual sum stays stable without normalisation."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                bound = 1 / math.sqrt(module.weight[0].numel())
                module.weight.uniform_(-bound, bound, generator=generator)
                assert module.bias is not None
                module.bias.uniform_(-bound, bound, generator=generator)


def build(options: Mapping[str, Any], shape: tuple[int, ...]) -> WideResNet:
    """A wide residual network with the options `depth` and `width`."""
    return WideResNet(options["depth"], options["width"], shape[0])
