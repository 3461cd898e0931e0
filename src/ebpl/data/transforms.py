"""Augmentation of a batch on its device: label-safe views as one gather, and strong views, hard to recognise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

SHIFTED = 32
"""Height or width up to which shifts count in pixels; in larger images they are longer by as much."""
ROTATION = math.radians(30)
ZOOM = math.log(1.3)
SHEAR = 0.2
MOVE = 0.15
"""Strong views are turned, zoomed, slanted and moved (a share of the image) by up to this."""
BRIGHTNESS, CONTRAST, SATURATION = 0.4, math.log(1.6), 0.8
"""Strong views get lighter by up to this, for images in [-1, 1]; contrast is a factor, saturation a share."""
HIDDEN = 0.5
"""The side of the square hidden in a strong view is up to this share of the image's."""


def augment(images: Tensor, kind: str, max_shift: int, generator: torch.Generator) -> Tensor:
    """Each image shifted (edges repeated), for `flip` also mirrored, for `dihedral` also upside down or transposed.

    Images are (N, C, H, W); transposing is left out where they are not square. Shifts are up to `max_shift` pixels, or
    that many 32nds of a height or width above 32.
    """
    if kind == "none":
        return images
    count, _, height, width = images.shape
    device = images.device

    def coin() -> Tensor:
        return torch.rand(count, 1, generator=generator, device=device) < 0.5

    def shifted(side: int) -> Tensor:
        most = max_shift * max(side, SHIFTED) // SHIFTED
        shift = torch.randint(-most, most + 1, (count, 1), generator=generator, device=device)
        return (torch.arange(side, device=device) + shift).clamp(0, side - 1)

    rows, columns = shifted(height), shifted(width)
    if kind in ("flip", "dihedral"):
        columns = torch.where(coin(), width - 1 - columns, columns)
    if kind == "dihedral":
        rows = torch.where(coin(), height - 1 - rows, rows)
    position = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1)
    moved = images.flatten(2).gather(2, position.expand(-1, images.shape[1], -1)).view(images.shape)
    if kind == "dihedral" and height == width:
        moved = torch.where(coin()[:, :, None, None], moved.transpose(2, 3), moved)
    return moved


def strongly_augment(
    images: Tensor, kind: str, max_shift: int, generator: torch.Generator, colors: float = 1.0
) -> Tensor:
    """Views of the same kind, then turned, zoomed and slanted, in other light and colours, and partly hidden.

    Images are (N, C, H, W) in [-1, 1], and so are the views. How much of each is drawn for every image; light and
    colours change by a share of what they may.
    """
    images = augment(images, kind, max_shift, generator)
    count, channels, height, width = images.shape
    device = images.device

    def within(limit: float, *shape: int) -> Tensor:
        return limit * (2 * torch.rand(count, *shape, generator=generator, device=device) - 1)

    angle, slant, zoom = within(ROTATION), within(SHEAR), within(ZOOM).exp()
    move = within(2 * MOVE, 2)  # an image is 2 wide in the coordinates of `affine_grid`
    cosine, sine = zoom * angle.cos(), zoom * angle.sin()
    rows = [cosine, slant * cosine - sine, move[:, 0], sine, slant * sine + cosine, move[:, 1]]
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    views = F.grid_sample(images, grid, padding_mode="border", align_corners=False)

    if channels > 1:
        gray = views.mean(1, keepdim=True)
        views = gray + (1 + within(colors * SATURATION, 1, 1, 1)) * (views - gray)
    middle = views.mean((1, 2, 3), keepdim=True)
    contrast, brightness = (within(colors * most, 1, 1, 1) for most in (CONTRAST, BRIGHTNESS))
    views = middle + contrast.exp() * (views - middle) + brightness
    views = views.clamp(-1, 1)

    half = HIDDEN / 2 * torch.rand(count, 1, generator=generator, device=device)
    centre = (1 + within(1.0, 2)) / 2
    down = (torch.arange(height, device=device) + 0.5) / height
    across = (torch.arange(width, device=device) + 0.5) / width
    hidden = ((down - centre[:, :1]).abs() < half)[:, None, :, None] & ((across - centre[:, 1:]).abs() < half)[
        :, None, None, :
    ]
    return views.masked_fill(hidden, 0.0)
