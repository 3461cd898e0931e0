"""Seeds, and random numbers that are a function of the seed and of what they are for.

Each epoch draws from generators seeded anew by name, so a run resumed at an epoch's start needs no generator state, and
a retry after a divergence differs from the try before it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ebpl.errors import UsageError

if TYPE_CHECKING:
    import torch

MOST = 1000
"""More seeds than this at once are a slip of the keyboard."""


def derived_seed(seed: int, *purpose: object) -> int:
    """A 63-bit seed, the same on every machine, different for every purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    import torch

    return torch.Generator().manual_seed(derived_seed(seed, *purpose))


def parse_seeds(text: str) -> list[int]:
    """Seeds as a person writes them.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?:-([0-9]{1,18}))?\s*", part)
        if not match:
            raise UsageError(f"{part.strip()!r} in --seeds {text} is no seed. Write 0-4, or 0,2,5, or 0-2,7.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{part.strip()} in --seeds {text} goes backwards. Write {last}-{first}.")
        found += range(first, min(last, first + MOST) + 1)
    return checked_seeds(found)


def checked_seeds(seeds: Iterable[int] | str) -> list[int]:
    """The same seeds, if there are some, and each is there once."""
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    if not isinstance(seeds, Iterable):
        raise UsageError(f"seeds are {seeds!r}, but must be several: [0, 1, 2], range(3) or '0-2'.")
    checked = list(seeds)
    if not checked:
        raise UsageError("There is no seed to train. Give at least one.")
    if len(checked) > MOST:
        raise UsageError(f"These are more than {MOST} seeds. Train fewer at once.")
    for seed in checked:
        if checked.count(seed) > 1:
            raise UsageError(f"Seed {seed} is named more than once; each is trained once.")
    return checked


def seeds_in_words(seeds: Iterable[int]) -> str:
    """Seeds as part of a folder's name: the opposite of `parse_seeds`, without commas.

    >>> seeds_in_words([0, 1, 2, 7])
    '0-2_7'
    """
    ranges: list[list[int]] = []
    for seed in seeds:
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    text = "_".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)
    return text if len(text) <= 40 else f"{ranges[0][0]}-and-others"
