import json
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.errors import RunError
from experiments import samples
from tests.helpers import quick, random_images


def test_the_frechet_distance_of_gaussians_is_the_known_one() -> None:
    random = np.random.default_rng(0)
    first = random.normal(0, 1, (100_000, 2))
    second = random.normal(0, 1, (100_000, 2)) * (2, 3) + (1, 0)
    assert samples.frechet_distance(first, first) == pytest.approx(0, abs=1e-8)
    assert samples.frechet_distance(first, second) == pytest.approx(1 + (2 - 1) ** 2 + (3 - 1) ** 2, rel=0.02)


def test_copies_have_no_distance_to_the_nearest_image() -> None:
    images = random_images(20, 4, 4, 1)
    assert samples.nearest(images, images) == pytest.approx([0, 0, 0], abs=1e-3)
    far = np.zeros_like(images), np.full_like(images, 255)
    assert samples.nearest(*far) == pytest.approx([4, 4, 4])


def test_a_run_is_measured_by_a_judge_and_drawn() -> None:
    run = ebpl.train("digits", quick(sgld__start="gaussian"), run="run")
    assert samples.main(["run", "--unseen", "digits", "--results", "out", "--updates", "3"]) == 0
    found = json.loads(Path("out/digits-wrn-10-1-seed0.json").read_text())
    assert Path("out/digits-wrn-10-1-seed0.png").stat().st_size > 1000
    assert found["run"]["settings"]["sgld.start"] == "gaussian"
    assert found["frechet"]["uniform_noise"] > found["frechet"]["training_images"] >= 0
    assert sum(found["judge"]["classes_of_samples"]) == run.settings.sgld.buffer_size
    assert found["unseen"]["digits"]["energy"] == 0.5


def test_a_run_without_samples_is_refused() -> None:
    run = ebpl.train("digits", quick(method="ebpl-without-energy", pseudo_labels="none"), run="run")
    with pytest.raises(RunError, match="no checkpoint with samples"):
        samples.chains(run)
