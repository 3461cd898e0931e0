"""Pretrained, frozen image encoders: images become feature vectors, which are cached by the images' content.

A feature vector is the mean over an image and its mirror image, rounded to 16 bits whether it is computed or comes from
the cache. Computing it in another batch, with another number of threads or on another device adds in another order:
most numbers stay the same, and some change in the last of their 11 binary digits.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ebpl.encoders.registry import DEFAULT as DEFAULT
from ebpl.encoders.registry import ENCODERS as ENCODERS
from ebpl.encoders.registry import EncoderInfo as EncoderInfo
from ebpl.encoders.registry import described as described
from ebpl.encoders.registry import described_encoders as described_encoders
from ebpl.encoders.registry import find_encoder as find_encoder
from ebpl.errors import DataError, UsageError, is_memory

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from ebpl.data.dataset import ImageSet
    from ebpl.encoders.weights import Compute
    from ebpl.terminal import Progress

VIEWS = "mean of image and mirror image, bilinear with antialias"
"""Part of the digest: change it with what is done to images, so that older features are not used."""
BATCH = {"cpu": 4, "cuda": 128}
"""Images of 224 x 224 that are computed at once; fewer of larger ones. On a CPU more are slower."""
TIMED = 8
"""Images that are encoded to measure how long it takes."""
LOADED = 4
"""Encoders that are kept in memory."""


def _ignore(count: int) -> None: ...


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


class Encoder:
    """An encoder with its weights; `load_encoder` makes one."""

    def __init__(
        self, info: EncoderInfo, compute: Compute, digest: str, device: torch.device, network: nn.Module | None = None
    ) -> None:
        self.info = info
        self.digest = digest
        """Of weights, input size, normalisation and views: features of the same digest can be compared."""
        self._compute, self._device, self._network = compute, device, network
        self._told = False

    @property
    def size(self) -> int:
        """Height and width of its input in pixels."""
        return self.info.size

    @property
    def dimension(self) -> int:
        """Number of features."""
        assert self.info.dimension is not None  # a loaded encoder knows it
        return self.info.dimension

    def network(self) -> nn.Module:
        """A copy of the network from normalised images (N, 3, size, size) to features (N, D), to export or to train."""
        if self._network is None:
            raise UsageError(f"{self.info.name} is an ONNX model, which has no network to train or to export.")
        return copy.deepcopy(self._network).to(self._device)

    def encode(
        self,
        pixels: NDArray[np.uint8],
        done: Callable[[int], None] = _ignore,
        device: torch.device | str | None = None,
        *,
        say: Callable[[str], None] = _warn,
    ) -> NDArray[np.float32]:
        """Features (N, D) of images (N, H, W, C), gray or coloured, of any size.

        `done` is called with numbers of images. `device` is where to compute, if not where the encoder was loaded.
        `say` is told, once, when the cache cannot be used. Images that are the same are computed once.
        """
        import numpy as np
        import torch

        from ebpl.encoders.cache import FeatureCache, image_digest

        check_pixels(pixels)
        places: dict[bytes, list[int]] = {}
        for index, image in enumerate(pixels):
            places.setdefault(image_digest(image), []).append(index)
        features = np.empty((len(pixels), self.dimension), np.float32)

        def fill(image: bytes, vector: NDArray[np.float16]) -> None:
            features[places[image]] = vector
            done(len(places[image]))

        with FeatureCache(self.digest, self.dimension, functools.partial(self._tell, say)) as cache:
            missing = dict.fromkeys(places)
            for image, vector in cache.read(places):
                fill(image, vector)
                del missing[image]
            with self._on(self._device if device is None else torch.device(device)):
                images, batch = list(missing), self._batch(pixels)
                for some in (images[start : start + batch] for start in range(0, len(images), batch)):
                    vectors = self._features(pixels[[places[image][0] for image in some]])
                    cache.write(some, vectors)
                    for image, vector in zip(some, vectors, strict=True):
                        fill(image, vector)
        return features

    def seconds_per_image(self, pixels: NDArray[np.uint8]) -> float:
        """Seconds to encode an image that is not in the cache, by a few of these."""
        batch = self._batch(pixels)
        some = pixels[: max(TIMED, batch)]
        self._features(some[:batch])  # the first batch chooses kernels
        begun = time.perf_counter()
        for start in range(0, len(some), batch):
            self._features(some[start : start + batch])
        return (time.perf_counter() - begun) / len(some)

    def _tell(self, say: Callable[[str], None], text: str) -> None:
        if not self._told:
            self._told = True
            say(text)

    @contextlib.contextmanager
    def _on(self, device: torch.device) -> Iterator[None]:
        """The encoder on a device, and back again."""
        home = self._device
        self._move(device)
        try:
            yield
        finally:
            self._move(home)

    def _move(self, device: torch.device) -> None:
        from torch import nn

        if device != self._device and isinstance(self._compute, nn.Module):
            self._compute.to(device)
        self._device = device

    def _batch(self, pixels: NDArray[np.uint8]) -> int:
        """So many images at once that memory stays the same for any size."""
        largest: int = max(self.size**2, pixels.shape[1] * pixels.shape[2])
        return max(1, BATCH.get(self._device.type, BATCH["cpu"]) * 224**2 // largest)

    def _features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float16]:
        """Features of a batch."""
        import numpy as np
        import torch
        from torch.nn import functional as F

        exact: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._device.type == "cuda":  # 10 bits of TensorFloat-32 are fewer than are kept
            exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
        with torch.inference_mode(), exact:
            images = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2).float() / 255
            if images.shape[2:] != (self.size, self.size):
                images = F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
            mean, std = (images.new_tensor(values)[:, None, None] for values in (self.info.mean, self.info.std))
            images = ((images - mean) / std).contiguous(memory_format=torch.channels_last)
            both = (self._compute(images) + self._compute(images.flip(3))) / 2
            vectors: NDArray[np.float16] = both.half().cpu().numpy()
        if not np.isfinite(vectors).all():
            raise DataError(
                f"{self.info.name} gives features that are not finite, or above 65504. Its weights are damaged, or "
                "mean and std are not those that it was trained with."
            )
        return vectors


def encode_all(images: ImageSet, name: str | None, progress: Progress) -> None:
    """Bring the features of all images into the cache, with a bar; nothing is done without an encoder."""
    if not name:
        return
    encoder = load_encoder(name, fastest_device())
    parts = [part.pixels for part in (images.train, images.validation, images.test) if part is not None]
    total, seen = sum(map(len, parts)), 0

    def done(count: int) -> None:
        nonlocal seen
        seen += count
        progress.advance(count, "encoding images", {})
        progress.epoch(f"{seen} of {total} images are encoded by {encoder.info.name}")

    progress.begin(total, 0)
    for pixels in parts:
        encoder.encode(pixels, done, say=progress.say)


def check_pixels(pixels: NDArray[np.uint8]) -> None:
    """An error where an encoder cannot take these images."""
    if pixels.dtype != "uint8" or pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or 0 in pixels.shape[1:]:
        raise DataError(
            f"An encoder takes images as bytes (N, height, width, 1 or 3), not {pixels.dtype} of {pixels.shape}."
        )


def fastest_device() -> str:
    """Where images are encoded: on a GPU if there is one, whatever the rest computes on."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def load_encoder(name: str = DEFAULT, device: torch.device | str = "cpu") -> Encoder:
    """An encoder with its weights, by what `find_encoder` takes; loaded once while its file stays the same."""
    info = find_encoder(name)
    path = info.path
    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path else None
    return _loaded(info, str(device), stamp)


@functools.lru_cache(maxsize=LOADED)
def _loaded(info: EncoderInfo, device: str, stamp: tuple[int, int] | None) -> Encoder:  # noqa: ARG001
    """The encoder as it is on this device; `stamp` is of its file, so that another file is loaded anew."""
    import torch
    from torch import nn

    from ebpl.encoders.weights import NETWORKS, first_line, folded, load_weights

    compute, weights = load_weights(info)
    network = compute if isinstance(compute, nn.Module) else None
    if network is not None and info.architecture in NETWORKS:
        compute = folded(network)
    if isinstance(compute, nn.Module):
        compute.to(torch.device(device), memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.inference_mode():
            shape = tuple(compute(torch.zeros(2, 3, info.size, info.size, device=device)).shape)
    except Exception as error:  # a network that is not ours can refuse its input in any way
        if is_memory(error):
            raise
        raise UsageError(
            f"{info.name} cannot take images of {info.size} x {info.size}: {first_line(error)}."
        ) from error
    if len(shape) != 2 or shape[0] != 2:
        raise UsageError(f"{info.name} gives {shape} for 2 images, but must give features (N, D).")
    facts = (weights, info.architecture, info.size, info.mean, info.std, VIEWS)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return Encoder(replace(info, dimension=shape[1]), compute, digest, torch.device(device), network)
