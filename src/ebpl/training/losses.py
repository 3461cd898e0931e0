"""Loss terms. A method is a list of them; the train step makes one forward pass for all.

A term says which images it wants to see (its views), and turns what the network says of them into a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ebpl.config import Settings
from ebpl.models import HybridModel
from ebpl.training.training_set import ALL, LABELED, UNLABELED

if TYPE_CHECKING:
    from ebpl.training.train_step import TrainStep

ALIGNMENT_DECAY = 0.999
"""Of the moving average of predictions in distribution alignment."""
COLDEST = 1e-3
"""A temperature that falls to 0 ends here: such targets are the predicted class."""


@dataclass
class Views:
    """Inputs of the network, one batch after the other, and what a term wants to remember of them."""

    inputs: list[Tensor] = field(default_factory=list)
    targets: Tensor | None = None
    log_mix: Tensor | None = None
    """What the class mix adds to the scores of these images and must not, (N, C)."""
    more: dict[str, Tensor] = field(default_factory=dict)
    """Whatever else the loss needs to know, such as a weight that changes in the course of training."""


@dataclass(frozen=True)
class Outputs:
    """What the network says of one batch: class scores (N, C) and energies (N)."""

    scores: Tensor
    energies: Tensor


@dataclass(frozen=True)
class Loss:
    """A term's weighted contribution to the loss, and the values that are logged."""

    value: Tensor
    logs: dict[str, Tensor] = field(default_factory=dict)


class LossTerm:
    """A part of the loss. Subclasses say what they log, which stream they draw from, and what they compute."""

    logs: ClassVar[tuple[str, ...]] = ()
    """Columns of metrics.csv."""
    stream: ClassVar[str | None] = None
    """Which images it draws: LABELED, ALL or UNLABELED."""
    density: ClassVar[bool] = False
    """Whether it learns a density, which needs a sampler."""
    gaussian: ClassVar[bool] = False
    """Whether it needs the Gaussian head; without one, energies are those of the classifier's scores."""
    current_teacher: ClassVar[bool] = False
    """Whether `teacher_scores` are those of the current weights, not of the averaged ones."""
    ratio: int = 0
    """Unlabelled images that it draws for each labelled one; 0: `consistency.batch_size` of them."""

    def memory(self, classes: int) -> dict[str, Tensor]:
        """What it keeps from update to update in `step.memory`, as it is at the start of a run.

        It is changed in place, is the same in every process, and is part of every checkpoint.
        """
        return {}

    def views(self, step: TrainStep) -> Views:
        """The images to be passed through the network."""
        return Views()

    def finish(self, step: TrainStep, views: Views) -> Views:
        """What is done to the views once those of all terms are gathered."""
        return views

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        """The loss of this batch, from one `Outputs` for each of the views' inputs."""
        raise NotImplementedError


class CrossEntropy(LossTerm):
    """Cross-entropy of labelled and pseudo-labelled images, some of them mixed with another (mixup).

    Images with a true label have the class mix of the labels, those with a pseudo-label that of the unlabelled images.
    """

    logs = ("cross_entropy",)
    stream = LABELED

    def __init__(self, mixup_probability: float = 0.0, label_smoothing: float = 0.0) -> None:
        self.mixup_probability, self.label_smoothing = mixup_probability, label_smoothing

    def views(self, step: TrainStep) -> Views:
        index = step.positions[LABELED]
        images, targets = step.weak(step.training_set.take(index)), step.training_set.targets[index]
        log_mix = (index < step.training_set.labeled)[:, None] * step.state.model.log_mix
        if self.mixup_probability:  # the batch is in random order: its mirror image is another one
            count = (len(images), *[1] * (images.ndim - 1))
            mixed = step.random(*count) < self.mixup_probability
            share = mixed * step.random(*count)
            images = images + share / 2 * (images.flip(0) - images)
            targets = targets + share.flatten(1) / 2 * (targets.flip(0) - targets)
            log_mix = log_mix + share.flatten(1) / 2 * (log_mix.flip(0) - log_mix)
        return Views([images], targets, log_mix)

    def finish(self, step: TrainStep, views: Views) -> Views:
        # after all other draws of the step: the order of random numbers is part of what a seed means
        return replace(views, inputs=[step.noisy(views.inputs[0])])

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        assert views.targets is not None
        scores = outputs[0].scores if views.log_mix is None else outputs[0].scores - views.log_mix
        value = F.cross_entropy(scores, views.targets, label_smoothing=self.label_smoothing)
        return Loss(value, {"cross_entropy": value})


class WeightDecay(LossTerm):
    """Half of this weight times the squared weights of the classifier, and of another those of the network."""

    def __init__(self, weight: float, network: float = 0.0) -> None:
        self.weight, self.network = weight, network

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        value = self.weight / 2 * model.classifier.weight.square().sum()
        if self.network:  # biases are vectors
            weights = [weight for weight in model.features.parameters() if weight.requires_grad and weight.ndim > 1]
            value = value + self.network / 2 * torch.stack([weight.square().sum() for weight in weights]).sum()
        return Loss(value, {})


class Density(LossTerm):
    """Negative log-likelihood of the energy model: its gradient is that of E(images) - E(samples).

    Samples are drawn from the model and held fixed. The penalty keeps energies near a centre.
    """

    logs = ("energy_images", "energy_samples", "energy_gap")
    stream = ALL
    density = True
    gaussian = True

    def __init__(
        self,
        weight: float = 1.0,
        penalty: float = 0.0,
        center: float = 0.0,
        augmented: bool = False,
        clamped: bool = False,
    ) -> None:
        self.weight, self.penalty, self.center = weight, penalty, center
        self.augmented, self.clamped = augmented, clamped

    def views(self, step: TrainStep) -> Views:
        samples = step.sample()
        images = step.training_set.take(step.positions[ALL])
        images = step.beside_samples(step.weak(images) if self.augmented else images)
        # the noise takes black and white pixels to where no clamped sample can be
        return Views([images.clamp(-1, 1) if self.clamped else images, samples])

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        images, samples = (each.energies for each in outputs)
        gap = images.mean() - samples.mean()
        value = self.weight * gap
        if self.penalty:
            away = [(energies - self.center).square().mean() for energies in (images, samples)]
            value = value + self.penalty * (away[0] + away[1])
        return Loss(value, {"energy_images": images.mean(), "energy_samples": samples.mean(), "energy_gap": gap})


class Coupling(LossTerm):
    """The paper's coupling of both heads: the classifier's weights are those of the Gaussians' posterior."""

    logs = ("coupling",)
    gaussian = True

    def __init__(self, weight: float = 0.001) -> None:
        self.weight = weight

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        value = model.coupling()
        return Loss(self.weight * value, {"coupling": value})


class Consistency(LossTerm):
    """Strong views of unlabelled images are taught what the teacher predicts for weak views.

    Predictions below the confidence threshold are masked. A temperature of 0 teaches the predicted class. Both may
    change in a line in the course of the initial training. With distribution alignment (ReMixMatch, Berthelot et al.
    2020) the mean prediction, a moving average in the memory, becomes the class mix of the unlabelled images.
    """

    logs: ClassVar[tuple[str, ...]] = ("consistency", "mask_rate")
    stream = UNLABELED

    def __init__(
        self,
        weight: float = 1.0,
        threshold: float = 0.95,
        temperature: float = 0.0,
        final_threshold: float | None = None,
        final_temperature: float | None = None,
        aligned: bool = False,
    ) -> None:
        self.weight, self.threshold, self.temperature = weight, threshold, temperature
        self.final_threshold, self.final_temperature, self.aligned = final_threshold, final_temperature, aligned

    def memory(self, classes: int) -> dict[str, Tensor]:
        return {"mean_prediction": torch.full((classes,), 1 / classes)} if self.aligned else {}

    def views(self, step: TrainStep) -> Views:
        with torch.no_grad():
            images = step.training_set.take(step.positions[UNLABELED])
            scores = step.teacher_scores(step.weak(images))
            return Views([step.noisy(step.strong(images))], self.targets(step, scores))

    def targets(self, step: TrainStep, scores: Tensor) -> Tensor:
        """What strong views are taught, (N, C), from the teacher's scores; a row sums up to the weight of its image."""
        scores = self._align(step, scores) if self.aligned else scores
        threshold: float | Tensor = self.threshold
        if self.final_threshold is not None:
            threshold = self.threshold + step.fraction * (self.final_threshold - self.threshold)
        confident = scores.softmax(1).amax(1, keepdim=True) >= threshold
        if self.final_temperature is not None:
            temperature = self.temperature + step.fraction * (self.final_temperature - self.temperature)
            targets = (scores / temperature.clamp(min=COLDEST)).softmax(1)
        else:
            targets = (scores / self.temperature).softmax(1) if self.temperature else predicted_class(scores)
        return targets * confident

    def _align(self, step: TrainStep, scores: Tensor) -> Tensor:
        """Scores whose softmax is that of the given ones, times the class mix over the mean prediction."""
        mean, images = step.memory["mean_prediction"], step.training_set
        mean.lerp_(step.mean_of_all(scores.softmax(1).mean(0)), 1 - ALIGNMENT_DECAY)
        return scores + images.targets[: images.labeled].mean(0).log() + step.state.model.log_mix - mean.log()

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        assert views.targets is not None
        value = F.cross_entropy(outputs[0].scores, views.targets)  # all-zero rows are masked
        return Loss(self.weight * value, {"consistency": value, "mask_rate": views.targets.sum(1).mean()})


def predicted_class(scores: Tensor) -> Tensor:
    """1 for the class of the highest score, 0 for the others, (N, C)."""
    return torch.zeros_like(scores).scatter_(1, scores.argmax(1, keepdim=True), 1.0)


def supervised_terms(settings: Settings) -> list[LossTerm]:
    """Cross-entropy and, if they have a weight, squared weights."""
    chosen = settings.optim
    terms: list[LossTerm] = [CrossEntropy(settings.data.mixup_probability, chosen.label_smoothing)]
    if chosen.weight_decay or chosen.network_decay:
        terms.append(WeightDecay(chosen.weight_decay, chosen.network_decay))
    return terms


def classifier_terms(settings: Settings) -> list[LossTerm]:
    """The terms of a classifier without a density: the supervised ones and, if it has a weight, consistency."""
    terms, chosen = supervised_terms(settings), settings.consistency
    if chosen.weight:
        final = (chosen.final_threshold, chosen.final_temperature)
        now = (chosen.weight, chosen.confidence_threshold, chosen.temperature)
        terms.append(Consistency(*now, *final, chosen.distribution_alignment))
    return terms


def energy_terms(settings: Settings) -> list[LossTerm]:
    """The energy model's likelihood, and the coupling of both heads.

    Where outliers are rejected, the density is at first learned from only the few labelled images, as weak views.
    """
    chosen = settings.energy
    augmented = bool(settings.curriculum.reject_outliers)
    density = Density(chosen.weight, chosen.penalty, chosen.center, augmented, chosen.clamp_images)
    return [density, Coupling(chosen.coupling_weight)]
