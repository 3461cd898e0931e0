"""What plain colours and textures tell of the classes of images, by size."""

import numpy as np
import pytest
import torch

from ebpl.comparison import (
    DETAIL,
    PLAIN_SIZE,
    accuracy_by_size,
    colors_and_textures,
    cross_validated_accuracy,
    is_ahead,
    quick_mix,
    size_for,
)
from tests.helpers import random_images


def test_colors_and_textures_are_means_and_deviations_of_cells() -> None:
    pixels = random_images(5, 64, 64, 3)
    rows = colors_and_textures(pixels)
    small = pixels.reshape(5, 32, 2, 32, 2, 3).mean((2, 4))
    expected = small[:, 8:16, 16:24, 1].mean((1, 2))  # green in row 1, column 2 of 4 x 4 cells
    standard = (expected - expected.mean()) / expected.std(ddof=1)
    nearest = np.abs(rows.numpy() - standard[:, None]).max(0).min()
    assert nearest < 0.15  # bytes are rounded
    assert rows.shape == (5, 2 * 9 * (1 + 4 + 16))
    assert rows.isfinite().all()
    assert colors_and_textures(np.zeros((3, 40, 70, 1), np.uint8)).abs().max() == 0


def textured(count: int, size: int, period: int) -> tuple[np.ndarray, np.ndarray]:
    """Gray noise with stripes across or down, that are as wide as half the period."""
    random, labels = np.random.default_rng(0), np.arange(count) % 2
    images = random.integers(60, 120, (count, size, size, 1))
    bright = np.arange(size) % period < period // 2
    for image, label in zip(images, labels, strict=True):
        lines = image if label else image.transpose(1, 0, 2)
        lines[bright] += 60
    return images.astype(np.uint8), labels


@pytest.mark.parametrize(("period", "expected"), [(2, 128), (4, 64), (16, 32)])
def test_the_size_is_the_smallest_that_shows_what_tells_the_classes(period: int, expected: int) -> None:
    images, labels = textured(24, 128, period)
    found = accuracy_by_size(images, labels, 128, seed=0)
    assert list(found) == [32, 64, 128]
    assert found[expected] == 1
    assert size_for(found) == expected


def test_images_are_not_looked_at_larger_than_they_are() -> None:
    images, labels = textured(24, 128, 2)
    assert list(accuracy_by_size(images, labels, 100, seed=0)) == [32, 64]
    assert accuracy_by_size(images, labels, PLAIN_SIZE, seed=0) == {
        32: cross_validated_accuracy(colors_and_textures(images), labels, 0)
    }


def test_a_small_gain_is_no_reason_for_larger_images() -> None:
    assert size_for({32: 0.5, 64: 0.5 + DETAIL / 2}) == 32
    assert size_for({32: 0.5, 64: 0.5 + 2 * DETAIL}) == 64
    assert size_for({32: 0.5, 64: 0.4, 128: 0.45}) == 32
    assert size_for({32: 0.5, 64: 0.7, 128: 0.8}) == 128


def test_accuracy_is_that_of_chance_where_features_tell_nothing() -> None:
    labels = np.arange(60) % 3
    noise = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    assert cross_validated_accuracy(noise, labels, 0) < 0.5
    told = noise + 10 * torch.nn.functional.one_hot(torch.from_numpy(labels), 5)
    assert cross_validated_accuracy(told, labels, 0) == 1


@pytest.mark.parametrize(
    ("accuracy", "plain", "ahead"),
    [
        (0.7, 0.45, True),
        (0.55, 0.4, False),
        (0.97, 0.85, True),  # two classes
        (0.9, 0.85, False),
        (1.0, 1.0, False),
        (0.0, 0.0, False),
        (0.4, 0.9, False),
    ],
)
def test_a_lead_of_twenty_points_or_half_the_errors_is_reason_for_an_encoder(
    accuracy: float, plain: float, ahead: bool
) -> None:
    assert is_ahead(accuracy, plain, 0.2) == ahead


def test_a_class_mix_is_estimated_only_where_features_tell_the_classes() -> None:
    random = np.random.default_rng(0)
    true = np.concatenate([np.arange(30) % 3, np.repeat([0, 1, 2], [80, 15, 5])])
    labels = np.where(np.arange(len(true)) < 30, true, -1)
    noise = torch.from_numpy(random.standard_normal((len(true), 5)).astype(np.float32))
    told = noise + 4 * torch.nn.functional.one_hot(torch.from_numpy(true), 5)
    mix, accuracy = quick_mix(told, labels, 3, 0)
    assert mix is not None
    assert accuracy is not None
    assert accuracy > 0.9
    assert mix.differs
    assert np.abs(np.array(mix.shares) - [0.8, 0.15, 0.05]).max() < 0.1
    assert quick_mix(noise, labels, 3, 0)[0] is None
    labels[np.flatnonzero(labels == 2)[1:]] = -1
    assert quick_mix(told, labels, 3, 0) == (None, None)
