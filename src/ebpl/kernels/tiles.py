"""Which part of a convolution one block of threads computes: rules that agree with what was fastest on an H200."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

SHARED_MEMORY, HALF = 227 * 1024, 113 * 1024
"""All shared memory, and as much as lets a multiprocessor work on two tiles, one ending while the other multiplies."""
SCRATCH = 4200
"""Shared memory for the end of a tile, per four warps and 64 outputs."""
MULTIPROCESSORS = 132
ENOUGH = 0.7 * MULTIPROCESSORS
"""With fewer tiles than this, smaller ones are faster."""
HALF_REGISTERS = 128
"""Registers of a thread that leave room for other tiles on the multiprocessor."""


@dataclass(frozen=True)
class Tile:
    """A tile of pixels times outputs, computed in steps of input channels, several of them in flight at once."""

    pixels: int
    outputs: int
    more_outputs: int
    """A second, smaller part of the outputs: 160 = 128 + 32, since sizes must be powers of two."""
    depth: int
    stages: int
    warps: int
    registers: int | None = HALF_REGISTERS


@dataclass(frozen=True)
class Rows:
    """A tile of whole rows of one or two images; all else as in `Tile`."""

    images: int
    rows: int
    columns: int
    outputs: int
    more_outputs: int
    depth: int
    stages: int
    warps: int
    registers: int | None = HALF_REGISTERS


@lru_cache
def choose(shape: tuple[int, int, int], inputs: int, outputs: int, simple: bool, copies: int = 1) -> Tile | Rows:
    """The tile for a number of images, rows and columns, `copies` times in a launch; `simple`: nine taps, stride 1."""
    images, height, width = shape
    part, more = next(parts for parts in PARTS if outputs % sum(parts) == 0)
    columns = min(width, 32)
    fits = simple and inputs % 32 == 0 and outputs >= 32 and columns in (8, 16, 32) and width % columns == 0
    if fits and height % (128 // columns if columns > 8 else 8) == 0:
        return _rows(images * (width // columns), height, columns, inputs, outputs, part, more)
    return _tile(images * height * width * copies, inputs, outputs, part, more)


PARTS = ((128, 32), (64, 16), (128, 0), (64, 0), (32, 0), (16, 0))


def _rows(images: int, height: int, columns: int, inputs: int, outputs: int, part: int, more: int) -> Rows:
    """For images that are as wide as the tile; those that are wider count as several."""
    if columns == 8 and part == 128 and not more and images * (outputs // part) < ENOUGH:
        part = 64  # else there would be fewer tiles than multiprocessors
    if columns == 8:
        together = 2 if more and images % 2 == 0 else 1
        return _filled(together, 8, 8, inputs, part, more, 32 if more else 64, 4, part == 64)
    large = more > 0 or part == 32 or (columns == 32 and part == 64)
    rows = (256 if large else 128) // columns
    if height % rows:
        rows, large = 128 // columns, False
    warps = 8 if large and part > 32 else 4
    depth = 64 if columns == 16 and part == 64 else 32
    few = images * (height // rows) * (outputs // (part + more)) <= MULTIPROCESSORS
    return _filled(1, rows, columns, inputs, part, more, depth, warps, warps == 4 and not few)


def _filled(
    images: int, rows: int, columns: int, inputs: int, part: int, more: int, depth: int, warps: int, pair: bool
) -> Rows:
    """With as many stages as there is shared memory for; `pair`: two tiles are to share a multiprocessor."""
    if inputs % depth:
        depth = 32
    stage = (images * (rows + 2) * columns + 3 * (part + more)) * depth * 2
    room = (HALF if pair else SHARED_MEMORY) - SCRATCH * (warps // 4) ** 2 * part // 64
    stages = max(2, min(4, 3 * inputs // depth, room // stage))
    return Rows(images, rows, columns, part, more, depth, stages, warps, HALF_REGISTERS if warps == 4 else None)


def _tile(pixels: int, inputs: int, outputs: int, part: int, more: int) -> Tile:
    size = 256 if part <= 32 else 128
    if not more and part >= 64:  # where there would be fewer tiles than multiprocessors, smaller ones
        size = 128 if pixels // 128 * (outputs // part) >= ENOUGH else 64
        part = part if size == 128 or pixels // 64 * (outputs // part) >= ENOUGH else 64
    if more and inputs == 16:  # too few steps to keep two tiles going
        return Tile(256, part, more, 16, 4, 8, None)
    for depth in (64, 32, 16):
        stage = (size + part + more) * depth * 2
        stages = min(6, (HALF - 2 * SCRATCH) // stage)
        if inputs % depth == 0 and stages >= 3:
            return Tile(size, part, more, depth, stages, 4)
    raise ValueError(f"{inputs} input channels are no multiple of 16")


@lru_cache
def box(pixels: int, images: int, height: int, width: int) -> tuple[int, int, int]:
    """Images x rows x columns of a tile, each a power of two, that cover all images with the least overhang."""
    found = []
    for columns in _powers(pixels):
        for rows in _powers(pixels // columns):
            size = (pixels // columns // rows, rows, columns)
            covered = 1
            for step, whole in zip(size, (images, height, width), strict=True):
                covered *= -(-whole // step) * step
            if max(size) <= 256:  # the copying hardware's limit
                found.append((covered, -columns, -rows, size))
    return min(found)[3]


def _powers(limit: int) -> list[int]:
    """Powers of two up to the limit."""
    return [1 << n for n in range(limit.bit_length())]
