"""The images that a run is trained on, on their device, and in which order they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebpl.calibration import MIN_HOLDOUT, holdout_mask
from ebpl.calibration.class_mix import ClassMix, mix_of
from ebpl.config import Settings
from ebpl.data.dataset import Images, ImageSet, in_training
from ebpl.data.split import split_for
from ebpl.errors import RunError, is_memory, some_of
from ebpl.models import Backbone
from ebpl.rng import generator
from ebpl.sampling import FittedGaussian
from ebpl.training.distributed import Ranks

LABELED, ALL, UNLABELED = "labeled", "all", "unlabeled"
"""The streams of images that loss terms draw from: with a label or pseudo-label; every image; without a true label."""


@dataclass
class TrainingSet:
    """Training images as the backbone keeps them, labelled ones first, each with a target distribution.

    The targets of unlabelled images are changed in place when they get pseudo-labels.
    """

    data: ImageSet
    inputs: Tensor
    targets: Tensor
    labeled: int
    """Number of images with a true label; they come first."""
    held_out: int
    """How many of those, the last, are held out to check the calibration until the first curriculum step."""
    unlabeled_index: NDArray[np.int64]
    """Positions of the unlabelled images among the training images of the data."""
    validation: Images | None
    validation_inputs: Tensor | None
    backbone: Backbone

    @classmethod
    def prepare(
        cls, data: ImageSet, settings: Settings, holdout: float, backbone: Backbone, device: torch.device
    ) -> TrainingSet:
        """Split the data as the settings say and bring it to the device; `holdout` is a fraction of the labels."""
        parts = split_for(data, settings)
        waits = holdout_mask(data.train.labels[parts.labeled], holdout, settings.seed)
        labeled = parts.labeled[np.argsort(waits, kind="stable")]
        order = np.concatenate([labeled, parts.unlabeled])
        validation = data.train.take(parts.validation)
        if len(validation) == 0 and data.validation is not None:
            validation = data.validation.take(np.flatnonzero(data.validation.labeled))
        targets = torch.zeros(len(order), len(data.classes))
        targets[torch.arange(len(labeled)), torch.from_numpy(data.train.labels[labeled])] = 1

        def on_device(pixels: NDArray[np.uint8]) -> Tensor:
            prepared = backbone.prepare_training(pixels, settings.data).contiguous()
            try:
                return prepared.to(device)
            except RuntimeError as error:
                if not is_memory(error):
                    raise
                size = f"{prepared.nbytes / 1e9:.1f} GB"
                raise RunError(
                    f"The {len(prepared)} training images take {size}, which is more memory than {device} has left. "
                    "Use fewer unlabelled images, free the device, or train with --device cpu."
                ) from error

        return cls(
            data,
            on_device(data.train.pixels[order]),
            targets.to(device),
            len(labeled),
            int(waits.sum()),
            parts.unlabeled,
            validation if len(validation) else None,
            on_device(validation.pixels) if len(validation) else None,
            backbone,
        )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def unlabeled(self) -> int:
        """Number of images without a true label."""
        return len(self.unlabeled_index)

    @property
    def hidden_labels(self) -> NDArray[np.int64]:
        """The true labels of the unlabelled images, -1 where unknown; never learned from."""
        return self.data.train.labels[self.unlabeled_index]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The true labels of the labelled images."""
        found: NDArray[np.int64] = self.targets[: self.labeled].argmax(1).cpu().numpy()
        return found

    def label_counts(self) -> NDArray[np.int64]:
        """How many labels each class has."""
        return np.bincount(self.labels, minlength=len(self.data.classes))

    def class_mix(self, settings: Settings) -> ClassMix | Literal["auto"] | None:
        """The class mix that settings ask for; by default it is estimated where training starts from a probe."""
        natural = self.backbone.starts_from_probe and not self.data.is_benchmark
        wanted = settings.data.class_mix or ("auto" if natural else "labels")
        return mix_of(wanted, self.data.classes, self.label_counts())

    def estimates_mix_late(self, settings: Settings) -> bool:
        """Whether the class mix is estimated after the initial training, by the network that it has made."""
        return not self.backbone.starts_from_probe and self.class_mix(settings) == "auto"

    def take(self, index: Tensor) -> Tensor:
        """The network's inputs at these positions."""
        return self.backbone.scale(self.inputs[index])

    def fitted_gaussian(self, seed: int) -> FittedGaussian:
        """A Gaussian with the mean and covariance of the images, or of some of them, chosen by the seed."""
        some = torch.randperm(len(self), generator=generator(seed, "start"))[: FittedGaussian.MOST]
        return FittedGaussian(self.backbone.points(self.inputs[some.to(self.inputs.device)]))

    def start_of_chains(self, settings: Settings) -> tuple[tuple[int, ...], FittedGaussian | None]:
        """The shape of samples, and the Gaussian that chains start from, if they do."""
        shape = tuple(self.backbone.points(self.inputs[:1]).shape[1:])
        return shape, self.fitted_gaussian(settings.seed) if settings.sgld.start == "gaussian" else None

    def set_pseudo_labels(self, selected: NDArray[np.int64], targets: NDArray[np.float64]) -> None:
        """Let these unlabelled images, and no others, have these target distributions."""
        pseudo = self.targets[self.labeled :]
        pseudo.zero_()
        index = torch.from_numpy(selected).to(pseudo.device)
        pseudo[index] = torch.from_numpy(targets).to(pseudo.device, torch.float32)

    def introduction(self) -> list[str]:
        """What is trained on, and what looks odd about it."""
        data, counts = self.data, self.counts()
        validation, test = counts["validation"], counts["test"]
        chosen_by = f"{validation} more choose the weights" if validation else "the last weights are kept"
        shown = [f"{name} {count}" for name, count in counts["labelled"].items()]
        return [
            *data.notes,
            *in_training(data.test_in_training, test, f"the {test} test images", "the test results are"),
            *(["there are no unlabelled images to learn from"] if not self.unlabeled else []),
            f"{data.name}: {self.labeled} labelled, {self.unlabeled} unlabelled images of "
            f"{data.shape[2]} x {data.shape[1]} pixels in {len(data.classes)} classes; {chosen_by}",
            f"labels: {some_of(shown, 12)}",
            *self.backbone.notes(),
        ]

    def holdout_lines(self, steps: bool, settings: Settings, reinitialise: bool) -> list[str]:
        """What to say of labels that are held out, with curriculum steps to come or not, and where it was asked for."""
        if self.held_out:
            until = " until the first step" if steps else ", and without steps stay so"
            return [f"{self.held_out} of these labels are held out to check the calibration{until}"]
        if not settings.curriculum.calibration_holdout:
            return []
        why = "every step begins with fresh weights" if reinitialise else f"that takes at least {MIN_HOLDOUT}"
        return [f"no labels are held out to check the calibration: {why}"]

    def counts(self) -> dict[str, Any]:
        """How many images were used how: labels of each class, unlabelled, validation and test images."""
        counts = self.targets[: self.labeled].sum(0).int().tolist()
        test = self.data.test
        return {
            "labelled": dict(zip(self.data.classes, counts, strict=True)),
            "unlabelled": self.unlabeled,
            "validation": len(self.validation or ()),
            "test": 0 if test is None else int(test.labeled.sum()),
        }


def batches(count: int, updates: int, size: int, generator: torch.Generator) -> Tensor:
    """Positions below `count` in a table (updates, size): whole passes in new random orders, one after the other.

    Every batch is full; within each pass no position comes twice.
    """
    needed = updates * size
    passes = [torch.randperm(count, generator=generator) for _ in range(-(-needed // count))]
    return torch.cat(passes)[:needed].view(updates, size)


def epoch_order(
    labeled: int,
    total: int,
    selected: Sequence[int],
    rejected: Sequence[int],
    updates: int,
    settings: Settings,
    ranks: Ranks,
    generator: torch.Generator,
    held_out: int = 0,
    unlabeled_batch: int = 0,
) -> dict[str, Tensor]:
    """For each stream the positions of its images in every update of an epoch, (updates, batch).

    `selected` and `rejected` count unlabelled images from the first of them: selected ones have a pseudo-label,
    rejected ones are not drawn. With an `unlabeled_batch` of 0 there is no stream of unlabelled images.
    """

    def positions(unlabeled: Sequence[int]) -> Tensor:
        return labeled + torch.tensor(unlabeled, dtype=torch.long)

    def table(of: Tensor, size: int) -> Tensor:
        return of[batches(len(of), updates, size, generator)]

    def own(table: Tensor) -> Tensor:
        return table[:, ranks.own(table.shape[1])]

    everything = torch.arange(total)
    if rejected:
        everything = everything[~torch.isin(everything, positions(rejected))]
    unlabeled = everything[everything >= labeled - held_out] if (everything >= labeled).any() else everything
    size = settings.optim.batch_size
    known = round(settings.curriculum.labeled_batch_fraction * size)
    true, pseudo = torch.arange(labeled - held_out), positions(selected)
    if 0 < known < size and len(pseudo):
        both = [table(true, known), table(pseudo, size - known)]
        classified = torch.cat(both, 1)[:, torch.randperm(size, generator=generator)]
    else:
        classified = table(torch.cat([true, pseudo]), size)
    order = {LABELED: own(classified), ALL: own(table(everything, size))}
    if unlabeled_batch:
        order[UNLABELED] = own(table(unlabeled, unlabeled_batch))
    return order
