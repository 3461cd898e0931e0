"""Rows of numbers as a backbone: features that were computed elsewhere, on which the two heads stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebpl.data.sklearn_input import unpacked
from ebpl.models.encoder import CHOICE, PrincipalComponents

COMPONENTS = 128
"""Principal components where the options do not say."""


class Rows(PrincipalComponents):
    """Rows as `ebpl.data.sklearn_input.packed` makes them in, their principal components (N, components) out."""

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        """The numbers of the rows."""
        return torch.from_numpy(unpacked(pixels))


def build(options: Mapping[str, Any], shape: tuple[int, ...]) -> Rows:
    """For rows of as many numbers as images of the shape (C, H, W) are wide."""
    return Rows(shape[2], options.get("components", COMPONENTS), bool(options.get(CHOICE)))
