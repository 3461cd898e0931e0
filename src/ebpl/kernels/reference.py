"""What the fast kernels compute, in plain PyTorch: their definition, and the reference of their tests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ebpl.models.wide_resnet import SLOPE


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    stride: int = 1,
    back: bool = False,
    bias: Tensor | None = None,
    sign: Tensor | None = None,
    residual: Tensor | None = None,
    activated: bool = False,
    raw: bool = False,
    active: bool = False,
    sums: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """A convolution and what follows it; returns the result if `raw`, and its LeakyReLU if `active`.

    x is (images, rows, columns, inputs), the weight (outputs, taps, inputs) with 9 taps and padding 1, or 1 tap.
    With `back` it is the transposed convolution, the gradient with respect to the input; of one tap and stride 2 it
    gives only the even pixels, since the others are zero. In this order: `bias` is added; where `sign` is not
    positive the result is multiplied by LeakyReLU's slope; `residual` is added, or what it is the LeakyReLU of if
    `activated` (a residual smaller than the result is added to the even pixels). `sums` gets the sums over all pixels
    added to it.
    """
    taps = weight.shape[1]
    size = 3 if taps == 9 else 1
    kernel = weight.view(len(weight), size, size, -1).permute(0, 3, 1, 2).to(x.dtype)
    pixels = x.permute(0, 3, 1, 2)
    if back:
        up = stride == 2 and taps == 9
        result = F.conv_transpose2d(
            pixels, kernel.transpose(0, 1), stride=2 if up else 1, padding=size // 2, output_padding=int(up)
        )
    else:
        result = F.conv2d(pixels, kernel, stride=stride, padding=size // 2)
    result = result.permute(0, 2, 3, 1).float()
    if bias is not None:
        result = result + bias
    if sign is not None:
        result = torch.where(sign > 0, result, result * SLOPE)
    if residual is not None:
        added = residual.float()
        if activated:
            added = torch.where(added > 0, added, added / SLOPE)
        step = result.shape[1] // added.shape[1]
        result[:, ::step, ::step] += added
    if sums is not None:
        sums += result.sum((0, 1, 2))
    return (
        result.to(x.dtype).contiguous() if raw else None,
        F.leaky_relu(result, SLOPE).to(x.dtype).contiguous() if active else None,
    )


def stem(images: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The first convolution: images (images, rows, columns, channels) in float32; the result and its LeakyReLU."""
    raw, active = convolve(images.to(weight.dtype), weight, bias=bias, raw=True, active=True)
    assert raw is not None
    assert active is not None
    return raw, active


def stem_back(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient with respect to the images, in float32; `weight` as in `stem`."""
    raw, _ = convolve(gradient, weight.permute(2, 1, 0), back=True, raw=True)
    assert raw is not None
    return raw.float()


def pool(active: Tensor) -> Tensor:
    """The mean over all pixels, in float32."""
    return active.float().mean((1, 2))


def spread(gradient: Tensor, active: Tensor) -> Tensor:
    """The gradient with respect to what `active` is the LeakyReLU of, from that with respect to its mean."""
    each = (gradient / (active.shape[1] * active.shape[2]))[:, None, None]
    return torch.where(active > 0, each, each * SLOPE).to(active.dtype)


def head_gradient(features: Tensor, weight: Tensor, bias: Tensor, precision: Tensor) -> Tensor:
    """dE/df = p f - sum_c softmax_c(W f + b) W_c, where p is a diagonal precision."""
    posterior = torch.softmax(torch.addmm(bias, features, weight.T), 1)
    return torch.addmm(precision * features, posterior, weight, alpha=-1)
