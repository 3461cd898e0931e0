"""A pretrained encoder as a backbone that learns: training goes on with its weights, all of them or those of the end.

The two heads stand where they do on a frozen encoder, on principal components of its features. Those are fitted to the
features that training begins with, and then stay as they are. What the network has learned is part of the model's
weights, so that a trained model needs the encoder's structure, not its file.

Batch normalisation keeps the statistics of the encoder's own training: images of a batch do not see each other. The
density is one of features. The network does not learn from it: it would move all images to where the energy is low.

Where only the end learns, the last block and what follows it, everything before stays as it is. So what goes into the
last block is computed once for a few views of every training image, and kept in 16 bits: the image, its mirror image
and views that are hard to recognise. Training begins there, which is quick on a CPU too. Features of an image are then
the mean over it and its mirror image, as those of an encoder that stays as it is. The views of an image depend on
nothing but the image, so several seeds that are trained by one process share them.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ebpl.config import DataSettings, ModelSettings, Settings
from ebpl.data.dataset import ImageSet
from ebpl.data.transforms import strongly_augment
from ebpl.encoders import check_pixels, encode_all, fastest_device, load_encoder
from ebpl.encoders.registry import LARGEST, SMALLEST
from ebpl.encoders.weights import NETWORKS, build_network, folded, is_network
from ebpl.errors import UsageError
from ebpl.models import Backbone
from ebpl.models.encoder import CHOICE, PrincipalComponents, Resizing, options_of, same_encoder
from ebpl.terminal import Progress

CHANNELS = 3
LAST = 1 / 3
"""Share of the blocks, counted from the end, that learn where only the last do."""
BATCH = 64
"""Images of 224 x 224 that are predicted at once: about a gigabyte."""
WEAK, STRONG = 2, 2
"""Views of an image that are kept: it and its mirror image, and such as are hard to recognise."""
AT_ONCE = {"cpu": 1, "cuda": 64}
"""Images whose views are computed at once. On a CPU more are slower."""
PREDICTED = 4
"""Views of 224 x 224 that a CPU predicts at once, for the same reason."""
LEAST = 1e-3
"""Features of training are not below this: at zero, square roots have no gradient."""
MOST_REMEMBERED = 2**31
"""Bytes of views that are remembered from one training to the next."""


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
        views = BATCH if fastest_device() == "cuda" else PREDICTED // self.predicted_views
        self.batch = max(1, views * 224**2 // self.size**2)
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

    def for_prediction(self) -> FineTunedEncoder:
        """On a CPU one without batch normalisation."""
        if self.mean.device.type != "cpu" or self.options["architecture"] not in NETWORKS:
            return self
        made = copy.copy(self)
        made._modules = {**self._modules, "network": folded(self.network)}
        return made

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

    def fit(self, prepared: Tensor, square_root: bool = False) -> None:
        """The encoder's weights, and the principal components of its features of the training images."""
        self.fitting(prepared)(square_root)

    @torch.no_grad()
    def fitting(self, prepared: Tensor) -> Callable[[bool], None]:
        """The same, with features that are computed once."""
        self._load()
        features = self._all_encoded(prepared)
        return lambda square_root: self.components.fit(features, square_root)

    @torch.no_grad()
    def _all_encoded(self, prepared: Tensor) -> Tensor:
        """The network's features of any number of images."""
        with _exact(prepared.device):
            return torch.cat([self.encoded(self.scale(part)) for part in torch.split(prepared, self.batch)])

    @property
    def discards_components(self) -> bool:
        """Whether there are more principal components than it takes."""
        return self.components.discards_components

    def reconstruction_error(self, features: Tensor) -> Tensor | None:
        """The share of the squared length that is outside of the principal components; None where they are all."""
        return self.components.reconstruction_error(features)

    @torch.no_grad()
    def cross_validated_errors(self, prepared: Tensor) -> Tensor | None:
        """The same of each training image, by components that were fitted to others before the network learned."""
        if not self.discards_components:
            return None
        learned, first = self._all_encoded(prepared), copy.deepcopy(self)
        first._load()
        return self.components.cross_validated_errors(first._all_encoded(prepared), learned)

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


class Remembered:
    """Views by the digest of their image, of one encoder and one strength of colours at a time."""

    def __init__(self) -> None:
        self.of: Hashable = None
        self.views: dict[bytes, Tensor] = {}
        self.bytes = 0

    def only(self, of: Hashable) -> None:
        """Forget the views of others."""
        if of != self.of:
            self.of, self.views, self.bytes = of, {}, 0

    def add(self, digest: bytes, views: Tensor) -> None:
        """Remember the views of an image, as long as there is room."""
        if self.bytes + views.nbytes <= MOST_REMEMBERED:
            self.views[digest], self.bytes = views, self.bytes + views.nbytes


REMEMBERED = Remembered()


class FineTunedEnd(FineTunedEncoder):
    """Images (N, H, W, C), or what was kept of their views, in; principal components of the encoder's features out."""

    keeps_views = True
    predicted_views = WEAK

    @property
    def may_take_square_root(self) -> bool:
        """Whether the principal components may be those of square roots."""
        return self.components.may_take_square_root

    def notes(self) -> list[str]:
        """Whether they are."""
        return self.components.notes()

    def learned_blocks(self) -> list[nn.Module]:
        """The last block and what follows it."""
        return list(blocks(self.network))[-int(self.network.ending) :]  # type: ignore[arg-type]

    @torch.no_grad()
    def prepare_training(
        self, pixels: NDArray[np.uint8], settings: DataSettings, done: Callable[[int], None] = lambda _: None
    ) -> Tensor:
        """What goes into the last block for each view of each image, (N, views, channels, height, width).

        `done` is called with the number of further images whose views are there.
        """
        digests = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in pixels]
        REMEMBERED.only((self.options["digest"], self.size, settings.color_jitter))
        found = {digest: REMEMBERED.views[digest] for digest in digests if digest in REMEMBERED.views}
        done(sum(digest in found for digest in digests))
        device, home = torch.device(fastest_device()), self.mean.device
        missing = [place for place, digest in enumerate(digests) if digest not in found]
        if missing:
            self._load()
            frozen = folded(self.to(device).network)
        for start in range(0, len(missing), AT_ONCE[device.type]):
            places = missing[start : start + AT_ONCE[device.type]]
            images = self.scale(self.prepare(pixels[places]))
            strong = [
                self._strong(image, digests[place], settings) for image, place in zip(images, places, strict=True)
            ]
            views = torch.cat([images, images.flip(3), *torch.stack(strong, 1)]).to(device)
            inputs = self._normalised(views).contiguous(memory_format=torch.channels_last)
            kept = frozen.before_last(inputs).half().cpu()  # type: ignore[operator]
            for place, each in zip(places, kept.unflatten(0, (WEAK + STRONG, -1)).transpose(0, 1), strict=True):
                found[digests[place]] = each.clone()
                REMEMBERED.add(digests[place], found[digests[place]])
            done(len(places))
        self.to(home)
        return torch.stack([found[digest] for digest in digests]) if digests else torch.zeros(0, WEAK + STRONG, 1, 1, 1)

    def _strong(self, image: Tensor, digest: bytes, settings: DataSettings) -> Tensor:
        """Views of an image (C, H, W) that are hard to recognise, (views, C, H, W)."""
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return strongly_augment(image.expand(STRONG, -1, -1, -1), "flip", 0, generator, settings.color_jitter)

    def view(self, inputs: Tensor, strong: bool, generator: torch.Generator) -> Tensor:
        """A random view of each image: it or its mirror image, or one that is hard to recognise."""
        first, count = (WEAK, STRONG) if strong else (0, WEAK)
        chosen = torch.randint(first, first + count, (len(inputs),), generator=generator, device=inputs.device)
        return inputs[torch.arange(len(inputs), device=inputs.device), chosen].float()

    def scale(self, prepared: Tensor) -> Tensor:
        """Images in [-1, 1]; what was kept of views stays as it is."""
        return prepared if prepared.dtype == torch.float16 else super().scale(prepared)

    def encoded(self, images: Tensor) -> Tensor:
        """Features of images or of all views of them (N, views, ...), and of single views (N, ...)."""
        if images.shape[1] == CHANNELS and images.ndim == 4:
            normalised = self._normalised(images)
            both = (
                self.network(torch.cat([normalised, normalised.flip(3)]))
                .reshape(WEAK, -1, int(self.options["dimension"]))
                .mean(0)
            )
        elif images.ndim == 5:
            both = self._end(images[:, :WEAK].flatten(0, 1)).view(len(images), WEAK, -1).mean(1)
        else:
            both = self._end(images)
        features: Tensor = both.clamp(min=LEAST) if self.may_take_square_root else both
        return features

    def _end(self, kept: Tensor) -> Tensor:
        inputs = kept.float().contiguous(memory_format=torch.channels_last)
        features: Tensor = self.network.from_last(inputs)  # type: ignore[operator]
        return features


def build(options: Mapping[str, Any], _: tuple[int, ...]) -> FineTunedEncoder:
    """The encoder that the options describe, with weights still to be loaded."""
    encoder, architecture, size = options["encoder"], options["architecture"], options["size"]
    kinds = {"end": FineTunedEnd, "last": FineTunedEncoder, "all": FineTunedEncoder}
    if not is_network(architecture) or not SMALLEST <= size <= LARGEST or options["fine_tune"] not in kinds:
        raise ValueError(f"{encoder} is no encoder that can be fine-tuned: {architecture}, {size} x {size} pixels")
    made = kinds[options["fine_tune"]](options)
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


def precompute(images: ImageSet, settings: Settings, progress: Progress) -> None:
    """What an encoder computes once of all images, features or views, with a bar; nothing without an encoder."""
    encode_all(images, settings.model.frozen_encoder, progress)
    if settings.model.fine_tune != "end":
        return
    seen, total = 0, len(images.train)

    def done(count: int) -> None:
        nonlocal seen
        seen += count
        progress.advance(count, "computing views", {})
        progress.epoch(f"the views of {seen} of {total} training images are computed")

    progress.begin(total, 0)
    FineTunedEnd(options_for(settings.model)).prepare_training(images.train.pixels, settings.data, done)
