"""The convolution kernel for nine taps and stride 1, where nearly all the time goes.

What the general kernel is bound by is not multiplying but bringing every pixel to the multiprocessors nine times. Here
a tile is whole rows with one more above and below: the three taps of a column multiply the same copy, each from another
row of it on, so a pixel is brought three times and a bit.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ebpl.kernels.conv_general import described, end
from ebpl.kernels.tiles import Rows


@gluon.jit
def _bring_rows(
    xd, ed, wd, wd2, x_tiles, w_tiles, w2_tiles, arrivals, releases, i0, h0, w0, n0,
    K: gl.constexpr, REVERSED: gl.constexpr, BI: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr,
    BK: gl.constexpr, BN: gl.constexpr, BN2: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warp's work: copy the tiles of each step to shared memory as soon as there is room."""
    BLOCKS: gl.constexpr = K // BK
    X_BYTES: gl.constexpr = BI * (xd.block_type.nbytes + 2 * ed.block_type.nbytes)
    W_BYTES: gl.constexpr = 3 * (wd.block_type.nbytes + (wd2.block_type.nbytes if BN2 else 0))
    for i in range(3 * BLOCKS):
        slot = i % STAGES
        dc = i // BLOCKS - 1
        k = (i % BLOCKS) * BK
        mbarrier.wait(releases.index(slot), (i // STAGES + 1) & 1)
        arrival = arrivals.index(slot)
        mbarrier.expect(arrival, X_BYTES + W_BYTES)
        for b in gl.static_range(BI):
            row = (slot * BI + b) * (BH + 2)
            main = x_tiles.index(row + 1)._reinterpret(gl.bfloat16, [1, BH, BW, BK], xd.layout)
            tma.async_copy_global_to_shared(ed, [i0 + b, h0 - 1, w0 + dc, k], arrival, x_tiles.index(row))
            tma.async_copy_global_to_shared(xd, [i0 + b, h0, w0 + dc, k], arrival, main)
            tma.async_copy_global_to_shared(ed, [i0 + b, h0 + BH, w0 + dc, k], arrival, x_tiles.index(row + BH + 1))
        for r in gl.static_range(3):
            tap = 3 * r + dc + 1
            if REVERSED:
                tap = 8 - tap
            tma.async_copy_global_to_shared(wd, [n0, tap, k], arrival, w_tiles.index(slot * 3 + r))
            if BN2:
                tma.async_copy_global_to_shared(wd2, [n0 + BN, tap, k], arrival, w2_tiles.index(slot * 3 + r))


@gluon.jit
def _multiply_rows(
    x_tiles, w_tiles, w2_tiles, arrivals, releases, i0, h0, w0, n0, images, bias, sign, residual, raw, active, sums,
    H: gl.constexpr, W: gl.constexpr, N: gl.constexpr, K: gl.constexpr, BIAS: gl.constexpr, SIGN: gl.constexpr,
    RESIDUAL: gl.constexpr, RAW: gl.constexpr, ACTIVE: gl.constexpr, SUMS: gl.constexpr, SLOPE: gl.constexpr,
    BI: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BN: gl.constexpr, BN2: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The other warps' work: multiply and add up what arrives, then end the tile."""
    warps: gl.constexpr = gl.num_warps()
    BM: gl.constexpr = BH * BW
    part: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BN, 16])
    flat: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BK], gl.bfloat16)
    acc = gl.zeros((BM, BN), gl.float32, part)
    more = acc
    acc2 = acc
    more2 = acc
    if BI == 2:
        more = gl.zeros((BM, BN), gl.float32, part)
    if BN2:
        part2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BN2, 16])
        acc2 = gl.zeros((BM, BN2), gl.float32, part2)
        if BI == 2:
            more2 = gl.zeros((BM, BN2), gl.float32, part2)
    for i in range(3 * (K // BK)):
        slot = i % STAGES
        mbarrier.wait(arrivals.index(slot), (i // STAGES) & 1)
        for r in gl.static_range(3):
            w = w_tiles.index(slot * 3 + r).reshape([BN, BK]).permute([1, 0])
            x = x_tiles.index(slot * BI * (BH + 2) + r)._reinterpret(gl.bfloat16, [BM, BK], flat)
            acc = warpgroup_mma(x, w, acc, is_async=True)
            if BN2:
                w2 = w2_tiles.index(slot * 3 + r).reshape([BN2, BK]).permute([1, 0])
                acc2 = warpgroup_mma(x, w2, acc2, is_async=True)
            if BI == 2:
                y = x_tiles.index((slot * BI + 1) * (BH + 2) + r)._reinterpret(gl.bfloat16, [BM, BK], flat)
                more = warpgroup_mma(y, w, more, is_async=True)
                if BN2:
                    more2 = warpgroup_mma(y, w2, more2, is_async=True)
        # the step before is done with, so there is room for the next one
        OPEN: gl.constexpr = 3 * BI * (2 if BN2 else 1)
        if BI == 2 and BN2:
            acc, acc2, more, more2 = warpgroup_mma_wait(OPEN, deps=(acc, acc2, more, more2))
        elif BI == 2:
            acc, more = warpgroup_mma_wait(OPEN, deps=(acc, more))
        elif BN2:
            acc, acc2 = warpgroup_mma_wait(OPEN, deps=(acc, acc2))
        else:
            acc = warpgroup_mma_wait(OPEN, deps=(acc,))
        mbarrier.arrive(releases.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
    if BI == 2 and BN2:
        acc, acc2, more, more2 = warpgroup_mma_wait(0, deps=(acc, acc2, more, more2))
    elif BI == 2:
        acc, more = warpgroup_mma_wait(0, deps=(acc, more))
    elif BN2:
        acc, acc2 = warpgroup_mma_wait(0, deps=(acc, acc2))
    else:
        acc = warpgroup_mma_wait(0, deps=(acc,))
    end(
        acc, n0, i0, h0, w0, 0, 0, images, bias, sign, residual, raw, active, sums,
        H, W, N, False, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BH, BW, BM, BN, warps,
    )  # fmt: skip
    if BN2:
        end(
            acc2, n0 + BN, i0, h0, w0, 0, 0, images, bias, sign, residual, raw, active, sums,
            H, W, N, False, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BH, BW, BM, BN2, warps,
        )  # fmt: skip
    if BI == 2:
        end(
            more, n0, i0 + 1, h0, w0, 0, 0, images, bias, sign, residual, raw, active, sums,
            H, W, N, False, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BH, BW, BM, BN, warps,
        )  # fmt: skip
    if BI == 2 and BN2:
        end(
            more2, n0 + BN, i0 + 1, h0, w0, 0, 0, images, bias, sign, residual, raw, active, sums,
            H, W, N, False, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BH, BW, BM, BN2, warps,
        )  # fmt: skip


@gluon.jit
def _convolve_rows(
    xd, ed, wd, wd2, bias, sign, residual, raw, active, sums, images,
    H: gl.constexpr, W: gl.constexpr, K: gl.constexpr, N: gl.constexpr, REVERSED: gl.constexpr,
    BIAS: gl.constexpr, SIGN: gl.constexpr, RESIDUAL: gl.constexpr,
    RAW: gl.constexpr, ACTIVE: gl.constexpr, SUMS: gl.constexpr, SLOPE: gl.constexpr,
    BI: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BN: gl.constexpr, BN2: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    TALL: gl.constexpr = (H + BH - 1) // BH
    WIDE: gl.constexpr = (W + BW - 1) // BW
    tile = gl.program_id(0)
    n0 = gl.program_id(1) * (BN + BN2)
    w0 = tile % WIDE * BW
    h0 = tile // WIDE % TALL * BH
    i0 = tile // (WIDE * TALL) * BI
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * BI * (BH + 2), 1, 1, BW, BK], xd.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 3, BN, 1, BK], wd.layout)
    w2_tiles = w_tiles
    if BN2:
        w2_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 3, BN2, 1, BK], wd2.layout)
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
            (_multiply_rows, (
                x_tiles, w_tiles, w2_tiles, arrivals, releases,
                i0, h0, w0, n0, images, bias, sign, residual, raw, active, sums,
                H, W, N, K, BIAS, SIGN, RESIDUAL, RAW, ACTIVE, SUMS, SLOPE, BI, BH, BW, BN, BN2, BK, STAGES,
            )),
            (_bring_rows, (
                xd, ed, wd, wd2, x_tiles, w_tiles, w2_tiles, arrivals, releases,
                i0, h0, w0, n0, K, REVERSED, BI, BH, BW, BK, BN, BN2, STAGES,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


def launch(x: Tensor, weight: Tensor, given: list[Tensor], flags: list[Any], reverse: bool, tile: Rows) -> None:
    """Run the kernel."""
    images, height, width, inputs = x.shape
    outputs = weight.shape[0]
    xd = described(x, [1, tile.rows, tile.columns, tile.depth])
    ed = described(x, [1, 1, tile.columns, tile.depth], xd.layout)
    wd = described(weight, [tile.outputs, 1, tile.depth])
    wd2 = described(weight, [tile.more_outputs, 1, tile.depth]) if tile.more_outputs else wd
    tiles = -(-images // tile.images) * -(-height // tile.rows) * -(-width // tile.columns)
    grid = (tiles, -(-outputs // (tile.outputs + tile.more_outputs)))
    kernel: Any = _convolve_rows
    kernel[grid](
        xd, ed, wd, wd2, *given, images, height, width, inputs, outputs, reverse, *flags,
        tile.images, tile.rows, tile.columns, tile.outputs, tile.more_outputs, tile.depth, tile.stages,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=True,
    )  # fmt: skip
