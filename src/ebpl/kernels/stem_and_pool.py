"""Triton kernels for the two ends of the network: the first convolution, the mean over pixels, and their gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ebpl.kernels import reference
from ebpl.models.wide_resnet import SLOPE


@triton.jit
def _stem(
    images, weight, bias, raw, active, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, SLOPE: tl.constexpr,
    KP: tl.constexpr, NP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    row, column = m // W % H, m % W
    k = tl.arange(0, KP)
    dr, dc = k // C // 3 - 1, k // C % 3 - 1
    r, c = row[:, None] + dr[None, :], column[:, None] + dc[None, :]
    inside = (m < pixels)[:, None] & (k < 9 * C)[None, :] & (r >= 0) & (r < H) & (c >= 0) & (c < W)
    x = tl.load(images + (m[:, None] + dr[None, :] * W + dc[None, :]) * C + (k % C)[None, :], inside, 0.0)
    n = tl.arange(0, NP)
    w = tl.load(weight + n[None, :] * (9 * C) + k[:, None], (n < N)[None, :] & (k < 9 * C)[:, None], 0.0)
    y = tl.dot(x.to(tl.bfloat16), w) + tl.load(bias + n, n < N, 0.0)[None, :]
    at, ok = m[:, None] * N + n[None, :], (m < pixels)[:, None] & (n < N)[None, :]
    tl.store(raw + at, y.to(tl.bfloat16), ok)
    tl.store(active + at, tl.where(y > 0, y, y * SLOPE).to(tl.bfloat16), ok)


@triton.jit
def _stem_back(
    gradient, weight, result, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    CP: tl.constexpr, NP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    row, column = m // W % H, m % W
    n, c = tl.arange(0, NP), tl.arange(0, CP)
    acc = tl.zeros((BM, CP), tl.float32)
    for tap in tl.static_range(9):
        dr, dc = 1 - tap // 3, 1 - tap % 3
        inside = (m < pixels) & (row + dr >= 0) & (row + dr < H) & (column + dc >= 0) & (column + dc < W)
        g = tl.load(gradient + (m + dr * W + dc)[:, None] * N + n[None, :], inside[:, None] & (n < N)[None, :], 0.0)
        w = tl.load(weight + (n[:, None] * 9 + tap) * C + c[None, :], (n < N)[:, None] & (c < C)[None, :], 0.0)
        acc = tl.dot(g, w, acc)
    tl.store(result + m[:, None] * C + c[None, :], acc, (m < pixels)[:, None] & (c < C)[None, :])


@triton.jit
def _pool(active, features, P: tl.constexpr, D: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr):
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    p = tl.arange(0, BP)
    total = tl.zeros((BD,), tl.float32)
    for start in tl.range(0, P, BP):
        at = (tl.program_id(0) * P + start + p)[:, None] * D + d[None, :]
        total += tl.sum(tl.load(active + at, (start + p < P)[:, None] & (d < D)[None, :], 0.0).to(tl.float32), 0)
    tl.store(features + tl.program_id(0) * D + d, total / P, d < D)


@triton.jit
def _spread(gradient, active, result, P: tl.constexpr, D: tl.constexpr, SLOPE: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(1) * B + tl.arange(0, B)
    ok = i < P * D
    at = tl.program_id(0) * P * D + i
    g = tl.load(gradient + tl.program_id(0) * D + i % D, ok, 0.0) / P
    g = tl.where(tl.load(active + at, ok, 0.0) > 0, g, g * SLOPE)
    tl.store(result + at, g.to(tl.bfloat16), ok)


@triton.jit
def _head_gradient(
    features, weight, bias, precision, result, C: tl.constexpr, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr
):
    d, c = tl.arange(0, DP), tl.arange(0, CP)
    f = tl.load(features + tl.program_id(0) * D + d, d < D, 0.0)
    w = tl.load(weight + c[:, None] * D + d[None, :], (c < C)[:, None] & (d < D)[None, :], 0.0)
    scores = tl.where(c < C, tl.sum(w * f[None, :], 1) + tl.load(bias + c, c < C, 0.0), float("-inf"))
    posterior = tl.exp(scores - tl.max(scores, 0))
    posterior = posterior / tl.sum(posterior, 0)
    slope = tl.load(precision + d, d < D, 0.0) * f - tl.sum(posterior[:, None] * w, 0)
    tl.store(result + tl.program_id(0) * D + d, slope, d < D)


BLOCK = 128
LARGEST_HEAD = 32 * 1024
"""Weights of a head that fit into the registers of a block of threads."""


def stem(images: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """As `ebpl.kernels.reference.stem`."""
    count, height, width, channels = images.shape
    outputs = weight.shape[0]
    shape = (count, height, width, outputs)
    raw, active = (torch.empty(shape, dtype=weight.dtype, device=images.device) for _ in range(2))
    pixels = count * height * width
    kernel: Any = _stem
    kernel[(-(-pixels // BLOCK),)](
        images, weight, bias, raw, active, pixels, height, width, channels, outputs, SLOPE,
        _power(9 * channels), _power(outputs), BLOCK,
    )  # fmt: skip
    return raw, active


def stem_back(gradient: Tensor, weight: Tensor) -> Tensor:
    """As `ebpl.kernels.reference.stem_back`."""
    count, height, width, outputs = gradient.shape
    channels = weight.shape[2]
    result = torch.empty((count, height, width, channels), device=gradient.device)
    pixels = count * height * width
    kernel: Any = _stem_back
    kernel[(-(-pixels // BLOCK),)](
        gradient, weight, result, pixels, height, width, channels, outputs, _power(channels), _power(outputs), BLOCK
    )
    return result


def pool(active: Tensor) -> Tensor:
    """As `ebpl.kernels.reference.pool`."""
    count, height, width, dimension = active.shape
    features = torch.empty((count, dimension), device=active.device)
    kernel: Any = _pool
    kernel[(count, -(-dimension // 64))](active, features, height * width, dimension, 64, 64)
    return features


def spread(gradient: Tensor, active: Tensor) -> Tensor:
    """As `ebpl.kernels.reference.spread`."""
    count, height, width, dimension = active.shape
    result = torch.empty_like(active)
    kernel: Any = _spread
    size = height * width * dimension
    kernel[(count, -(-size // 4096))](gradient, active, result, height * width, dimension, SLOPE, 4096)
    return result


def head_gradient(features: Tensor, weight: Tensor, bias: Tensor, precision: Tensor) -> Tensor:
    """As `ebpl.kernels.reference.head_gradient`."""
    count, dimension = features.shape
    classes = len(weight)
    if _power(classes) * _power(dimension) > LARGEST_HEAD:
        return reference.head_gradient(features, weight, bias, precision)
    result = torch.empty_like(features)
    kernel: Any = _head_gradient
    kernel[(count,)](
        features, weight, bias, precision, result, classes, dimension, _power(classes), _power(dimension), num_warps=8
    )
    return result


def _power(size: int) -> int:
    """The least power of two, at least 16, that holds the size."""
    return max(16, 1 << (size - 1).bit_length())
