"""A fine-tuned encoder on a GPU (make test-gpu): the step is captured, and a run continues with the same bits."""

import numpy as np
import pytest
import torch

import ebpl
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.encoders import DEFAULT, ENCODERS
from tests.helpers import random_images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.skipif(ENCODERS[DEFAULT].path is None, reason=f"{DEFAULT} is not installed"),
]
SHORT = {"optim.epochs": 2, "optim.updates_per_epoch": 10, "curriculum.epochs": 1, "runtime.checkpoint_seconds": 0.0}


def bright_or_dark(count: int = 120) -> ImageSet:
    """Images of 96 x 96; the bright ones are a class."""
    labels = np.arange(count) % 2
    pixels = (random_images(count, 96, 96, 3) // 2 + 120 * labels[:, None, None, None]).astype(np.uint8)
    given = np.where(np.arange(count) < 20, labels, -1)
    return from_arrays(pixels[:90], given[:90], test_images=pixels[90:], test_labels=labels[90:], name="light")


@pytest.mark.parametrize("fine_tune", ["all", "last"])
def test_an_encoder_is_fine_tuned_in_a_captured_step(fine_tune: str) -> None:
    run = ebpl.train(bright_or_dark(), preset("fine-tuned", SHORT, fine_tune=fine_tune), run="run")
    assert run.metrics()["metrics"]["accuracy"] > 0.95
    assert run.metrics()["healed_divergences"] == []
    assert ebpl.predict(run, bright_or_dark().train.pixels[:2])[1]["label"] == "1"


def test_several_seeds_are_fine_tuned_side_by_side() -> None:
    runs = ebpl.train(bright_or_dark(), preset("fine-tuned", SHORT), seeds=[0, 1], run="runs")
    assert all(run.metrics()["metrics"]["accuracy"] > 0.95 for run in runs)
