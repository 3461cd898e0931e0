"""A pretrained encoder as a backbone that learns: training goes on with its weights, all of them or those of the end.

The two heads stand where they do on a frozen encoder, on principal components of its features. Those are fitted to the
features that training begins with, and then stay as they are. What the network has learned is part of the model's
weights, so that a trained model needs the encoder's structure, not its file.

Batch normalisation keeps the statistics of the encoder's own training: images of a batch do not see each other. The
density is one of features. The network does not learn from it: it would move all images to where the energy is low.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ebpl.config import ModelSettings
from ebpl.encoders import check_pixels, load_encoder
from ebpl.encoders.registry import LARGEST, SMALLEST
from ebpl.encoders.weights import build_network, is_network
from ebpl.errors import UsageError
from ebpl.models import Backbone
from ebpl.models.encoder import CHOICE, PrincipalComponents, Resizing, options_of, same_encoder

CHANNELS = 3
LAST = 1 / 3
"""Share of the blocks, counted from the end, that learn where only the last do."""
BATCH = 64
"""Images of 224 x 224 that are predicted at once: about a gigabyte."""


class FineTunedEncoder(Backbone):
    """Images (N, H, W, C) in, principal components of an encoder's features (N, components) out."""

    starts_from_probe = samples_features = True
    mean: Tensor
    std: Tensor

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.options = options
        """What `options_for` gives: it tells where the weights come from, wherever they are taken."""
        self.size: int = options["size"]
        self.batch = max(1, BATCH * 224**2 // self.size**2)
        self.network = build_network(options["architecture"])[0].eval()
        self.network.requires_grad_(options["fine_tune"] == "all")
        for block in self.learned_blocks():
            block.requires_grad_(True)
        self.components = PrincipalComponents(options["dimension"], options["components"], bool(options.get(CHOICE)))
        self.dimension = self.components.dimension
        for name in ("mean", "std"):
            self.register_buffer(name, torch.ones(CHANNELS, 1, 1))

    def learned_blocks(self) -> list[nn.Module]:
        """The blocks that learn."""
        return last_blocks(self.network) if self.options["fine_tune"] == "last" else []

    def train(self, mode: bool = True) -> FineTunedEncoder:
        """The network always computes as it does in prediction."""
        super().train(mode)
        self.network.eval()
        return self

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Images as bytes (N, 3, size, size)."""
        check_pixels(pixels)
        if pixels.shape[1:3] == (self.size, self.size):
            return super().prepare(pixels).expand(-1, CHANNELS, -1, -1)
        resize = Pixels(pixels.shape[1], pixels.shape[2], self.size)
        made = torch.empty(len(pixels), CHANNELS, self.size, self.size, dtype=torch.uint8)
        for start in range(0, len(pixels), self.batch):
            part = slice(start, start + self.batch)
            made[part] = resize(torch.from_numpy(np.require(pixels[part], requirements=["C", "W"]))).byte()
        return made

    def forward(self, images: Tensor) -> Tensor:
        """Principal components, in float32 whatever the network computes in."""
        features = self.encoded(images)
        with torch.autocast(features.device.type, enabled=False):
            return self.components.scale(features)

    def encoded(self, images: Tensor) -> Tensor:
        """The network's features."""
        features: Tensor = self.network(self._normalised(images))
        return features

    def _normalised(self, images: Tensor) -> Tensor:
        """Images in [-1, 1] as the encoder takes them."""
        return (images / 2 + 0.5 - self.mean) / self.std

    @torch.no_grad()
    def points(self, prepared: Tensor) -> Tensor:
        """Chains are sampled among features."""
        with _exact(prepared.device):
            return torch.cat([self(self.scale(part)) for part in torch.split(prepared, self.batch)])

    @torch.no_grad()
    def fit(self, prepared: Tensor, square_root: bool = False) -> None:
        """The encoder's weights, and the principal components of its features of the training images."""
        self._load()
        with _exact(prepared.device):
            parts = [self.encoded(self.scale(part)) for part in torch.split(prepared, self.batch)]
        self.components.fit(torch.cat(parts), square_root)

    def _load(self) -> None:
        """Take the encoder's weights and normalisation."""
        encoder = same_encoder(self.options["encoder"], self.options["digest"])
        self.network.load_state_dict(encoder.network().state_dict())
        self.mean.copy_(torch.tensor(encoder.info.mean)[:, None, None])
        self.std.copy_(torch.tensor(encoder.info.std)[:, None, None])

    def initialise(self, generator: torch.Generator) -> None:
        """The encoder's own weights: nothing is random here."""
        self._load()


class Pixels(nn.Module):
    """What `FineTunedEncoder.prepare` does, as a network that can be written into a file."""

    def __init__(self, height: int, width: int, size: int) -> None:
        super().__init__()
        self.resize = Resizing(height, width, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Images (N, H, W, 1 or 3) as uint8 in; whole numbers (N, 3, size, size) out."""
        images: Tensor = self.resize(pixels)
        return images.round().expand(-1, CHANNELS, -1, -1)


@contextlib.contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """The same numbers in every process, and when a run is resumed."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The parts of a network in their order; lists of modules are opened, other modules are one part."""
    for child in network.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from blocks(child)
        elif next(child.parameters(), None) is not None:
            yield child


def last_blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks at the end that learn where only the last do."""
    every = list(blocks(network))
    return every[len(every) - math.ceil(LAST * len(every)) :]


def build(options: Mapping[str, Any], _: tuple[int, ...]) -> FineTunedEncoder:
    """The encoder that the options describe, with weights still to be loaded."""
    return checked(FineTunedEncoder, options, ("last", "all"))


def checked(kind: type[FineTunedEncoder], options: Mapping[str, Any], learns: Sequence[str]) -> FineTunedEncoder:
    """A backbone of this kind, where the options describe a network of which one of these parts learns."""
    encoder, architecture, size = options["encoder"], options["architecture"], options["size"]
    if not is_network(architecture) or not SMALLEST <= size <= LARGEST or options["fine_tune"] not in learns:
        raise ValueError(f"{encoder} is no encoder that can be fine-tuned: {architecture}, {size} x {size} pixels")
    made = kind(options)
    if getattr(made.network, "dimension", options["dimension"]) != options["dimension"]:
        raise ValueError(f"{architecture} does not have {options['dimension']} features")
    return made


def options_for(settings: ModelSettings) -> dict[str, Any]:
    """The options of a new model that fine-tunes an encoder; an error where it is none that can learn."""
    assert settings.encoder is not None
    encoder = load_encoder(settings.encoder)
    network = encoder.network()
    if settings.fine_tune == "end" and not hasattr(network, "before_last"):
        raise UsageError(
            f"EBPL does not know where the last block of {settings.encoder} begins. Let more of it learn, with "
            "--fine-tune last."
        )
    about = {name: getattr(encoder.info, name) for name in ("architecture", "size", "title", "licence", "source")}
    choice = settings.feature_options if settings.fine_tune == "end" else {}
    known = options_of(settings.encoder, settings.components)
    return {**known, **about, **choice, "fine_tune": settings.fine_tune}
