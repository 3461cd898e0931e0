"""The paper's protocol: set validation images apart, keep a few labels of each class, hide the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebpl.config import Settings
from ebpl.data.dataset import ImageSet
from ebpl.errors import DataError
from ebpl.rng import derived_seed

PAPER_VALIDATION = 0.3
ENOUGH_LABELS = 50
"""Labels of each class from which on a fifth, ten or more, is held out to choose the weights."""
SPARED = 0.2


@dataclass(frozen=True)
class Split:
    """Positions in the training images: those whose labels are used, those whose labels are not, and validation."""

    labeled: NDArray[np.int64]
    unlabeled: NDArray[np.int64]
    validation: NDArray[np.int64]


def split(
    data: ImageSet, *, seed: int = 0, labels_per_class: int | None = None, validation_fraction: float | None = None
) -> Split:
    """Which images are labelled, unlabelled and for validation: a function of the seed only.

    A benchmark follows the paper by default: 30 % validation, then the paper's number of labels a class. The user's own
    data keeps all its labels, unless asked otherwise or every class has so many that a fifth of them can be spared to
    choose the weights.

    >>> import ebpl
    >>> parts = split(ebpl.load("digits"), seed=1, labels_per_class=5)
    >>> len(parts.labeled), len(parts.unlabeled), len(parts.validation)
    (50, 790, 360)
    """
    if validation_fraction is None and data.is_benchmark:
        validation_fraction = PAPER_VALIDATION
    elif validation_fraction is None:  # labels that are hidden on purpose choose nothing either
        validation_fraction = _spared(data) if labels_per_class is None else 0.0
    if labels_per_class is None:
        labels_per_class = data.labels_per_class
    # RandomState's stream is frozen by NumPy's compatibility policy, so a seed means the same split everywhere
    random = np.random.RandomState(derived_seed(seed, "split") % 2**32)
    order = random.permutation(len(data.train))
    known = data.train.labeled

    candidates = order[known[order]]
    held_out = round(validation_fraction * len(candidates))
    validation, candidates = candidates[:held_out], candidates[held_out:]
    labels = data.train.labels[candidates]
    if labels_per_class is None:
        labeled = candidates
    else:
        labeled = np.concatenate(
            [_first(candidates[labels == c], labels_per_class, name) for c, name in enumerate(data.classes)]
        )
    for c, name in enumerate(data.classes):
        if not (data.train.labels[labeled] == c).any():
            raise DataError(
                f"{data.name}: class {name!r} has no label left after {validation_fraction:.0%} of the labelled images "
                "were set apart for validation. Label more of it, or lower --validation-fraction."
            )
    used = np.concatenate([labeled, validation])
    unlabeled = np.setdiff1d(np.arange(len(data.train)), used)
    return Split(np.sort(labeled), unlabeled, np.sort(validation))


def _spared(data: ImageSet) -> float:
    """The share of labels to choose the weights with, where the data has no validation images of its own."""
    counts = np.bincount(data.train.labels[data.train.labeled], minlength=len(data.classes))
    enough = data.validation is None and len(counts) > 0 and counts.min() >= ENOUGH_LABELS
    return SPARED if enough else 0.0


def split_for(data: ImageSet, settings: Settings) -> Split:
    """The split that a run with these settings trains on."""
    return split(
        data,
        seed=settings.seed,
        labels_per_class=settings.data.labels_per_class,
        validation_fraction=settings.data.validation_fraction,
    )


def _first(positions: NDArray[np.int64], wanted: int, name: str) -> NDArray[np.int64]:
    found = len(positions)
    if found < wanted:
        advice = (
            f"Lower --labels-per-class to {found} or less" if found else "Label more, or lower --validation-fraction"
        )
        raise DataError(
            f"Class {name!r} has {found} labelled image{'s' * (found != 1)} outside the validation part, "
            f"but {wanted} labels per class were asked for. {advice}."
        )
    return positions[:wanted]
