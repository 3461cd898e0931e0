"""MobileNetV2 (Sandler et al. 2018), with the parameter names of torchvision's published weights."""

from __future__ import annotations

from torch import Tensor, nn

# expansion, output channels, blocks, stride of the first of them
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
FEATURES = 1280
CLASSIFIER = "classifier."
"""How the names of the published classifier's weights begin; it is not part of the encoder."""


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """A narrow block that is widened, filtered channel by channel and narrowed again."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *([_convolution(inputs, inner, 1)] if expansion != 1 else []),
            _convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


class MobileNetV2(nn.Module):
    """Images (N, 3, H, W), normalised, to pooled features (N, 1280)."""

    dimension = FEATURES
    ending = 3
    """Parts that `from_last` goes through: the last block, the last convolution and its normalisation."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 32, 3, 2)]
        channels = 32
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, outputs, stride if block == 0 else 1, expansion))
                channels = outputs
        layers.append(_convolution(channels, FEATURES, 1))
        self.features = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Features of images."""
        return self.from_last(self.before_last(images))

    def before_last(self, images: Tensor) -> Tensor:
        """What goes into the last block."""
        x: Tensor = self.features[:-2](images)
        return x

    def from_last(self, x: Tensor) -> Tensor:
        """Features from what goes into the last block."""
        out: Tensor = self.features[-2:](x)
        return out.mean((2, 3))


def build() -> nn.Module:
    """The network, with weights still to be loaded."""
    return MobileNetV2()
