"""The images that experiments beside the paper's measure on, and what their records begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data import load
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.split import split_for
from ebpl.devices import describe_environment
from ebpl.encoders import find_encoder

TESTED = 2000
"""Images that are kept for testing where the data brings none."""


def photographs(folder: Path, size: int | None = None, tune: bool = False) -> ImageSet:
    """Class folders with test images, at the size of the preset's encoder unless another is wanted."""
    encoder = preset("features").model.encoder
    assert encoder is not None
    images = load(folder, image_size=size or find_encoder(encoder).size, skip_unreadable=True)
    return with_test_images(images, tune)


def with_test_images(images: ImageSet, tune: bool = False) -> ImageSet:
    """The data without validation images; where it brings no test images, some are drawn, the same for every seed.

    To `tune`, test images are put away, and some of the training images are drawn in their place.
    """
    if images.test is None:
        order = np.random.default_rng(0).permutation(len(images.train))
        count = min(TESTED, len(order) // 3)
        parts: list[Images] = [images.train.take(np.sort(order[part])) for part in (slice(count), slice(count, None))]
        images = replace(images, test=parts[0], train=parts[1])
    return with_test_images(replace(images, test=None)) if tune else replace(images, validation=None)


def with_drawn_labels(images: ImageSet, settings: Settings) -> ImageSet:
    """The data with only those labels that these settings draw."""
    drawn = split_for(images, settings).labeled
    labels = np.full(len(images.train), UNLABELED)
    labels[drawn] = images.train.labels[drawn]
    return replace(images, train=replace(images.train, labels=labels))


def described(images: ImageSet, settings: Settings) -> dict[str, Any]:
    """What a record says of where its numbers are from."""
    return {
        "data": {"name": images.name, "fingerprint": images.fingerprint()},
        "settings": settings.to_dict(),
        "environment": describe_environment(settings.runtime),
    }
