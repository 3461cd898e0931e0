"""The order of images within an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ebpl.learning.ranks import Ranks
from ebpl.settings import Settings


def batches(count: int, updates: int, size: int, generator: torch.Generator) -> Tensor:
    """Positions below `count` in a table (updates, size): whole passes in new random orders, one after the other.

    Every batch is full; within each pass no position comes twice.
    """
    needed = updates * size
    passes = [torch.randperm(count, generator=generator) for _ in range(-(-needed // count))]
    return torch.cat(passes)[:needed].view(updates, size)


@dataclass(frozen=True)
class Order:
    """Positions in the pool for each update of an epoch, (updates, batch)."""

    classified: Tensor
    everything: Tensor
    compared: Tensor | None


def epoch_order(
    labeled: int,
    total: int,
    chosen: Sequence[int],
    rejected: Sequence[int],
    updates: int,
    settings: Settings,
    ranks: Ranks,
    generator: torch.Generator,
    waiting: int = 0,
) -> Order:
    """The order of an epoch over a pool that begins with its labelled images, the last of which may have to wait.

    Unlabelled ones are counted from the first of them: those that were chosen are classified as well, those that were
    rejected are not learned from.
    """

    def positions(unlabeled: Sequence[int]) -> Tensor:
        return labeled + torch.tensor(unlabeled, dtype=torch.long)

    def table(of: Tensor, size: int) -> Tensor:
        return of[batches(len(of), updates, size, generator)]

    def own(table: Tensor) -> Tensor:
        return table[:, ranks.own(table.shape[1])]

    everything = torch.arange(total)
    if rejected:
        everything = everything[~torch.isin(everything, positions(rejected))]
    unlabeled = everything[everything >= labeled - waiting] if (everything >= labeled).any() else everything
    size, known = settings.batch_size, round(settings.labeled_share * settings.batch_size)
    true, pseudo = torch.arange(labeled - waiting), positions(chosen)
    if 0 < known < size and len(pseudo):
        both = [table(true, known), table(pseudo, size - known)]
        classified = torch.cat(both, 1)[:, torch.randperm(size, generator=generator)]
    else:
        classified = table(torch.cat([true, pseudo]), size)
    everything_in_turn = own(table(everything, size))
    if not settings.consistency:
        return Order(own(classified), everything_in_turn, None)
    compared = table(unlabeled, settings.consistency_batch)
    return Order(own(classified), everything_in_turn, own(compared))
