"""Both passes through the wide residual network by hand, on kernels that do several things at once.

PyTorch's autograd would run bias, LeakyReLU, residual sum and their derivatives as kernels of their own, which read and
write every activation again. Here each convolution's kernel does what follows it as well, forwards and backwards, and
of a block only the two LeakyReLUs are kept: their signs are the derivatives, and where the sum itself is needed again
it is found from its LeakyReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ebpl.kernels import reference
from ebpl.models import GaussianHead, ScoreEnergy
from ebpl.models.wide_resnet import ResidualBlock, WideResNet

HOPPER = 9
"""The generation of GPUs that the convolution kernel is written for."""


class Convolution:
    """A convolution's weights as the kernels want them: (outputs, taps, inputs), and the other way round for back."""

    def __init__(self, module: nn.Conv2d, dtype: torch.dtype) -> None:
        assert module.bias is not None
        self.module, self.bias, self.stride = module, module.bias.detach(), module.stride[0]
        outputs, inputs, size, _ = module.weight.shape
        self.forward = torch.empty(outputs, size * size, inputs, dtype=dtype, device=module.weight.device)
        self.back = torch.empty(inputs, size * size, outputs, dtype=dtype, device=module.weight.device)

    def refresh(self) -> None:
        """Take over the module's weights as they are now."""
        self.forward.copy_(self.module.weight.detach().permute(0, 2, 3, 1).flatten(1, 2))
        self.back.copy_(self.forward.permute(2, 1, 0))

    def weight_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        """The gradient with respect to the weight, from that with respect to the result."""
        size = self.module.kernel_size[0]
        weight = self.forward.view(len(self.forward), size, size, -1).permute(0, 3, 1, 2)
        stride, padding, dilation, output_padding, groups = [self.stride] * 2, [size // 2] * 2, [1, 1], [0, 0], 1
        _, result, _ = torch.ops.aten.convolution_backward(
            gradient.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), weight, None,
            stride, padding, dilation, False, output_padding, groups, [False, True, False],
        )  # fmt: skip
        found: Tensor = result.to(self.module.weight.dtype)
        return found


@dataclass
class Block:
    """The convolutions of a residual block."""

    first: Convolution
    second: Convolution
    shortcut: Convolution | None


@dataclass
class Trace:
    """What the way back needs of the way forth."""

    images: Tensor
    inputs: list[Tensor]
    """LeakyReLU of each block's input."""
    sums: list[Any]
    """That input itself where a shortcut convolution reads it, else None."""
    inner: list[Tensor]
    """LeakyReLU between each block's convolutions."""
    output: Tensor
    """LeakyReLU of the last block's result."""


class FastNetwork:
    """The feature extractor of a model, to be called with images (N, channels, H, W) in float32."""

    def __init__(self, network: WideResNet, dtype: torch.dtype, kernels: ModuleType = reference) -> None:
        """`kernels` has the functions of `ebpl.kernels.reference`."""
        self.network, self.kernels = network, kernels
        self.stem = Convolution(network.stem, dtype)
        self.blocks = []
        for block in network.blocks:
            assert isinstance(block, ResidualBlock)
            shortcut = Convolution(block.shortcut, dtype) if isinstance(block.shortcut, nn.Conv2d) else None
            self.blocks.append(Block(Convolution(block.conv1, dtype), Convolution(block.conv2, dtype), shortcut))
        self.convolutions = [self.stem]
        for each in self.blocks:
            self.convolutions += [each.first, each.second, *([each.shortcut] if each.shortcut else [])]

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the network's weights as they are now, casting once."""
        for convolution in self.convolutions:
            convolution.refresh()

    def __call__(self, images: Tensor) -> Tensor:
        """Features that autograd can go back from to the network's parameters, but not to the images."""
        features: Tensor = _Features.apply(images, self, *self.network.parameters())  # type: ignore[no-untyped-call]
        return features

    def forth(self, images: Tensor) -> tuple[Tensor, Trace]:
        """Features and what the way back needs."""
        convolve = self.kernels.convolve
        pixels = images.permute(0, 2, 3, 1).contiguous()
        total, active = self.kernels.stem(pixels, self.stem.forward, self.stem.bias)
        trace = Trace(pixels, [], [], [], active)
        following = [block.shortcut is not None for block in self.blocks[1:]] + [False]
        for block, needed in zip(self.blocks, following, strict=True):
            trace.inputs.append(active)
            trace.sums.append(total if block.shortcut else None)
            first = block.first
            _, inner = convolve(active, first.forward, stride=first.stride, bias=first.bias, active=True)
            trace.inner.append(inner)
            residual, activated = active, True
            if block.shortcut:
                shortcut = block.shortcut
                residual, _ = convolve(total, shortcut.forward, stride=shortcut.stride, bias=shortcut.bias, raw=True)
                activated = False
            total, active = convolve(
                inner, block.second.forward, bias=block.second.bias, residual=residual, activated=activated,
                raw=needed, active=True,
            )  # fmt: skip
        trace.output = active
        return self.kernels.pool(active), trace

    def back(self, gradient: Tensor, trace: Trace, learned: Gradients | None = None) -> Tensor:
        """From the gradient with respect to the features to that with respect to the stem's result.

        On the way the gradients of the parameters are put into `learned`, if it is given.
        """
        convolve = self.kernels.convolve
        at = self.kernels.spread(gradient, trace.output)
        if learned:
            learned.biases[self.blocks[-1].second] += at.sum((0, 1, 2), dtype=torch.float32)
        for i in reversed(range(len(self.blocks))):
            block, before = self.blocks[i], self.blocks[i - 1].second if i else self.stem
            inner, _ = convolve(
                at, block.second.back, back=True, sign=trace.inner[i], raw=True,
                sums=learned and learned.biases[block.first],
            )  # fmt: skip
            residual = at
            if block.shortcut:
                residual, _ = convolve(at, block.shortcut.back, stride=block.shortcut.stride, back=True, raw=True)
            if learned:
                learned.weights[block.second] = block.second.weight_gradient(trace.inner[i], at)
                learned.weights[block.first] = block.first.weight_gradient(trace.inputs[i], inner)
            if learned and block.shortcut:
                learned.weights[block.shortcut] = block.shortcut.weight_gradient(trace.sums[i], at)
                learned.biases[block.shortcut] += learned.biases[block.second]
            at, _ = convolve(
                inner, block.first.back, stride=block.first.stride, back=True, sign=trace.inputs[i],
                residual=residual, raw=True, sums=learned and learned.biases[before],
            )  # fmt: skip
        if learned:
            learned.weights[self.stem] = self.stem.weight_gradient(trace.images.to(at.dtype), at)
        assert isinstance(at, Tensor)
        return at

    def images_gradient(self, gradient: Tensor, trace: Trace) -> Tensor:
        """The gradient with respect to the images, from that with respect to the features."""
        found: Tensor = self.kernels.stem_back(self.back(gradient, trace), self.stem.forward)
        return found.permute(0, 3, 1, 2)

    def energy_gradient(self, head: GaussianHead | ScoreEnergy) -> Callable[[Tensor], Tensor]:
        """dE/dx as a function of the images, for weights and head as they are now."""
        slope = self._head_gradient(head)

        @torch.no_grad()
        def gradient(images: Tensor) -> Tensor:
            features, trace = self.forth(images)
            return self.images_gradient(slope(features), trace)

        return gradient

    @torch.no_grad()
    def _head_gradient(self, head: GaussianHead | ScoreEnergy) -> Callable[[Tensor], Tensor]:
        """dE/df as a function of the features: in one kernel, unless the precision is more than a diagonal."""
        precision = None if isinstance(head, ScoreEnergy) else head.diagonal()
        if precision is None or isinstance(head, ScoreEnergy):
            return head.energy_gradient()
        weight, bias = head.natural_weight().contiguous(), head.natural_bias()
        return lambda features: self.kernels.head_gradient(features, weight, bias, precision)

    def parameter_gradients(self, gradient: Tensor, trace: Trace) -> list[Tensor]:
        """The gradient with respect to each of the network's parameters, in their order."""
        learned = Gradients(self.convolutions)
        self.back(gradient, trace, learned)
        found: dict[Tensor | None, Tensor] = {}
        for convolution in self.convolutions:
            found[convolution.module.weight] = learned.weights[convolution]
            found[convolution.module.bias] = learned.biases[convolution]
        return [found[parameter] for parameter in self.network.parameters()]


class Gradients:
    """Gradients of the convolutions' parameters; the kernels add to those of the biases."""

    def __init__(self, convolutions: list[Convolution]) -> None:
        sizes = [len(convolution.bias) for convolution in convolutions]
        zeros = torch.split(torch.zeros(sum(sizes), device=convolutions[0].bias.device), sizes)
        self.biases = dict(zip(convolutions, zeros, strict=True))
        self.weights: dict[Convolution, Tensor] = {}


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, network: FastNetwork, *_: Tensor) -> Tensor:
        features, ctx.trace = network.forth(images)
        ctx.network = network
        return features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        found = ctx.network.parameter_gradients(gradient.contiguous(), ctx.trace)
        ctx.trace = None
        return None, None, *found


def fast_network(
    network: nn.Module, shape: Sequence[int], device: torch.device, dtype: torch.dtype, images: int = 1
) -> FastNetwork | None:
    """A wide residual network on fast kernels for batches of up to `images` (channels, H, W); None if unsupported."""
    if not isinstance(network, WideResNet) or device.type != "cuda" or dtype != torch.bfloat16:
        return None
    if not _fits(network, shape, images):
        return None
    if torch.cuda.get_device_capability(device)[0] != HOPPER:
        return None
    try:
        from ebpl.kernels import hopper
    except ImportError:  # no Triton, or one without Gluon
        return None
    return FastNetwork(network, dtype, hopper) if hopper.supported() else None


def _fits(network: WideResNet, shape: Sequence[int], images: int) -> bool:
    """Whether the kernels can compute this network for that many images (channels, H, W); they know no norm."""
    if network.norm != "none":
        return False
    channels = [layer.out_channels for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    halved = 2 ** (network.stages - 1)
    if any(each % 16 for each in channels) or shape[1] % halved or shape[2] % halved:
        return False
    first = max(channels[:2])  # of the layers that see every pixel; the next have twice as many of a quarter
    return images * shape[1] * shape[2] * first < 2**31  # the kernels count in 32 bits
