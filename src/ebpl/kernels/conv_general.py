"""The convolution kernel for any of the network's layers, strided, transposed, with one tap or nine, and its epilogue.

The loop runs over the taps and the input channels; for each step a tile of pixels, shifted by the tap, and a tile of
weights are copied to shared memory. The copying hardware puts zeros outside of the image. The epilogue (bias, residual,
LeakyReLU) is also that of `conv3x3`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ebpl.kernels.tiles import Tile, box

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
        if UP:  # a shortcut of stride 2 takes only the even pixels
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


@gluon.jit
def _load(
    i, xd, wd, wd2, x_tiles, w_tiles, w2_tiles, arrivals, i0, h0, w0, n0, row_parity, column_parity,
    K: gl.constexpr, TAPS: gl.constexpr, STRIDE: gl.constexpr, UP: gl.constexpr, REVERSED: gl.constexpr,
    BK: gl.constexpr, BN: gl.constexpr, BN2: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Start to copy the tiles of step i."""
    BLOCKS: gl.constexpr = K // BK
    t = i // BLOCKS
    channel = (i % BLOCKS) * BK
    k = channel
    row, column, pair = h0, w0, 0
    if UP:  # which taps meet a pixel depends on its parity
        r = gl.where(row_parity == 0, 1, 2 * (t // (1 + column_parity)))
        s = gl.where(column_parity == 0, 1, 2 * (t % (1 + column_parity)))
        row = h0 + (r == 0).to(gl.int32)
        column = w0 + (s == 0).to(gl.int32)
        t = 3 * r + s
    elif TAPS == 9:
        dr = t // 3 - 1
        dc = t % 3 - 1
        if STRIDE == 2:  # the descriptor shows rows and columns in pairs
            pair = dr & 1
            row = h0 + (dr - pair) // 2
            column = w0 + (dc - (dc & 1)) // 2
            channel = (dc & 1) * K + k
        else:
            row = h0 + dr
            column = w0 + dc
        if REVERSED:
            t = 8 - t
    slot = i % STAGES
    arrival = arrivals.index(slot)
    bytes: gl.constexpr = xd.block_type.nbytes + wd.block_type.nbytes + (wd2.block_type.nbytes if BN2 else 0)
    mbarrier.expect(arrival, bytes)
    tma.async_copy_global_to_shared(xd, [i0, row, pair, column, channel], arrival, x_tiles.index(slot))
    tma.async_copy_global_to_shared(wd, [n0, t, k], arrival, w_tiles.index(slot))
    if BN2:
        tma.async_copy_global_to_shared(wd2, [n0 + BN, t, k], arrival, w2_tiles.index(slot))


@gluon.jit
def _bring(
    xd, wd, wd2, x_tiles, w_tiles, w2_tiles, arrivals, releases, total, i0, h0, w0, n0, row_parity, column_parity,
    K: gl.constexpr, TAPS: gl.constexpr, STRIDE: gl.constexpr, UP: gl.constexpr, REVERSED: gl.constexpr,
    BK: gl.constexpr, BN: gl.constexpr, BN2: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warp's work: copy the tiles of each step to shared memory as soon as there is room."""
    for i in range(total):
        mbarrier.wait(releases.index(i % STAGES), (i // STAGES + 1) & 1)
        _load(
            i, xd, wd, wd2, x_tiles, w_tiles, w2_tiles, arrivals, i0, h0, w0, n0, row_parity, column_parity,
            K, TAPS, STRIDE, UP, REVERSED, BK, BN, BN2, STAGES,
        )  # fmt: skip


@gluon.jit
def _multiply(
    x_tiles, w_tiles, w2_tiles, arrivals, releases, total,
    i0, h0, w0, n0, row_parity, column_parity, images, bias, sign, residual, raw, active, sums,
    H: gl.constexpr, W: gl.constexpr, N: gl.constexpr, UP: gl.constexpr, BIAS: gl.constexpr, SIGN: gl.constexpr,
    RESIDUAL: gl.constexpr, RAW: gl.constexpr, ACTIVE: gl.constexpr, SUMS: gl.constexpr, SLOPE: gl.constexpr,
    BH: gl.constexpr, BW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BN2: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The other warps' work: multiply and add up what arrives, then end the tile."""
    warps: gl.constexpr = gl.num_warps()
    acc = gl.zeros((BM, BN), gl.float32, gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BN, 16]))
    acc2 = acc
    if BN2:
        acc2 = gl.zeros((BM, BN2), gl.float32, gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BN2, 16]))
    for i in range(total):
        slot = i % STAGES
        mbarrier.wait(arrivals.index(slot), (i // STAGES) & 1)
        x = x_tiles.index(slot).reshape([BM, BK])
        w = w_tiles.index(slot).reshape([BN, BK]).permute([1, 0])
        acc = warpgroup_mma(x, w, acc, is_async=True)
        if BN2:
            w2 = w2_tiles.index(slot).reshape([BN2, BK]).permute([1, 0])
            acc2 = warpgroup_mma(x, w2, acc2, is_async=True)
            acc, acc2 = warpgroup_mma_wait(2, deps=(acc, acc2))
        else:
            acc = warpgroup_mma_wait(1, deps=(acc,))
        # the step before is done with, so there is room for the next one
        mbarrier.arrive(releases.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
    if BN2:
        acc, acc2 = warpgroup_mma_wait(0, deps=(acc, acc2))
    else:
        acc = warpgroup_mma_wait(0, deps=(acc,))
    end(
        acc, n0, i0, h0, w0, row_parity, column_parity, images, bias, sign, residual, raw, active, sums,
        H, W, N, UP, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BH, BW, BM, BN, warps,
    )  # fmt: skip
    if BN2:
        end(
            acc2, n0 + BN, i0, h0, w0, row_parity, column_parity, images, bias, sign, residual, raw, active, sums,
            H, W, N, UP, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BH, BW, BM, BN2, warps,
        )  # fmt: skip


@gluon.jit
def _convolve(
    xd, wd, wd2, bias, sign, residual, raw, active, sums, images,
    H: gl.constexpr, W: gl.constexpr, K: gl.constexpr, N: gl.constexpr,
    TAPS: gl.constexpr, STRIDE: gl.constexpr, UP: gl.constexpr, REVERSED: gl.constexpr,
    BIAS: gl.constexpr, SIGN: gl.constexpr, RESIDUAL: gl.constexpr,
    RAW: gl.constexpr, ACTIVE: gl.constexpr, SUMS: gl.constexpr, SLOPE: gl.constexpr,
    BI: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BN: gl.constexpr, BN2: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    BM: gl.constexpr = BI * BH * BW
    ROWS: gl.constexpr = (H + BH - 1) // BH
    COLUMNS: gl.constexpr = (W + BW - 1) // BW
    tile = gl.program_id(0)
    n0 = gl.program_id(1) * (BN + BN2)
    row_parity = 1 - gl.program_id(2) // 2  # pixels with the most taps first
    column_parity = 1 - gl.program_id(2) % 2
    w0 = tile % COLUMNS * BW
    h0 = tile // COLUMNS % ROWS * BH
    i0 = tile // (COLUMNS * ROWS) * BI
    total = TAPS * (K // BK)
    if UP:
        total = (1 + row_parity) * (1 + column_parity) * (K // BK)

    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BI, BH, 1, BW, BK], xd.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BN, 1, BK], wd.layout)
    w2_tiles = w_tiles
    if BN2:
        w2_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BN2, 1, BK], wd2.layout)
    arrivals = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    releases = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(arrivals.index(s), count=1)
        mbarrier.init(releases.index(s), count=1)
    fence_async_shared()
    gdc_wait()  # the kernel before has written what we read
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                x_tiles, w_tiles, w2_tiles, arrivals, releases, total,
                i0, h0, w0, n0, row_parity, column_parity, images, bias, sign, residual, raw, active, sums,
                H, W, N, UP, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BH, BW, BM, BN, BN2, BK, STAGES,
            )),
            (_bring, (
                xd, wd, wd2, x_tiles, w_tiles, w2_tiles, arrivals, releases, total,
                i0, h0, w0, n0, row_parity, column_parity, K, TAPS, STRIDE, UP, REVERSED, BK, BN, BN2, STAGES,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


def launch(
    x: Tensor, weight: Tensor, given: list[Tensor], flags: list[Any], images: int, height: int, width: int,
    stride: int, up: bool, reverse: bool, tile: Tile,
) -> None:  # fmt: skip
    """Run the kernel for a result of this number of images, rows and columns (half of them if `up`)."""
    outputs, taps, inputs = weight.shape
    bi, bh, bw = box(tile.pixels, images, height, width)
    pairs = x.view(images, height, stride, width, stride * inputs)
    xd = described(pairs, [bi, bh, 1, bw, tile.depth])
    wd = described(weight, [tile.outputs, 1, tile.depth])
    wd2 = described(weight, [tile.more_outputs, 1, tile.depth]) if tile.more_outputs else wd
    tiles = -(-images // bi) * -(-height // bh) * -(-width // bw)
    grid = (tiles, -(-outputs // (tile.outputs + tile.more_outputs)), 4 if up else 1)
    kernel: Any = _convolve
    kernel[grid](
        xd, wd, wd2, *given, images, height, width, inputs, outputs, taps, stride, up, reverse, *flags,
        bi, bh, bw, tile.outputs, tile.more_outputs, tile.depth, tile.stages,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=True,
    )  # fmt: skip
