"""Labels that may be wrong: those that the other labels contradict, and copies of an image with different labels.

Each label is judged by logistic regression that has not seen it (confident learning, Northcutt et al. 2021), on the
features of a frozen encoder, which know no label. A network that learned the label has features that are fitted to it:
there, plain colours and textures are asked as well. They know less, and were told nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ebpl.comparison import colors_and_textures, components_of
from ebpl.config.presets import preset
from ebpl.data.dataset import Images, ImageSet
from ebpl.data.decode import stacked
from ebpl.data.split import split_for
from ebpl.devices import device_and_dtype, threads
from ebpl.encoders import DEFAULT, fastest_device, find_encoder, load_encoder
from ebpl.errors import EbplError
from ebpl.inference.sources import images_now
from ebpl.models import HybridModel
from ebpl.models.predictions import predict_with_features
from ebpl.rng import derived_seed
from ebpl.runs import Run

if TYPE_CHECKING:
    from ebpl.labeling.learning_curve import LearningCurve

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
FOLDS, REPEATS, UPDATES = 5, 3, 50
"""Parts that labels are dealt into, how often, and the updates of logistic regression: enough to rank them."""
DECAYS = (0.1, 0.03, 0.01, 0.003)
"""Weight decays of logistic regression to choose from."""
DOUBTED = math.log(0.5)
"""A label is listed if another class is at least this probable, compared with its own: the logarithm of the ratio."""
LEAST = 10
"""Fewer labels cannot be judged by each other."""
THUMBNAIL, SAME, NEAR, CONTRAST = 16, 0.5, 4.0, 0.1
"""Copies differ at this height and width by less than a root mean square of pixels (from 0 to 255) that is the last
share of their contrast, between the two in the middle. Different images of Blood, Fashion and CIFAR-10 differ by 5 or
more, most by 25."""
MOST_ENCODED, LEAST_ENCODED = 1000, 24
"""Images that an encoder is asked for at most, and the least pixels of their shorter side. It helps with blood cells of
28 pixels."""
ROWS = 1024
"""Rows of the distance matrix that are in memory at a time."""


@dataclass(frozen=True)
class Labelled:
    """The labelled images of a run, with features that tell of their classes."""

    images: Images
    positions: Labels
    """Which of the training images they are."""
    classes: tuple[str, ...]
    rows: tuple[NDArray[np.float32], ...]
    """One or more kinds of features (N, D). The first knows nothing of the labels."""
    features: str
    """What they are, in words."""
    seed: int

    def name(self, i: int) -> str:
        """What an image is called: its path, or its number among the training images."""
        return self.images.paths[i] if self.images.paths else str(self.positions[i])


@dataclass(frozen=True)
class LabelError:
    """A label that may be wrong."""

    image: str
    index: int
    """Its position among the training images."""
    given: str
    suggested: str
    """The most probable other class."""
    p_given: float
    """Probability of the given class by a classifier that has not seen the label."""
    p_suggested: float
    copy: str = ""
    """A copy of the image with another label, where there is one."""

    def row(self, rank: int) -> dict[str, Any]:
        """A line of the list, with a place for the label."""
        return {"rank": rank, "image": self.image, "label": "", **{k: v for k, v in vars(self).items() if k in _LISTED}}


_LISTED = ("given", "suggested", "p_given", "p_suggested", "copy")


@dataclass(frozen=True)
class LabelCheck:
    """All labels that may be wrong, the most doubtful first, and what they were judged by."""

    errors: tuple[LabelError, ...]
    labels: int
    """Labels that were judged."""
    accuracy: float
    """The share of labels whose class is the most probable one."""
    features: str
    """What they were judged by, in words."""
    learning_curve: LearningCurve | None = None
    """Accuracy by the number of labels, where it can be told."""
    more_labels: str = ""
    """What more labels are likely to bring, or why that cannot be told."""

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        curve = vars(self.learning_curve) if self.learning_curve else None
        return {**vars(self), "errors": [vars(error) for error in self.errors], "learning_curve": curve}


def label_errors(
    run: Run | str | os.PathLike[str],
    *,
    data: ImageSet | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
) -> LabelCheck:
    """The labels of a run that may be wrong, the most doubtful first, with the class that each is likely to be.

    Copies of an image with different labels come first. The labels are those of the run's current data, so what was
    corrected is not listed again. What more labels are likely to bring is told too.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/doubted", epochs=1, pseudo_labels="none")
    >>> found = ebpl.label_errors(run)
    >>> found.labels, len(found.errors) < 200
    (410, True)
    """
    from ebpl.labeling.learning_curve import more_labels

    run = run if isinstance(run, Run) else Run(Path(run))
    model, description = run.load_model()
    images, _ = images_now(run, description, data, data_dir=data_dir, skip_unreadable=skip_unreadable)
    known = labelled(run, model, images)
    curve, sentence = more_labels(known)
    return replace(find_label_errors(known), learning_curve=curve, more_labels=sentence)


def labelled(run: Run, model: HybridModel, images: ImageSet, most: int | None = None) -> Labelled:
    """The images whose labels a run uses, to learn from or to choose weights by; `most` of them, picked evenly."""
    parts = split_for(images, run.settings)
    at = np.sort(np.concatenate([parts.labeled, parts.validation]))
    at = at if most is None else at[:: max(1, -(-len(at) // most))]
    some = images.train.take(at).with_channels(model.architecture.image_shape[0])
    device, dtype = device_and_dtype(run.settings.runtime)
    features = predict_with_features(model.to(device), some.pixels, dtype)[1]
    if encoder := run.settings.model.frozen_encoder:
        return Labelled(some, at, images.classes, (features,), f"features of {encoder}", run.settings.seed)
    spread = np.maximum(features.std(0), 1e-6)
    rows = *independent_rows(some.pixels), (features - features.mean(0)) / spread
    known = "colours and textures" + f", features of {DEFAULT}" * (len(rows) > 2)
    what = f"{known}, and the network's features, which were fitted to them"
    return Labelled(some, at, images.classes, rows, what, run.settings.seed)


def independent_rows(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], ...]:
    """Features of images that know nothing of their labels: plain ones, and those of an encoder if it is there.

    An encoder is not asked for many images, which takes long, nor for tiny ones, of which it can tell little.
    """
    plain = colors_and_textures(pixels).numpy()
    if find_encoder(DEFAULT).path is None or len(pixels) > MOST_ENCODED or min(pixels.shape[1:3]) < LEAST_ENCODED:
        return (plain,)
    try:
        encoder = load_encoder(DEFAULT, fastest_device())
    except EbplError:  # it is of help, not needed
        return (plain,)
    return plain, components_of(encoder, torch.from_numpy(encoder.encode(pixels)), preset("features")).numpy()


def find_label_errors(known: Labelled) -> LabelCheck:
    """The doubtful ones among these labels."""
    labels, copies = known.images.labels, _copies(known.images)
    counts = np.bincount(labels, minlength=len(known.classes))
    judged = counts[labels] > 1  # a class that is seen once is unknown to whoever has not seen that label
    there = np.unique(labels[judged])
    probabilities = np.full((len(labels), len(known.classes)), np.nan)
    if judged.sum() >= LEAST and len(there) > 1:
        numbers = np.searchsorted(there, labels[judged])
        rows = [torch.from_numpy(each[judged]) for each in known.rows]
        probabilities[judged] = 0
        with threads(1):  # more only wait for each other in such small problems
            probabilities[np.ix_(judged, there)] = cross_validated(rows, numbers, known.seed)
    own, other, best = _given_and_best(probabilities, labels)
    doubt = np.nan_to_num(np.log(other + 1e-12) - np.log(own + 1e-12), nan=-np.inf)
    doubted = {*np.flatnonzero(doubt > DOUBTED).tolist(), *copies}
    listed = sorted(doubted, key=lambda i: (i not in copies, min(i, copies[i]) if i in copies else 0, -doubt[i]))
    errors = [
        LabelError(
            known.name(i),
            int(known.positions[i]),
            known.classes[labels[i]],
            known.classes[best[i]] if np.isfinite(doubt[i]) else known.classes[labels[copies[i]]],
            float(own[i]),
            float(other[i]),
            known.name(copies[i]) if i in copies else "",
        )
        for i in listed
    ]
    certain = np.isfinite(doubt)
    accuracy = float((doubt[certain] < 0).mean()) if certain.any() else float("nan")
    return LabelCheck(tuple(errors), int(certain.sum()), accuracy, known.features)


def _given_and_best(probabilities: Floats, labels: Labels) -> tuple[Floats, Floats, Labels]:
    """Probabilities of the given class and of the best other one, and which that is."""
    at = np.arange(len(labels))
    others = np.nan_to_num(probabilities, nan=-1.0)
    others[at, labels] = -1
    best: Labels = others.argmax(1)
    return probabilities[at, labels], probabilities[at, best], best


def cross_validated(rows: Sequence[Tensor], labels: Labels, seed: int) -> Floats:
    """Probabilities (N, C) for images that logistic regression has not learned from, on one or more kinds of features.

    It is the geometric mean over these and over several ways to deal the folds, each with the weight decay that suits
    the labels best.
    """
    random = np.random.RandomState(derived_seed(seed, "label errors") % 2**32)
    parts, found = [deal(labels, random) for _ in range(REPEATS)], list[Tensor]()
    for each in rows:
        decay, first = best_decay(each, labels, parts[0])
        found += [first, *out_of_fold(each, labels, [(part, decay) for part in parts[1:]])]
    mean: Floats = torch.stack(found).mean(0).double().softmax(1).numpy()
    return mean


def best_decay(rows: Tensor, labels: Labels, part: Labels) -> tuple[float, Tensor]:
    """The weight decay of the highest likelihood in these folds, and the log-probabilities there."""
    found = dict(zip(DECAYS, out_of_fold(rows, labels, [(part, decay) for decay in DECAYS]), strict=True))
    decay = min(found, key=lambda each: float(F.nll_loss(found[each], torch.from_numpy(labels))))
    return decay, found[decay]


def deal(labels: Labels, random: np.random.RandomState, folds: int = FOLDS) -> Labels:
    """The fold of each image, by chance, with every class spread evenly over the folds."""
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    found = np.empty(len(labels), np.int64)
    found[order] = np.arange(len(labels)) % folds
    return found


def out_of_fold(rows: Tensor, labels: Labels, ways: Sequence[tuple[Labels, float]]) -> list[Tensor]:
    """Log-probabilities of each image by what the other folds teach, for each way to deal them and weight decay."""
    learned = [np.flatnonzero(part != fold) for part, _ in ways for fold in range(FOLDS)]
    decays = [decay for _, decay in ways for _ in range(FOLDS)]
    scores = fitted_together(rows, labels, learned, decays).view(len(labels), len(ways), FOLDS, -1)
    every = torch.arange(len(labels))
    return [scores[every, way, torch.from_numpy(part)].log_softmax(1) for way, (part, _) in enumerate(ways)]


def fitted_together(rows: Tensor, labels: Labels, learned: Sequence[Labels], decays: Sequence[float]) -> Tensor:
    """Scores (N, models, C) of logistic regressions that each learn from some of the rows, all in one optimisation."""
    targets = F.one_hot(torch.from_numpy(labels)).float()
    models, (count, classes) = len(learned), targets.shape
    share = torch.zeros(count, models)
    for model, at in enumerate(learned):
        share[at, model] = 1 / len(at)
    shrink = torch.tensor(decays).repeat_interleave(classes) / 2
    weight = torch.zeros(rows.shape[1], models * classes, requires_grad=True)
    bias = torch.zeros(models * classes, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=UPDATES, line_search_fn="strong_wolfe")

    def scores() -> Tensor:
        return torch.addmm(bias, rows, weight).view(count, models, classes)

    def loss() -> Tensor:
        solver.zero_grad()
        errors = -(scores().log_softmax(2) * targets[:, None]).sum(2)
        value = (errors * share).sum() + (shrink * weight.square()).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    return scores().detach()


def _copies(images: Images) -> dict[int, int]:
    """Images that have a copy with another label, exact or nearly so, each with the most similar one."""
    pictures = [image[..., 0] if image.shape[2] == 1 else image for image in images.pixels]
    small = stacked(pictures, (THUMBNAIL, THUMBNAIL), images.pixels.shape[3]).reshape(len(images), -1)
    points = small.astype(np.float32)
    squares, contrast = np.square(points).mean(1), points.std(1)
    found: dict[int, int] = {}
    for start in range(0, len(points), ROWS):
        part = slice(start, start + ROWS)
        products = points[part] @ points.T / points.shape[1]
        distances = np.sqrt(np.maximum(squares[part, None] + squares - 2 * products, 0))
        distances[images.labels[part, None] == images.labels] = np.inf
        nearest = distances.argmin(1)
        distance = distances[np.arange(len(nearest)), nearest]
        near = distance < np.clip(CONTRAST * contrast[part], SAME, NEAR)
        found |= {start + int(i): int(nearest[i]) for i in np.flatnonzero(near)}
    return found
