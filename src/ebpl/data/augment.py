"""Label-safe augmentation of a batch on its device, as one gather."""

from __future__ import annotations

import torch
from torch import Tensor


def augment(images: Tensor, kind: str, max_shift: int, generator: torch.Generator) -> Tensor:
    """Each image shifted (edges repeated), for `flip` also mirrored, for `dihedral` also upside down or transposed.

    Images are (N, C, H, W); transposing is left out where they are not square.
    """
    if kind == "none":
        return images
    count, _, height, width = images.shape
    device = images.device

    def coin() -> Tensor:
        return torch.rand(count, 1, generator=generator, device=device) < 0.5

    def shift() -> Tensor:
        return torch.randint(-max_shift, max_shift + 1, (count, 1), generator=generator, device=device)

    rows = (torch.arange(height, device=device) + shift()).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) + shift()).clamp(0, width - 1)
    if kind in ("flip", "dihedral"):
        columns = torch.where(coin(), width - 1 - columns, columns)
    if kind == "dihedral":
        rows = torch.where(coin(), height - 1 - rows, rows)
    position = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1)
    moved = images.flatten(2).gather(2, position.expand(-1, images.shape[1], -1)).view(images.shape)
    if kind == "dihedral" and height == width:
        moved = torch.where(coin()[:, :, None, None], moved.transpose(2, 3), moved)
    return moved
