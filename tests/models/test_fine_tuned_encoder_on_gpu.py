"""A fine-tuned encoder on a GPU (make test-gpu): the step is captured, and a run continues with the same bits."""

import numpy as np
import pytest
import torch

import ebpl
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.encoders import DEFAULT, ENCODERS
from tests.encoders.helpers import crops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.skipif(ENCODERS[DEFAULT].path is None, reason=f"{DEFAULT} is not installed"),
]
SHORT = {"optim.epochs": 2, "optim.updates_per_epoch": 10, "curriculum.epochs": 1, "runtime.checkpoint_seconds": 0.0}


def pieces(count: int = 120) -> ImageSet:
    """Pieces of a palace and of a flower, 96 x 96. Features of noise would be two points, whose density diverges."""
    pixels, labels = crops(count, 96), np.arange(count) % 2
    given = np.where(np.arange(count) < 20, labels, -1)
    return from_arrays(pixels[:90], given[:90], test_images=pixels[90:], test_labels=labels[90:], name="pieces")


@pytest.mark.parametrize("fine_tune", ["all", "last"])
def test_an_encoder_is_fine_tuned_in_a_captured_step(fine_tune: str) -> None:
    run = ebpl.train(pieces(), preset("fine-tuned", SHORT, fine_tune=fine_tune), run="run")
    assert run.metrics()["healed_divergences"] == []
    assert run.metrics()["metrics"]["accuracy"] > 0.95
    assert ebpl.predict(run, pieces().train.pixels[:2], label_outliers=True)[1]["label"] == "1"


def test_several_seeds_are_fine_tuned_side_by_side() -> None:
    runs = ebpl.train(pieces(), preset("fine-tuned", SHORT), seeds=[0, 1], run="runs")
    assert all(run.metrics()["metrics"]["accuracy"] > 0.95 for run in runs)
