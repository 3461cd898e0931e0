"""The kernels for Hopper GPUs, under the names by which `ebpl.kernels.reference` defines them.

Written in Gluon, a part of Triton: one warp has tiles of pixels and of weights copied to shared memory by the tensor
memory accelerator, the others multiply them from there with warpgroup instructions. Tensors are bfloat16, contiguous
(images, rows, columns, channels); weights are (outputs, taps, inputs).
"""

from __future__ import annotations

import inspect

from torch import Tensor
from triton.experimental.gluon import language as gl

from ebpl.kernels import conv3x3, conv_general
from ebpl.kernels.conv_general import ACTIVATED, AS_IT_IS
from ebpl.kernels.stem_and_pool import head_gradient, pool, spread, stem, stem_back
from ebpl.kernels.tiles import Rows, Tile, choose
from ebpl.models.wide_resnet import SLOPE

__all__ = ["convolve", "head_gradient", "pool", "spread", "stem", "stem_back", "supported"]


def supported() -> bool:
    """Whether this Triton's Gluon, which is still changing, is the one that the kernels are written for."""
    return "functions_and_args" in inspect.signature(gl.warp_specialize).parameters


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
    tile: Tile | Rows | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """As `ebpl.kernels.reference.convolve`."""
    images, height, width, inputs = x.shape
    outputs, count, _ = weight.shape
    up = back and stride == 2 and count == 9
    step = 1 if back else stride
    height, width = height // step, width // step
    shape = (images, 2 * height, 2 * width, outputs) if up else (images, height, width, outputs)
    raw_result, active_result = x.new_empty(shape) if raw else None, x.new_empty(shape) if active else None
    given = [x if tensor is None else tensor for tensor in (bias, sign, residual, raw_result, active_result, sums)]
    kind = 0 if residual is None else ACTIVATED if activated else AS_IT_IS
    flags = [bias is not None, sign is not None, kind, raw, active, sums is not None, SLOPE]
    simple = count == 9 and stride == 1
    tile = tile or choose((images, height, width), inputs, outputs, simple, 4 if up else 1)
    if isinstance(tile, Rows):
        conv3x3.launch(x, weight, given, flags, back, tile)
    else:
        conv_general.launch(x, weight, given, flags, images, height, width, step, up, back, tile)
    return raw_result, active_result
