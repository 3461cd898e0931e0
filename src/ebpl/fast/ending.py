"""What both convolution kernels share: how a tile ends, and how its inputs are described to the copying hardware."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

AS_IT_IS, ACTIVATED = 1, 2
"""Kinds of residual: the tensor to add, or its LeakyReLU, which is undone first."""


@gluon.jit
def end(
    acc, n0, i0, h0, w0, row_parity, column_parity, images, bias, sign, residual, raw, active, sums,
    H: gl.constexpr, W: gl.constexpr, N: gl.constexpr, UP: gl.constexpr, BIAS: gl.constexpr, SIGN: gl.constexpr,
    RESIDUAL: gl.constexpr, RAW: gl.constexpr, ACTIVE: gl.constexpr, SUMS: gl.constexpr, SLOPE: gl.constexpr,
    BH: gl.constexpr, BW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Bias, LeakyReLU's derivative, residual, LeakyReLU; then the tile is written."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [num_warps, 1], [1, 0])
    acc = gl.convert_layout(acc, layout)
    m = gl.arange(0, BM, gl.SliceLayout(1, layout))
    columns = n0 + gl.arange(0, BN, gl.SliceLayout(0, layout))
    image = i0 + m // (BH * BW)
    row = h0 + m // BW % BH
    column = w0 + m % BW
    ok = ((image < images) & (row < H) & (column < W))[:, None] & (columns < N)[None, :]
    here = ((image * H + row) * W + column)[:, None] * N + columns[None, :]
    at = here
    if UP:
        at = ((image * H + row) * 2 + row_parity) * W * 2 + column * 2 + column_parity
        at = at[:, None] * N + columns[None, :]
    if BIAS:
        acc += gl.load(bias + columns, columns < N, 0.0).to(gl.float32)[None, :]
    if SIGN:
        acc = gl.where(gl.load(sign + at, ok, 0.0) > 0, acc, acc * SLOPE)
    if RESIDUAL:
        shown = ok
        if UP:  # a shortcut of stride 2 takes the even pixels alone
            shown = ok & ((row_parity + column_parity) == 0)
        added = gl.load(residual + here, shown, 0.0).to(gl.float32)
        if RESIDUAL == 2:
            added = gl.where(added > 0, added, added / SLOPE)
        acc += added
    if RAW:
        gl.store(raw + at, acc.to(gl.bfloat16), ok)
    if ACTIVE:
        gl.store(active + at, gl.where(acc > 0, acc, acc * SLOPE).to(gl.bfloat16), ok)
    if SUMS:
        gl.atomic_add(sums + columns, gl.sum(gl.where(ok, acc, 0.0), 0), columns < N)


def described(tensor: Tensor, block: list[int], layout: Any = None) -> Any:
    """A tensor that is read in blocks of this shape."""
    layout = layout or gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)
