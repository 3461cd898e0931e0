"""Methods, one file each: which loss terms they have, and what happens between curriculum steps.

A new method is a new file with a `METHOD`; its name is the file's, with dashes. Nothing else has to change.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ebpl.config import Settings
from ebpl.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from ebpl.training.losses import LossTerm


@dataclass(frozen=True)
class Method:
    """A training method: what distinguishes it from the others, and nothing else."""

    title: str
    """What tables and figures call it."""
    summary: str
    """What it does, in a line."""
    terms: Callable[[Settings], Sequence[LossTerm]]
    """The loss terms under some settings."""
    reinitialise: bool = False
    """Begin every curriculum step with fresh weights."""
    pseudo_labels: bool = True
    """Whether it has curriculum steps at all."""
    takes_features: bool = True
    """Whether it can learn on the features of an encoder that stays as it is, of which there are no other views."""

    @cached_property
    def density(self) -> bool:
        """Whether it learns a density, so that it has energies, samples and outliers."""
        return any(term.density for term in self.terms(Settings()))


_registered: dict[str, Method] = {}


def register(name: str, method: Method) -> None:
    """Make a method known that is not a file of this package."""
    _registered[name] = method


def method_names() -> list[str]:
    """The names of all methods; needs none of their imports."""
    return [found.name.replace("_", "-") for found in pkgutil.iter_modules(__path__)] + list(_registered)


def get_method(name: str) -> Method:
    """A method by its name."""
    if name in _registered:
        return _registered[name]
    if name not in method_names():
        raise UsageError(f"There is no method {name!r}. {did_you_mean(name, method_names())}")
    method: Method = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").METHOD
    return method
