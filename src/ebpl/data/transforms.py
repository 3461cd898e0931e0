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
    count, channels, device = len(images), images.shape[1], images.device

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
    return _hidden(views, half, (1 + within(1.0, 2)) / 2)


def _hidden(views: Tensor, half: Tensor, centre: Tensor) -> Tensor:
    """Views in which a square is gray: half its side (N, 1) and its centre (N, 2) are shares of height and width."""
    down, across = ((torch.arange(side, device=views.device) + 0.5) / side for side in views.shape[2:])
    rows, columns = (down - centre[:, :1]).abs() < half, (across - centre[:, 1:]).abs() < half
    return views.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0.0)


CHANGES = ("identity", "rotate", "shear_x", "shear_y", "translate_x", "translate_y", "autocontrast", "brightness",
           "color", "contrast", "equalize", "posterize", "sharpness", "solarize")  # fmt: skip
"""RandAugment's, those of the geometry first."""
GEOMETRY = CHANGES[1:6]
CHOSEN = 2
"""How many of them a view gets."""
TURNED, SLANTED, MOVED = math.radians(30), 0.3, 0.3
"""Of up to so much; in FixMatch's appendix, as the ranges below."""
FACTORS = (0.05, 0.95)
BITS = (4, 8)


def randaugment(images: Tensor, kind: str, max_shift: int, generator: torch.Generator, colors: float = 1.0) -> Tensor:
    """Views of the same kind, then two changes of fourteen at random strengths, and a hidden square of half the side.

    RandAugment as in FixMatch (Cubuk et al. 2020; Sohn et al. 2020, appendix D). Images are (N, C, H, W) in [-1, 1],
    and so are the views. `colors` is the probability that a change of colours is made where one is chosen.
    """
    images = augment(images, kind, max_shift, generator)
    count, device = len(images), images.device

    def draw(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator, device=device)

    for _ in range(CHOSEN):
        change = torch.randint(len(CHANGES), (count,), generator=generator, device=device)
        strength, sign = draw(), torch.where(draw() < 0.5, -1.0, 1.0)
        kept = (change <= len(GEOMETRY)) | (draw() < colors)
        images = changed(images, torch.where(kept, change, 0), strength, sign)
    return _hidden(images, torch.full((count, 1), HIDDEN / 2, device=device), draw(2))


def changed(images: Tensor, change: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Images in [-1, 1], each after the change (N) of this number, at a strength (N) in [0, 1], to the side of a sign.

    Every change is computed for all images, and what was chosen is kept: a GPU has no branches to follow.
    """

    def chosen(name: str) -> Tensor:
        return change == CHANGES.index(name)

    def where(name: str, limit: float) -> Tensor:
        return torch.where(chosen(name), limit * strength * sign, 0.0)

    angle = where("rotate", TURNED)
    rows = [angle.cos(), where("shear_x", SLANTED) - angle.sin(), where("translate_x", 2 * MOVED),
            angle.sin() + where("shear_y", SLANTED), angle.cos(), where("translate_y", 2 * MOVED)]  # fmt: skip
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
    still = (change == 0) | (change > len(GEOMETRY))
    pixels = (torch.where(still[:, None, None, None], images, moved) + 1) / 2
    factor = (FACTORS[0] + (FACTORS[1] - FACTORS[0]) * strength)[:, None, None, None]
    gray = pixels if pixels.shape[1] == 1 else _gray(pixels)
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    scale = 2.0 ** (8 - (BITS[0] + (strength * (BITS[1] - BITS[0] + 1)).floor().clamp(max=4)))[:, None, None, None]
    found = {
        "autocontrast": torch.where(high > low, (pixels - low) / (high - low).clamp(min=1e-6), pixels),
        "brightness": factor * pixels,
        "color": gray + factor * (pixels - gray),
        "contrast": (middle := gray.mean((1, 2, 3), keepdim=True)) + factor * (pixels - middle),
        "equalize": _equalized(pixels),
        "posterize": ((255 * pixels).round() / scale).floor() * scale / 255,
        "sharpness": (smooth := _smoothed(pixels)) + factor * (pixels - smooth),
        "solarize": torch.where(pixels >= strength[:, None, None, None], 1 - pixels, pixels),
    }
    for name, values in found.items():
        pixels = torch.where(chosen(name)[:, None, None, None], values, pixels)
    return 2 * pixels - 1


def _gray(pixels: Tensor) -> Tensor:
    # without a tensor of weights, which a captured GPU graph could not copy to the device
    return 0.299 * pixels[:, :1] + 0.587 * pixels[:, 1:2] + 0.114 * pixels[:, 2:]


def _smoothed(pixels: Tensor) -> Tensor:
    """A 3 x 3 mean in which the middle counts five times; the border stays as it is."""
    weights = torch.ones(pixels.shape[1], 1, 3, 3, device=pixels.device)
    weights[:, :, 1, 1] = 5
    smooth = F.conv2d(pixels, weights / 13, groups=pixels.shape[1])
    return torch.cat([pixels[:, :, :1], torch.cat([pixels[:, :, 1:-1, :1], smooth, pixels[:, :, 1:-1, -1:]], 3),
                      pixels[:, :, -1:]], 2)  # fmt: skip


def _equalized(pixels: Tensor) -> Tensor:
    """A histogram that is as flat as it can be, in each channel; too few pixels stay as they are."""
    values = (255 * pixels).round().long().clamp(0, 255).flatten(2)
    counts = torch.zeros(*values.shape[:2], 256, device=pixels.device)
    counts.scatter_add_(2, values, torch.ones_like(values, dtype=torch.float32))
    last = counts.gather(2, values.amax(2, keepdim=True))
    step = ((values.shape[2] - last) / 255).floor()
    table = (((step / 2).floor() + counts.cumsum(2) - counts) / step.clamp(min=1)).floor().clamp(max=255)
    flat = (table.gather(2, values) / 255).view_as(pixels)
    return torch.where(step[..., None] > 0, flat, pixels)
