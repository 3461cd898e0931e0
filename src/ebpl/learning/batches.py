"""The order of images within an epoch."""

from __future__ import annotations

import torch
from torch import Tensor


def batches(count: int, updates: int, size: int, generator: torch.Generator) -> Tensor:
    """Positions below `count` in a table (updates, size): whole passes in new random orders, one after the other.

    Every batch is full; within each pass no position comes twice.
    """
    needed = updates * size
    passes = [torch.randperm(count, generator=generator) for _ in range(-(-needed // count))]
    return torch.cat(passes)[:needed].view(updates, size)
