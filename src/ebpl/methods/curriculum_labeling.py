"""Curriculum labelling, the paper's baseline: the same network and schedule without the energy model.

Cascante-Bonilla et al. 2021; every curriculum step begins with fresh weights.
"""

from __future__ import annotations

from ebpl.methods import Method
from ebpl.training.losses import classifier_terms

METHOD = Method(
    "baseline",
    "curriculum labelling, the paper's baseline: no energy model, fresh weights at every step",
    classifier_terms,
    reinitialise=True,
)
