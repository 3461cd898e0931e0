"""The classifier alone: cross-entropy on the labelled images, and nothing from the others."""

from __future__ import annotations

from ebpl.methods import Method
from ebpl.training.losses import supervised_terms

METHOD = Method(
    "supervised", "the classifier alone: cross-entropy on labelled images", supervised_terms, pseudo_labels=False
)
