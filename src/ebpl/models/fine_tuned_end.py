"""A pretrained encoder of which the end learns: its last block and what follows, which is quick on a CPU too.

Everything before them stays as it is. So what goes into the last block is computed once for a few views of every
training image, and kept in 16 bits: the image, its mirror image and views that are hard to recognise. Training begins
there. Features of an image are the mean over it and its mirror image, as those of an encoder that stays as it is.

The views of an image depend on nothing but the image, so several seeds that are trained by one process share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ebpl.config import DataSettings, Settings
from ebpl.data.dataset import ImageSet
from ebpl.data.transforms import strongly_augment
from ebpl.encoders import encode_all, fastest_device
from ebpl.models.fine_tuned_encoder import CHANNELS, FineTunedEncoder, blocks, checked, options_for
from ebpl.terminal import Progress

WEAK, STRONG = 2, 2
"""Views of an image that are kept: it and its mirror image, and such as are hard to recognise."""
AT_ONCE = {"cpu": 1, "cuda": 64}
"""Images whose views are computed at once. On a CPU more are slower."""
PREDICTED = 4
"""Images of 224 x 224 that a CPU predicts at once, for the same reason."""
LEAST = 1e-3
"""Features of training are not below this: at zero, square roots have no gradient."""
MOST_REMEMBERED = 2**31
"""Bytes of views that are remembered from one training to the next."""


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

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if fastest_device() == "cpu":
            self.batch = max(1, PREDICTED * 224**2 // self.size**2)

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
            self.to(device)
        for start in range(0, len(missing), AT_ONCE[device.type]):
            places = missing[start : start + AT_ONCE[device.type]]
            images = self.scale(self.prepare(pixels[places]))
            strong = [
                self._strong(image, digests[place], settings) for image, place in zip(images, places, strict=True)
            ]
            views = torch.cat([images, images.flip(3), *torch.stack(strong, 1)]).to(device)
            inputs = self._normalised(views).contiguous(memory_format=torch.channels_last)
            kept = self.network.before_last(inputs).half().cpu()  # type: ignore[operator]
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
    return checked(FineTunedEnd, options, ("end",))


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
