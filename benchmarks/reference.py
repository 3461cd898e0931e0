"""A plain training step in the style of the public JEM code, to measure against.

Float32 with TF32 allowed, eager, NCHW; the replay buffer and the images on the host, with copies every step; a pass of
its own for the classified, the real and the sampled images; the loss is read every step. What the public code does not
do is left out, which is in its favour: no weights are averaged, images are scaled on the device because there other
processes do it, and each pass computes the one head that it needs, sampling only its gradient in closed form. So a
sampling step starts no more operations than the public code's, whose energy is that of its class scores: on a GPU a
small network is bound by their number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ebpl.config import Settings
from ebpl.models import Architecture
from ebpl.rng import generator


class Reference:
    """The loop's state; calling it does one step and returns the loss."""

    def __init__(
        self, architecture: Architecture, images: Tensor, targets: Tensor, settings: Settings, device: torch.device
    ) -> None:
        """`images` are uint8 (N, C, H, W) with their `targets`, both on the host."""
        self.images, self.targets, self.settings, self.device = images, targets, settings, device
        self.model = architecture.build().initialise(generator(settings.seed, "weights")).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.optim.learning_rate)
        self.buffer = torch.rand(settings.sgld.buffer_size, *images.shape[1:]) * 2 - 1

    def __call__(self) -> float:
        """One step on random images; waits for the device, since it reads the loss."""
        settings = self.settings
        with _tf32(self.device):
            classified, everything = torch.randint(len(self.images), (2, settings.optim.batch_size))
            drawn, start = self._draw()
            samples = self.sample(start.to(self.device))
            self.buffer[drawn] = samples.cpu()
            targets = self.targets[classified].to(self.device)
            loss = self.loss(self._batch(classified), targets, self._batch(everything), samples)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            return loss.item()

    def _batch(self, index: Tensor) -> Tensor:
        """Images from the host, in [-1, 1] and with noise."""
        x = self.images[index].to(self.device).float() / 127.5 - 1
        return x + self.settings.data.pixel_noise * torch.randn_like(x)

    def _draw(self) -> tuple[Tensor, Tensor]:
        """Positions in the buffer and where the chains start, some of them from noise."""
        settings = self.settings
        drawn = torch.randint(len(self.buffer), (settings.sgld.chains,))
        kept = self.buffer[drawn]
        restarted = (torch.rand(settings.sgld.chains) < settings.sgld.restart_probability)[:, None, None, None]
        return drawn, torch.where(restarted, torch.rand_like(kept) * 2 - 1, kept)

    def sample(self, start: Tensor) -> Tensor:
        """Samples after K steps of SGLD, by autograd with respect to the images."""
        settings, slope = self.settings, self.model.energy_head.energy_gradient()
        x = start.clone().requires_grad_(True)
        for _ in range(settings.sgld.steps):
            features = self.model.features(x)
            (gradient,) = torch.autograd.grad(features, x, slope(features.detach()))
            x.data += settings.sgld.noise * torch.randn_like(x) - settings.sgld.step_size * gradient
        return x.detach()

    def loss(self, classified: Tensor, targets: Tensor, images: Tensor, samples: Tensor) -> Tensor:
        """Cross-entropy, the energy model's likelihood and the coupling, from three passes."""
        model, head = self.model, self.model.gaussian
        assert head is not None
        cross_entropy = F.cross_entropy(model.classifier(model.features(classified)), targets)
        real, sampled = (head.energy(model.features(each)).mean() for each in (images, samples))
        weights = self.settings.energy.weight, self.settings.energy.coupling_weight
        return cross_entropy + weights[0] * (real - sampled) + weights[1] * model.coupling()


@contextlib.contextmanager
def _tf32(device: torch.device) -> Iterator[None]:
    """Allow TF32 in matrix products too (in convolutions PyTorch allows it by itself), for this loop alone."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
