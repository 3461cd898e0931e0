"""The hybrid model: a feature extractor, a softmax classifier and, for methods with a density, a Gaussian energy head.

A backbone is one file of this package: it defines `build(options, shape)`, and its name is the file's.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ebpl.config import DataSettings, ModelSettings
from ebpl.errors import UsageError, did_you_mean


class Backbone(nn.Module):
    """A feature extractor. What it asks for, and what training keeps of each image, is its own to say."""

    dimension: int
    """Number of features."""
    takes_images = True
    """Whether its inputs are images, which can be shifted and flipped."""
    fixed = False
    """Whether it has nothing to learn."""
    starts_from_probe = False
    """Whether both heads start from logistic regression on its features, which are of use before training."""
    samples_features = False
    """Whether chains are sampled among its features, whose density it does not learn from, not among its inputs."""
    keeps_views = False
    """Whether training keeps a few views of each image, changed beforehand, of which `view` takes one."""
    predicted_views = 1
    """Views of an image that a prediction takes; an update takes one."""
    batch = 512
    """Images that are predicted at once."""

    @property
    def may_take_square_root(self) -> bool:
        """Whether `fit` can take the square roots of features."""
        return False

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        """What is kept of images (N, H, W, C), here as bytes (N, C, H, W)."""
        return torch.from_numpy(np.require(pixels, requirements=["C", "W"])).permute(0, 3, 1, 2)

    def prepare_training(self, pixels: NDArray[np.uint8], settings: DataSettings) -> Tensor:
        """What is kept of images to train on, here the same."""
        return self.prepare(pixels)

    def view(self, inputs: Tensor, strong: bool, generator: torch.Generator) -> Tensor:
        """Of each image one of the views that were kept."""
        raise NotImplementedError

    def for_prediction(self) -> Backbone:
        """This backbone, or one that computes the same in less time until this one learns again."""
        return self

    def scale(self, prepared: Tensor) -> Tensor:
        """The network's input from what was kept, here in [-1, 1]."""
        return prepared.float() / 127.5 - 1

    def points(self, prepared: Tensor) -> Tensor:
        """Where images are in the space that chains are sampled in, here that of the network's inputs."""
        return self.scale(prepared)

    @property
    def discards_components(self) -> bool:
        """Whether its features are some principal components of others, so that there are reconstruction errors."""
        return False

    def reconstruction_error(self, features: Tensor) -> Tensor | None:
        """How much of each image its features leave out, from 0 to 1; None where that is not known."""
        return None

    def cross_validated_errors(self, prepared: Tensor) -> Tensor | None:
        """The same of each training image, by components that were fitted to others."""
        return None

    def fit(self, prepared: Tensor, square_root: bool = False) -> None:
        """Before training: take from the training images what the network needs to know of them, here nothing."""

    def fitting(self, prepared: Tensor) -> Callable[[bool], None]:
        """What fits it to these images, or to square roots of their features; what both need is computed once."""
        return lambda square_root: self.fit(prepared, square_root)

    def notes(self) -> list[str]:
        """What a user is told of how it was fitted."""
        return []

    def initialise(self, generator: torch.Generator) -> None:
        """Fresh parameters, from this generator only."""
        raise NotImplementedError


Builder = Callable[[Mapping[str, Any], tuple[int, ...]], Backbone]
_registered: dict[str, Builder] = {}
_NOT_BACKBONES = {"outliers", "predictions", "weights"}


def register_backbone(name: str, build: Builder) -> None:
    """Make a backbone known that is not a file of this package."""
    _registered[name] = build


def backbones() -> list[str]:
    """The names of all backbones."""
    files = [found.name for found in pkgutil.iter_modules(__path__)]
    return [name for name in files if name not in _NOT_BACKBONES] + list(_registered)


def build_backbone(name: str, options: Mapping[str, Any], shape: tuple[int, ...]) -> Backbone:
    """A backbone by its name, for images of this shape (C, H, W)."""
    if name in _registered:
        return _registered[name](options, shape)
    if name not in backbones():
        raise UsageError(f"There is no backbone {name!r}. {did_you_mean(name, backbones())}")
    made: Backbone = importlib.import_module(f"{__name__}.{name}").build(options, shape)
    return made


class GaussianHead(nn.Module):
    """Class energies E_c = 1/2 (f - mu_c)' P (f - mu_c) with P identity, diagonal or full (P = L L').

    Class c has the weight pi_c in the density, up to a factor that all share; `log_mix` is its logarithm.
    """

    log_mix: Tensor

    def __init__(self, dimension: int, classes: int, precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.register_buffer("log_mix", torch.zeros(classes), persistent=False)
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
        """E = -log sum_c pi_c exp(-E_c) for each image, up to a constant minus the log-density, (N)."""
        return -torch.logsumexp(self.log_mix - self.class_energies(features), 1)

    @torch.no_grad()
    def set_to(self, means: Tensor, variances: Tensor) -> None:
        """These class means, and these variances of the features as far as the precision can hold them."""
        self.means.copy_(means)
        if self.precision == "diagonal":
            self.log_precision.copy_(-variances.log())
        elif self.precision == "full":
            self.factor.copy_(torch.diag(variances.rsqrt()))

    @torch.no_grad()
    def diagonal(self) -> Tensor | None:
        """The diagonal of P, or None if P is more than that."""
        if self.precision == "full":
            return None
        return torch.exp(self.log_precision) if self.precision == "diagonal" else torch.ones_like(self.means[0])

    @torch.no_grad()
    def energy_gradient(self) -> Callable[[Tensor], Tensor]:
        """dE/df as a function of the features, for the parameters as they are now: P f - sum_c p(c | f) P mu_c."""
        weight, bias = self.natural_weight(), self.natural_bias() + self.log_mix

        def gradient(features: Tensor) -> Tensor:
            posterior = torch.softmax(torch.addmm(bias, features, weight.T), 1)
            return torch.addmm(self._times_precision(features), posterior, weight, alpha=-1)

        return torch.no_grad()(gradient)

    def posterior(self, features: Tensor) -> Tensor:
        """p(c | x) by Bayes' rule from the Gaussians, (N, C)."""
        return torch.softmax(self.log_mix - self.class_energies(features), 1)

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


class ScoreEnergy:
    """The energy of a classifier's scores, E = -log sum_c exp(score_c) (JEM, Grathwohl et al. 2020)."""

    def __init__(self, classifier: nn.Linear, log_mix: Tensor) -> None:
        self.classifier, self.log_mix = classifier, log_mix

    @torch.no_grad()
    def energy_gradient(self) -> Callable[[Tensor], Tensor]:
        """dE/df as a function of the features, for the weights as they are now: -sum_c p(c | f) w_c."""
        weight, bias = self.classifier.weight.detach(), self.classifier.bias + self.log_mix
        return torch.no_grad()(lambda features: -torch.softmax(torch.addmm(bias, features, weight.T), 1) @ weight)


@dataclass(frozen=True)
class Architecture:
    """All that is needed to build a model; stored beside the weights."""

    backbone: str
    image_shape: tuple[int, ...]
    """Channels, height, width."""
    classes: int
    precision_matrix: str | None
    """Shape of the Gaussian head's precision matrix; None: a classifier without that head."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the backbone, such as depth and width."""

    @classmethod
    def of(cls, settings: ModelSettings, image_shape: tuple[int, ...], classes: int, density: bool) -> Architecture:
        """What these settings ask for; a `density` of its own needs a Gaussian head."""
        precision = settings.precision_matrix if density else None
        if settings.encoder and settings.fine_tune != "none":
            from ebpl.models.fine_tuned_encoder import options_for

            return cls("fine_tuned_encoder", image_shape, classes, precision, options_for(settings))
        if settings.encoder:
            from ebpl.models.encoder import options_of

            chosen = options_of(settings.encoder, settings.components) | settings.feature_options
            return cls("encoder", image_shape, classes, precision, chosen)
        options: dict[str, Any] = {"depth": settings.depth, "width": settings.width}
        if settings.backbone == "wide_resnet":
            from ebpl.models.wide_resnet import stages_for

            options["stages"] = settings.stages or stages_for(*image_shape[1:])
            options |= {} if settings.norm == "none" else {"norm": settings.norm}
        elif settings.backbone == "rows":
            options = {"components": settings.components, **settings.feature_options}
        return cls(settings.backbone, image_shape, classes, precision, options)

    def build(self) -> HybridModel:
        """The model, with parameters still to be initialised or loaded."""
        return HybridModel(self)


class HybridModel(nn.Module):
    """`forward` gives class scores and energies from one pass through the network.

    The classifier learns the class mix of its labels. For images of another mix, `log_mix` is added to its scores: the
    logarithm of each class's share there, divided by that among the labels.
    """

    log_mix: Tensor

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.features = build_backbone(architecture.backbone, architecture.options, architecture.image_shape)
        dimension, precision = self.features.dimension, architecture.precision_matrix
        self.classifier = nn.Linear(dimension, architecture.classes)
        self.gaussian = GaussianHead(dimension, architecture.classes, precision) if precision else None
        self.register_buffer("log_mix", torch.zeros(architecture.classes), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores (N, C), whose softmax is p(c | x), and energies (N).

        Without the Gaussian head the energy is the free energy of the classifier's scores.
        """
        return self.heads(self.features(images))

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads on given features, in float32 whatever the network computes in."""
        with torch.autocast(features.device.type, enabled=False):
            scores = self.classifier(features) + self.log_mix
            if self.gaussian is None:
                return scores, -torch.logsumexp(scores, 1)
            return scores, self.gaussian.energy(features)

    @property
    def energy_head(self) -> GaussianHead | ScoreEnergy:
        """What makes an energy of features."""
        return self.gaussian or ScoreEnergy(self.classifier, self.log_mix)

    def coupling(self) -> Tensor:
        """The coupling penalty between both heads (zero without a Gaussian head)."""
        if self.gaussian is None:
            return self.classifier.bias.new_zeros(())
        return self.gaussian.coupling(self.classifier.weight, self.classifier.bias)

    def set_mix(self, log_ratio: Sequence[float] | Tensor) -> None:
        """Answer for another class mix than that of the labels, from the logarithms of the ratios of its shares."""
        for part in (self, self.gaussian):
            if part is not None:
                part.log_mix.copy_(torch.as_tensor(log_ratio))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> HybridModel:
        """Fresh parameters, from this generator only; the heads start in agreement, so the coupling starts at zero."""
        self.features.initialise(generator)
        if self.gaussian is None:
            bound = 1 / math.sqrt(self.features.dimension)
            self.classifier.weight.uniform_(-bound, bound, generator=generator)
            self.classifier.bias.zero_()
        else:
            self.gaussian.initialise(generator)
            self.classifier.weight.copy_(self.gaussian.natural_weight())
            self.classifier.bias.copy_(self.gaussian.natural_bias())
        return self

    def parameter_count(self) -> int:
        """How many numbers the network and its heads have."""
        return sum(parameter.numel() for parameter in self.parameters())
