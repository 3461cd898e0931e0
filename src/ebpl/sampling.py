"""Stochastic gradient Langevin dynamics (Welling and Teh 2011)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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


def as_pixels(samples: Tensor) -> NDArray[np.uint8]:
    """Samples of images (N, C, H, W) in [-1, 1] as bytes (N, H, W, C); what is not a number is gray."""
    inside = samples.nan_to_num().clamp(-1, 1)
    pixels: NDArray[np.uint8] = ((inside + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return pixels


LARGEST = 2**27
"""Numbers in a replay buffer, 512 MiB: 10,000 colour images of 66 x 66 pixels. Training holds it three times."""


def affordable(wanted: int, shape: tuple[int, ...], chains: int) -> int:
    """As many samples of this shape as are wanted, or else a multiple of the chains that fits into a replay buffer.

    >>> [affordable(10_000, (3, size, size), 64) for size in (32, 64, 128, 1024)]
    [10000, 10000, 2688, 64]
    """
    most = LARGEST // math.prod(shape)
    return wanted if wanted <= most else max(1, most // chains) * chains


class FittedGaussian:
    """A Gaussian with the mean and the covariance of given inputs (N, ...), to start chains from (JEM++).

    A draw is the mean plus a random combination of the inputs' differences from it, which has their covariance exactly
    and needs no factor of that matrix.
    """

    MOST = 2048
    """Inputs to be given; more would cost time at every update and change little."""

    def __init__(self, inputs: Tensor) -> None:
        self.mean = inputs.mean(0)
        self.differences = ((inputs - self.mean) / math.sqrt(len(inputs))).flatten(1)

    def __call__(self, count: int, generator: torch.Generator) -> Tensor:
        """So many draws."""
        shape, device = (count, len(self.differences)), self.mean.device
        away = torch.randn(shape, generator=generator, device=device) @ self.differences
        return self.mean + away.view(count, *self.mean.shape)


class ReplayBuffer:
    """Samples that outlive an update. Chain i draws from its own segment, so no sample is drawn twice at once."""

    def __init__(
        self,
        size: int,
        shape: tuple[int, ...],
        restart_probability: float,
        device: torch.device,
        start: FittedGaussian | None = None,
    ) -> None:
        """`start` is where chains begin; None: uniform noise in [-1, 1]."""
        self.samples = torch.empty(size, *shape, device=device)
        self.restart_probability = restart_probability
        self.start = start

    def _noise(self, count: int, generator: torch.Generator) -> Tensor:
        if self.start is not None:
            return self.start(count, generator)
        shape = (count, *self.samples.shape[1:])
        return torch.rand(shape, generator=generator, device=self.samples.device) * 2 - 1

    def restart(self, generator: torch.Generator, parts: int = 1, part: int = 0) -> None:
        """Restart all chains.

        Of a buffer that is split into `parts`, this is number `part`: together they hold what one would.
        """
        noise = self._noise(parts * len(self.samples), generator)
        self.samples.copy_(noise.view(parts, *self.samples.shape)[part])

    def draw(self, chains: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Positions in the buffer, all different, and where each chain starts from."""
        device = self.samples.device
        segment = len(self.samples) // chains
        offset = torch.randint(segment, (chains,), generator=generator, device=device)
        index = torch.arange(chains, device=device) * segment + offset
        restarted = torch.rand(chains, generator=generator, device=device) < self.restart_probability
        mask = restarted.view(-1, *[1] * (self.samples.ndim - 1))
        return index, torch.where(mask, self._noise(chains, generator), self.samples[index])

    def described(self) -> str:
        """What the samples look like, in words: chains that diverged explain why training did."""
        finite = self.samples.isfinite()
        lost = int((~finite.flatten(1).all(1)).sum())
        widest = float(torch.where(finite, self.samples, 0).abs().max())
        return f"{lost} of {len(self.samples)} chains are not finite, the others reach {widest:.3g}"

    def store(self, index: Tensor, samples: Tensor) -> None:
        """Put chains back where they were drawn."""
        self.samples[index] = samples.to(self.samples.dtype)
