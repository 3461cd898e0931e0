"""EBPL without its energy model: the same terms otherwise, and weights are kept between curriculum steps.

What energies are worth is the difference between this and EBPL, with nothing else changed.
"""

from __future__ import annotations

from ebpl.methods import Method
from ebpl.training.losses import classifier_terms

METHOD = Method(
    "EBPL without energy", "EBPL without density and coupling; weights are kept between steps", classifier_terms
)
