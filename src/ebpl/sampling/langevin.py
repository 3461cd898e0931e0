"""Stochastic gradient Langevin dynamics (Welling and Teh 2011)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Langevin:
    """x <- x - step_size * dE/dx + noise * normal, `steps` times.

    With noise = sqrt(2 * step_size) this is a discretised Langevin diffusion whose stationary density is exp(-E). The
    two are separate settings because training uses far less noise than that, as all of the JEM family does.
    """

    steps: int
    step_size: float
    noise: float
    gradient_clip: float = 0.0
    """Clamp each value of the gradient to +-this; 0: off."""
    clamp: tuple[float, float] | None = None
    """Keep samples inside this range."""

    def __call__(self, energy: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator) -> Tensor:
        """Samples after `steps` steps from x; `energy` gives one energy a sample."""

        def gradient(x: Tensor) -> Tensor:
            x = x.detach().requires_grad_(True)
            with torch.enable_grad():
                return torch.autograd.grad(energy(x).sum(), x)[0]

        return self.follow(gradient, x, generator)

    def follow(self, gradient: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator) -> Tensor:
        """The same for an energy whose gradient is known."""
        x = x.detach()
        for _ in range(self.steps):
            slope = gradient(x)
            if self.gradient_clip:
                slope = slope.clamp(-self.gradient_clip, self.gradient_clip)
            x = x - self.step_size * slope
            if self.noise:
                x = x + self.noise * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
            if self.clamp is not None:
                x = x.clamp(*self.clamp)
        return x
