"""Random numbers that are a function of the seed and of what they are for.

Each epoch draws from generators seeded anew by name, so a run resumed at an epoch's start needs no generator state, and
a retry after a divergence differs from the try before it.
"""

from __future__ import annotations

import hashlib

import torch


def derived_seed(seed: int, *purpose: object) -> int:
    """A 63-bit seed, the same on every machine, different for every purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    return torch.Generator().manual_seed(derived_seed(seed, *purpose))
