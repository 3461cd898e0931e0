"""The energy-based head: features of class c are Gaussian around a mean, with one precision matrix for all classes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class GaussianHead(nn.Module):
    """Class energies E_c = 1/2 (f - mu_c)' P (f - mu_c) with P identity, diagonal or full (P = L L')."""

    def __init__(self, dimension: int, classes: int, precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.means = nn.Parameter(torch.zeros(classes, dimension))
        if precision == "diagonal":
            self.log_precision = nn.Parameter(torch.zeros(dimension))
        elif precision == "full":
            self.factor = nn.Parameter(torch.eye(dimension))
        elif precision != "identity":
            raise ValueError(f"precision is {precision!r}, not identity, diagonal or full")

    def _whiten(self, vectors: Tensor) -> Tensor:
        """Rows v as L'v, so that v' P v is the squared length of the result."""
        if self.precision == "diagonal":
            return vectors * torch.exp(self.log_precision / 2)
        if self.precision == "full":
            return vectors @ self.factor.tril()
        return vectors

    def _times_precision(self, vectors: Tensor) -> Tensor:
        """Rows v as P v."""
        whitened = self._whiten(vectors)
        if self.precision == "diagonal":
            return whitened * torch.exp(self.log_precision / 2)
        if self.precision == "full":
            return whitened @ self.factor.tril().T
        return whitened

    def natural_weight(self) -> Tensor:
        """P mu_c for each class: the classifier's weight when both heads agree."""
        return self._times_precision(self.means)

    def natural_bias(self) -> Tensor:
        """-1/2 mu_c' P mu_c for each class: the classifier's bias when both heads agree."""
        return -0.5 * self._whiten(self.means).square().sum(1)

    def class_energies(self, features: Tensor) -> Tensor:
        """E_c for each image and class, (N, C)."""
        difference = self._whiten(features)[:, None, :] - self._whiten(self.means)[None]
        return 0.5 * difference.square().sum(2)

    def energy(self, features: Tensor) -> Tensor:
        """E = -log sum_c exp(-E_c) for each image, up to a constant minus the log-density, (N)."""
        return -torch.logsumexp(-self.class_energies(features), 1)

    @torch.no_grad()
    def diagonal(self) -> Tensor | None:
        """The diagonal of P, or None if P is more than that."""
        if self.precision == "full":
            return None
        return torch.exp(self.log_precision) if self.precision == "diagonal" else torch.ones_like(self.means[0])

    @torch.no_grad()
    def energy_gradient(self) -> Callable[[Tensor], Tensor]:
        """dE/df as a function of the features, for the parameters as they are now: P f - sum_c p(c | f) P mu_c."""
        weight, bias = self.natural_weight(), self.natural_bias()

        def gradient(features: Tensor) -> Tensor:
            posterior = torch.softmax(torch.addmm(bias, features, weight.T), 1)
            return torch.addmm(self._times_precision(features), posterior, weight, alpha=-1)

        return torch.no_grad()(gradient)

    def posterior(self, features: Tensor) -> Tensor:
        """p(c | x) by Bayes' rule from the Gaussians, (N, C)."""
        return torch.softmax(-self.class_energies(features), 1)

    def coupling(self, weight: Tensor, bias: Tensor) -> Tensor:
        """The coupling penalty: sum_c |w_c - P mu_c|^2 + (b_c + 1/2 mu_c' P mu_c)^2."""
        return (weight - self.natural_weight()).square().sum() + (bias - self.natural_bias()).square().sum()

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Means uniform in +-1/sqrt(dimension), precision the identity."""
        bound = 1 / math.sqrt(self.means.shape[1])
        self.means.uniform_(-bound, bound, generator=generator)
        if self.precision == "diagonal":
            self.log_precision.zero_()
        elif self.precision == "full":
            self.factor.copy_(torch.eye(self.means.shape[1]))
