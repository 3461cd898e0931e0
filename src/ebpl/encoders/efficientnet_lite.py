"""EfficientNet-Lite0 (Google 2020), with the parameter names of the published PyTorch weights."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

# kernel, blocks, expansion, output channels, stride of the first of them
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 3, 6, 80, 2),
    (5, 3, 6, 112, 1),
    (5, 4, 6, 192, 2),
    (3, 1, 6, 320, 1),
)
STEM, FEATURES = 32, 1280
EPSILON, MOMENTUM = 1e-3, 0.01
CLASSIFIER = "_fc."
"""How the names of the published classifier's weights begin; it is not part of the encoder."""


class SamePadding(nn.Conv2d):
    """A convolution that pads as TensorFlow does: where the padding is odd, more at the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        """The convolution's output."""
        sides = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            sides += [missing // 2, missing - missing // 2]
        left, right, above, below = sides
        padding = (int(above), int(left))  # by the convolution itself, which copies nothing, where both sides are equal
        if left != right or above != below:
            x, padding = F.pad(x, sides), (0, 0)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, 1, self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPSILON, momentum=MOMENTUM)


class Block(nn.Module):
    """Widened, filtered channel by channel, narrowed again."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv, self._bn0 = SamePadding(inputs, inner, 1, bias=False), _norm(inner)
        self._depthwise_conv = SamePadding(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv, self._bn2 = SamePadding(inner, outputs, 1, bias=False), _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out: Tensor = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        out = F.relu6(self._bn1(self._depthwise_conv(out)), inplace=True)
        out = self._bn2(self._project_conv(out))
        return x + out if self.adds else out


class EfficientNetLite(nn.Module):
    """Images (N, 3, H, W), normalised, to pooled features (N, 1280)."""

    dimension = FEATURES
    ending = 3
    """Parts that `from_last` goes through: the last block, the last convolution and its normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SamePadding(3, STEM, 3, 2, bias=False), _norm(STEM)
        blocks: list[nn.Module] = []
        channels = STEM
        for kernel, count, expansion, outputs, stride in STAGES:
            for block in range(count):
                blocks.append(Block(channels, outputs, kernel, stride if block == 0 else 1, expansion))
                channels = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SamePadding(channels, FEATURES, 1, bias=False), _norm(FEATURES)

    def forward(self, images: Tensor) -> Tensor:
        """Features of images."""
        return self.from_last(self.before_last(images))

    def before_last(self, images: Tensor) -> Tensor:
        """What goes into the last block."""
        x = F.relu6(self._bn0(self._conv_stem(images)), inplace=True)
        for block in list(self._blocks)[:-1]:
            x = block(x)
        return x

    def from_last(self, x: Tensor) -> Tensor:
        """Features from what goes into the last block."""
        out: Tensor = F.relu6(self._bn1(self._conv_head(self._blocks[-1](x))), inplace=True)
        return out.mean((2, 3))


def build() -> nn.Module:
    """The network, with weights still to be loaded."""
    return EfficientNetLite()
