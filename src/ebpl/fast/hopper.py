"""The kernels for Hopper GPUs, under the names by which `ebpl.fast.plain` defines them."""

from __future__ import annotations

from ebpl.fast.convolution import convolve, supported
from ebpl.fast.edges import head_gradient, pool, spread, stem, stem_back

__all__ = ["convolve", "head_gradient", "pool", "spread", "stem", "stem_back", "supported"]
