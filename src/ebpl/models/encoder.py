"""The features of a pretrained encoder as a backbone: what is learned are the two heads on top of them.

The encoder itself is frozen and not part of the model's weights: they name it, with a digest by which another one is
told apart. Its features keep their own geometry. They are brought to the same length, centred, brought to the same
length again, and projected to their principal components, which all keep their share of the variance: whitening would
raise the noise of the small ones. Before all that, training may take their square root, which evens out a few features
that are large in all images.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ebpl.encoders import Encoder, fastest_device, load_encoder
from ebpl.errors import RunError, UsageError
from ebpl.models import Backbone

ERROR_FOLDS = 5
"""Of the cross-validation of reconstruction errors."""
CHOICE = "square_root"
"""The option of models whose features may have been replaced by their square roots."""


class PrincipalComponents(Backbone):
    """Features in, their principal components out; which features there are is for the classes below to say."""

    takes_images = False
    fixed = starts_from_probe = True
    center: Tensor
    directions: Tensor
    power: Tensor | None
    """Of the features, 1 or 1/2: it is chosen before training. None where there is no choice, and it is 1."""

    def __init__(self, dimension: int, components: int, choice: bool = False) -> None:
        super().__init__()
        self.dimension = min(components, dimension)
        self.register_buffer("power", torch.ones(()) if choice else None)
        self.register_buffer("center", torch.zeros(dimension))
        self.register_buffer("directions", torch.zeros(dimension, self.dimension))

    @property
    def may_take_square_root(self) -> bool:
        """Whether there is a choice."""
        return self.power is not None

    @property
    def takes_square_root(self) -> bool:
        """Whether it takes the square root of features."""
        return self.power is not None and bool(self.power < 1)

    def scale(self, prepared: Tensor) -> Tensor:
        """Principal components; over all images and components their mean square is one."""
        return self._centered(prepared) @ self.directions

    @property
    def discards_components(self) -> bool:
        """Whether there are more than it takes."""
        return self.dimension < len(self.center)

    def reconstruction_error(self, features: Tensor) -> Tensor | None:
        """The share of the squared length that is outside of these principal components; None where they are all."""
        if not self.discards_components:
            return None
        lengths = self.directions.double().norm(dim=0).clamp(min=1e-12)
        inside: Tensor = (features.double() / lengths).square().sum(1)
        return (1 - inside).clamp(min=0)

    def _of_one_length(self, prepared: Tensor) -> Tensor:
        rows = prepared.float()
        if self.power is not None:  # without a branch on its value, which a GPU would have to be asked for
            rows = torch.where(self.power < 1, rows.sign() * rows.abs().sqrt(), rows)
        return F.normalize(rows)

    def _centered(self, prepared: Tensor) -> Tensor:
        return F.normalize(self._of_one_length(prepared) - self.center)

    @torch.no_grad()
    def fit(self, prepared: Tensor, square_root: bool = False) -> None:
        """Centre and principal components of the training images, labelled or not, or of their square roots."""
        if self.power is not None:
            self.power.fill_(0.5 if square_root else 1.0)
        self.center.copy_(self._of_one_length(prepared).mean(0))
        rows = self._centered(prepared).double().cpu()
        moments = rows.T @ rows / len(rows)
        variances, vectors = (part.flip(-1)[..., : self.dimension] for part in torch.linalg.eigh(moments))
        signs = torch.sign(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)))  # a vector has no sign of its own
        factor = (self.dimension / variances.clamp(min=0).sum().clamp(min=1e-12)).sqrt()
        self.directions.copy_(vectors * signs * factor)

    @torch.no_grad()
    def cross_validated_errors(self, prepared: Tensor, learned: Tensor | None = None) -> Tensor | None:
        """The reconstruction error of each of these images by the principal components of others.

        `learned` are their features after a network has learned, if it has; the components stay those of before.
        """
        if not self.discards_components:
            return None
        learned = prepared if learned is None else learned
        found = torch.ones(len(prepared), dtype=torch.float64, device=prepared.device)
        order, others = np.random.default_rng(0).permutation(len(prepared)), copy.deepcopy(self)
        for fold in range(ERROR_FOLDS):
            inside = order[fold::ERROR_FOLDS]
            others.fit(prepared[np.setdiff1d(order, inside)], self.takes_square_root)
            errors = others.reconstruction_error(others.scale(learned[inside]))
            assert errors is not None
            found[inside] = errors
        return found

    def notes(self) -> list[str]:
        """Whether the features are replaced by their square roots."""
        return ["the square roots of the features are learned from"] if self.takes_square_root else []

    def forward(self, rows: Tensor) -> Tensor:
        """The rows themselves: both heads stand on them."""
        return rows.float()

    def initialise(self, generator: torch.Generator) -> None:
        """Nothing is random here."""


class EncodedImages(PrincipalComponents):
    """Images (N, H, W, C) in, principal components of an encoder's features (N, components) out."""

    def __init__(self, encoder: str, digest: str, dimension: int, components: int, choice: bool = False) -> None:
        super().__init__(dimension, components, choice)
        self.encoder, self.digest = encoder, digest

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        """The encoder's features, from the cache where they are there."""
        loaded = self.load(fastest_device())
        return torch.from_numpy(loaded.encode(pixels))

    def load(self, device: str = "cpu") -> Encoder:
        """The encoder; an error where it is not the one that the model was trained with."""
        return same_encoder(self.encoder, self.digest, device)


def same_encoder(name: str, digest: str, device: str = "cpu") -> Encoder:
    """The encoder of this name; an error where it is another one than that of the digest."""
    loaded = load_encoder(name, device)
    if loaded.digest != digest:
        raise RunError(
            f"The model was trained on features of another encoder than {name} is here: its weights, input size or "
            "normalisation have changed. Restore them, or train anew."
        )
    return loaded


class Preparation(nn.Module):
    """What `EncodedImages.prepare` does, as a network that can be written into a file with the encoder in it.

    Both views go through the network as one batch, so that the file holds it once.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, height: int, width: int) -> None:
        super().__init__()
        try:
            self.network = encoder.network()
        except UsageError as error:
            raise UsageError(
                f"{error} Predict with `ebpl predict`, or describe the same weights as .safetensors or .pth with their "
                "architecture, and train again."
            ) from error
        self.dimension = encoder.dimension
        self.resize = Resizing(height, width, encoder.size)
        for name, values in (("mean", encoder.info.mean), ("std", encoder.info.std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        """Images (N, H, W, C) as uint8 in; features (N, D) out, rounded to 16 bits as those in the cache are."""
        images = (self.resize(pixels) / 255 - self.mean) / self.std
        views: Tensor = self.network(torch.cat([images, images.flip(3)]))
        return (views.reshape(2, -1, self.dimension).sum(0) / 2).half().float()


class Resizing(nn.Module):
    """Images of one size to squares of another, bilinear with antialias.

    It is two matrix products, since ONNX had no such resizing before opset 18.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, height: int, width: int, size: int) -> None:
        super().__init__()
        self.needed = (height, width) != (size, size)
        self.register_buffer("rows", resizing_matrix(height, size))
        self.register_buffer("columns", resizing_matrix(width, size).T.contiguous())

    def forward(self, pixels: Tensor) -> Tensor:
        """Images (N, H, W, C) as uint8 in; (N, C, size, size) out, still from 0 to 255."""
        images = pixels.permute(0, 3, 1, 2).float()
        return self.rows @ images @ self.columns if self.needed else images


def resizing_matrix(size: int, wanted: int) -> Tensor:
    """What a column of `size` pixels is multiplied by to have the wanted number: bilinear with antialias."""
    unit = torch.eye(size)[None, None]
    return F.interpolate(unit, (wanted, size), mode="bilinear", antialias=True)[0, 0]


def build(options: Mapping[str, Any], _: tuple[int, ...]) -> EncodedImages:
    """The features of the encoder that the options name."""
    known = (options["encoder"], options["digest"], options["dimension"], options["components"])
    return EncodedImages(*known, bool(options.get(CHOICE)))


def options_of(encoder: str, components: int) -> dict[str, Any]:
    """The options of a new model on the features of this encoder."""
    loaded = load_encoder(encoder)
    dimension = loaded.dimension
    return {
        "encoder": loaded.info.name,
        "digest": loaded.digest,
        "dimension": dimension,
        "components": min(components, dimension),
    }
