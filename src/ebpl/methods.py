"""The methods, told as data: which loss terms they have and what happens at a curriculum step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A training method: what distinguishes it from the others, and nothing else."""

    title: str
    """What tables and figures call it."""
    density: bool
    """Learn p(x) with the energy model, on labelled and unlabelled images, coupled to the classifier."""
    restart: bool
    """Re-initialise the weights at the start of every curriculum step."""


METHODS = {
    "ebpl": Method("EBPL", density=True, restart=False),
    "curriculum-labeling": Method("baseline", density=False, restart=True),
}
