"""How many floating-point operations the method needs, from the shapes of the layers.

Counted are the convolutions and the classifier, a multiplication and an addition as two; all else is thousands of
times less. Energies do not need the classifier and class scores are needed for the classified images only, so work
that a loop does beyond that does not count for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ebpl.config import Settings
from ebpl.models import Architecture


@dataclass(frozen=True)
class Operations:
    """Operations for one image: its first layer, all convolutions together, and the classifier, each once forward."""

    stem: int
    convolutions: int
    classifier: int

    @property
    def prediction(self) -> int:
        """One pass forward with both heads."""
        return self.convolutions + self.classifier

    @property
    def sampling(self) -> int:
        """One SGLD step: forward, and back to the image."""
        return 2 * self.convolutions

    def update(self, settings: Settings) -> int:
        """One training step: the sampling, and a pass forward, back and to the weights for each part of the batch.

        The first layer's gradient with respect to the image is not needed there.
        """
        sampling = settings.sgld.chains * settings.sgld.steps * self.sampling
        images = 2 * settings.optim.batch_size + settings.sgld.chains
        learning = images * (3 * self.convolutions - self.stem) + settings.optim.batch_size * 3 * self.classifier
        return sampling + learning + self._consistency(settings)

    def _consistency(self, settings: Settings) -> int:
        """A prediction of each weak view by the teacher, and learning from each strong one."""
        images = settings.consistency.batch_size if settings.consistency.weight else 0
        return images * (self.prediction + 3 * self.convolutions - self.stem + 3 * self.classifier)


def operations(architecture: Architecture) -> Operations:
    """The operations for one image; nothing is computed to find them."""
    with torch.device("meta"):
        model = architecture.build()
        image = torch.empty(1, *architecture.image_shape)
    counts: dict[nn.Module, int] = {}

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        counts[layer] = 2 * layer.weight.numel() * output[0, 0].numel()  # each weight once for each place of the output

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(count)
    model.features(image)
    stem = next(iter(counts.values()))  # the first layer that an image meets
    return Operations(stem, sum(counts.values()), 2 * model.classifier.weight.numel())
