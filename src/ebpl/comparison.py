"""What features of images tell of their classes, in a moment: logistic regression, cross-validated on the labels.

Plain colours and textures stand for what anything that learns from scratch finds as well, and those of larger images
for what it finds in more detail. The class mix of unlabelled images can be told as far as features tell classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ebpl.calibration.class_mix import ClassMix
from ebpl.config import Settings
from ebpl.data.decode import stacked
from ebpl.devices import threads
from ebpl.encoders import Encoder
from ebpl.models.encoder import EncodedImages
from ebpl.rng import derived_seed
from ebpl.training.probe import fit_probe, logistic_regression, stratified_folds

PLAIN_SIZE, GRIDS = 32, (1, 2, 4)
"""Height and width at which colours and textures are looked at, and the cells a side that they are averaged over."""
SIZES = (64, 128)
"""Larger heights and widths that images can be learned at from scratch."""
DETAIL = 0.03
"""How much accuracy colours and textures must gain by the detail of a larger size. With 10 and 25 labels a class it was
0.04 to 0.09 on cells of 128 pixels, and -0.03 to 0.02 on photographs of rubbish."""
UPDATES, DECAYS, REPEATS = 30, (1.0, 0.1, 0.01), 3
"""Of logistic regression, and how often the labels are dealt into folds anew: enough to compare, and quick."""
LEARNED = 8
"""Labels of a class that are learned from in a fold, as where the margins were measured: with more, any features
gain."""


MOST_LABELS, MOST_CLASSES = 300, 30
"""Labelled images that are compared on, and the classes that they are of, so that it stays quick."""
MOST_ERRORS = 0.5
"""Of logistic regression in cross-validation, compared with always naming the largest class, for a class mix to be
estimated by it. With ten labels a class and a balanced mix, another mix was estimated at 0.54 to 0.84 (Blood, CIFAR-10
and SVHN by colours and textures), and nearly the same one at 0.39 to 0.45 (Fashion; photographs and cells by an
encoder)."""


def some_of_each_class(labels: NDArray[np.int64], positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Some labelled images of each class, or of some classes where there are many: a function of the seed."""
    random = np.random.RandomState(derived_seed(seed, "recommendation") % 2**32)
    classes = random.permutation(np.unique(labels[positions]))[:MOST_CLASSES]
    each = MOST_LABELS // len(classes)
    return np.sort(np.concatenate([random.permutation(positions[labels[positions] == c])[:each] for c in classes]))


def encoded_by(encoder: Encoder, pixels: NDArray[np.uint8], shown: Callable[[int, str], None]) -> Tensor:
    """Features of images."""
    return torch.from_numpy(encoder.encode(pixels, lambda count: shown(count, "encoding")))


def components_of(encoder: Encoder, features: Tensor, settings: Settings, square_root: bool = False) -> Tensor:
    """Features, or their square roots, as training would see them, were they those of all images."""
    components = settings.model.components
    backbone = EncodedImages(encoder.info.name, encoder.digest, encoder.dimension, components, choice=True)
    backbone.fit(features, square_root)
    return backbone.scale(features)


def quick_mix(rows: Tensor, labels: NDArray[np.int64], classes: int, seed: int) -> tuple[ClassMix | None, float | None]:
    """The class mix of images without a label (-1), and the accuracy of logistic regression on the others' features.

    The mix is None if that accuracy is too low, and both are if a class has a single label.
    """
    known, features = labels >= 0, rows.numpy()
    with threads(1):  # more only wait for each other in such small problems
        probe = fit_probe(features[known], labels[known], features[~known], classes, None, seed, "auto")
    if probe.check is None:
        return None, None
    guessed = np.bincount(labels[known]).max() / known.sum()
    enough = 1 - probe.check.accuracy <= MOST_ERRORS * (1 - guessed)
    return (probe.mix if enough else None), probe.check.accuracy


def colors_and_textures(pixels: NDArray[np.uint8], size: int = PLAIN_SIZE) -> Tensor:
    """Means and standard deviations of pixels and of their gradients over cells of each image, standardised."""
    pictures = [image[..., 0] if image.shape[2] == 1 else image for image in pixels]
    small = torch.from_numpy(stacked(pictures, (size, size), pixels.shape[3]))
    values = small.permute(0, 3, 1, 2).float() / 255
    across, down = values.diff(dim=3, append=values[..., -1:]).abs(), values.diff(dim=2, append=values[:, :, -1:]).abs()
    maps = torch.cat([values, across, down], 1)
    found = []
    for cells in GRIDS:
        side = size // cells
        grid = maps.reshape(*maps.shape[:2], cells, side, cells, side).transpose(3, 4).flatten(4)
        found += [grid.mean(-1).flatten(1), grid.std(-1).flatten(1)]
    rows = torch.cat(found, 1)
    return (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-6)


def cross_validated_accuracy(rows: Tensor, labels: NDArray[np.int64], seed: int) -> float:
    """Of logistic regression with the weight decay that suits it best."""
    answers = torch.from_numpy(labels)
    targets, right = F.one_hot(answers).float(), dict.fromkeys(DECAYS, 0)
    random = np.random.RandomState(derived_seed(seed, "folds") % 2**32)
    for _ in range(REPEATS):
        for rest, seen in stratified_folds(labels, int(random.randint(2**31))):
            mixed = random.permutation(rest)
            learned = np.concatenate([mixed[labels[mixed] == c][:LEARNED] for c in range(targets.shape[1])])
            for decay in DECAYS:
                weight, bias = logistic_regression(rows[learned], targets[learned], decay, UPDATES)
                right[decay] += int((F.linear(rows[seen], weight, bias).argmax(1) == answers[seen]).sum())
    return max(right.values()) / (REPEATS * len(labels))


def is_ahead(accuracy: float, plain: float, margin: float) -> bool:
    """Whether features are far enough ahead of plain statistics; two classes often leave no room for such a lead."""
    return accuracy - plain >= margin or (accuracy > plain and 1 - accuracy <= (1 - plain) / 2)


def accuracy_by_size(
    pixels: NDArray[np.uint8], labels: NDArray[np.int64], largest: float, seed: int
) -> dict[int, float]:
    """Of colours and textures, at each size that is no larger than this together with those of the smallest."""
    plain = colors_and_textures(pixels)
    rows = {PLAIN_SIZE: plain}
    rows |= {size: torch.cat([plain, colors_and_textures(pixels, size)], 1) for size in SIZES if size <= largest}
    return {size: cross_validated_accuracy(each, labels, seed) for size, each in rows.items()}


def size_for(accuracies: dict[int, float]) -> int:
    """The size that tells most, if its detail gains enough; the smaller of two that tell the same.

    >>> size_for({32: 0.5, 64: 0.56, 128: 0.56}), size_for({32: 0.5, 64: 0.51, 128: 0.52}), size_for({32: 0.5})
    (64, 32, 32)
    """
    best = max(accuracies, key=lambda size: (accuracies[size], -size))
    smallest = min(accuracies)
    return best if accuracies[best] - accuracies[smallest] >= DETAIL else smallest
