"""Wide residual network without batch normalisation (Zagoruyko and Komodakis 2016, as used by JEM).

Batch normalisation would mix the statistics of real and sampled images, so there is none; LeakyReLU keeps the energy's
gradient with respect to the image alive everywhere. `norm="group"` normalises each image by itself: group norm (Wu and
He 2018) before each activation, and standardised weights (Qiao et al. 2019).

Larger images get more stages, each at half the height and width of the one before. They are put in front, with half the
channels for each: four times the pixels at a quarter of the operations a pixel, so every stage costs the same. Images
of 128 pixels then take 1.8 times the operations of images of 32, and 4.3 times the activations. Three stages would take
16 times of both, and wide stages behind them 18 times. The last three stages see about 32 x 32 pixels, as where the
method was tuned, and the heads see as many features. No stage has fewer channels than the stem's 16: with 8,
PyTorch 2.13 crashed in the backward pass on a CPU.
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
GROUP = 16
"""Channels that are normalised together."""
NORMS = ("none", "group")
LEAST, MOST = 3, 5
"""Stages: of Zagoruyko and Komodakis, and of the largest images."""
LARGEST = 48
"""Height or width up to which images have the least number of stages; each more halves them once more before."""


def stages_for(height: int, width: int) -> int:
    """The stages that suit images of this size.

    >>> [stages_for(size, size) for size in (28, 48, 64, 96, 128, 224)]
    [3, 3, 4, 4, 5, 5]
    """
    halvings = math.ceil(math.log2(max(1, min(height, width) / LARGEST)))
    return min(MOST, LEAST + halvings)


class StandardizedConv2d(nn.Conv2d):
    """A convolution whose filters have a mean of 0 and a length of 1, whatever their weights."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.float()
        weight = weight - weight.mean((1, 2, 3), keepdim=True)
        weight = weight * torch.rsqrt(weight.square().sum((1, 2, 3), keepdim=True) + 1e-10)
        return F.conv2d(x, weight.to(self.weight.dtype), self.bias, self.stride, self.padding)


def convolution(norm: str, inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps height and width, or divides them by its stride."""
    kind = StandardizedConv2d if norm == "group" else nn.Conv2d
    return kind(inputs, outputs, size, stride=stride, padding=size // 2)


def normalisation(norm: str, channels: int) -> nn.Module:
    """What comes before an activation."""
    return nn.GroupNorm(channels // GROUP, channels) if norm == "group" else nn.Identity()


class ResidualBlock(nn.Module):
    """Normalisation if any, activation, convolution, twice, plus a shortcut (1 x 1 where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str = "none") -> None:
        super().__init__()
        self.norm1, self.norm2 = normalisation(norm, inputs), normalisation(norm, outputs)
        self.conv1 = convolution(norm, inputs, outputs, 3, stride)
        self.conv2 = convolution(norm, outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(norm, inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.leaky_relu(self.norm1(x), SLOPE))
        outer: Tensor = self.conv2(F.leaky_relu(self.norm2(inner), SLOPE))
        shortcut: Tensor = self.shortcut(x)
        return outer + shortcut


class WideResNet(Backbone):
    """Images (N, channels, H, W) in, features (N, 64 * width) out; depth = 6n + 4 has n blocks in each stage."""

    def __init__(self, depth: int, width: int, channels: int, stages: int = LEAST, norm: str = "none") -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm is {norm!r}, not {' or '.join(NORMS)}")
        blocks = (depth - 4) // 6
        widths = [16, *(max(16, 64 * width >> stage) for stage in reversed(range(stages)))]
        self.stem = convolution(norm, channels, widths[0], 3)
        layers: list[nn.Module] = []
        for stage in range(stages):
            for block in range(blocks):
                inputs = widths[stage] if block == 0 else widths[stage + 1]
                stride = 2 if block == 0 and stage > 0 else 1
                layers.append(ResidualBlock(inputs, widths[stage + 1], stride, norm))
        self.blocks = nn.Sequential(*layers)
        self.last_norm = normalisation(norm, widths[-1])
        self.stages, self.dimension, self.norm = stages, widths[-1], norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.last_norm(self.blocks(self.stem(x)))
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
            elif isinstance(module, nn.GroupNorm):
                module.reset_parameters()


def build(options: Mapping[str, Any], shape: tuple[int, ...]) -> WideResNet:
    """A wide residual network with the options `depth`, `width`, `norm` and, but for older versions, `stages`."""
    more = (options.get("stages", LEAST), options.get("norm", "none"))
    network = WideResNet(options["depth"], options["width"], shape[0], *more)
    network.batch = max(1, min(Backbone.batch, Backbone.batch * 32**2 // (shape[1] * shape[2])))  # bounded memory
    return network
