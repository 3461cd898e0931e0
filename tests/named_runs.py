"""Runs that tests of several rooms read: each is trained once, and every test gets a copy to damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.runs import Run
from tests.helpers import blobs, class_folders, quick

EVIL = "<script>alert(1)</script>"
SHARED: dict[str, Path] = {}


def named_blobs() -> ImageSet:
    """Blobs whose class and data names are HTML, with the truth of all images: the test images are hard to tell."""
    data = blobs()
    assert data.test is not None
    noise = np.random.default_rng(1).integers(0, 120, data.test.pixels.shape, dtype=np.uint8)
    labels = np.arange(len(data.train)) % 3
    return from_arrays(
        data.train.pixels,
        labels,
        test_images=data.test.pixels // 3 + noise,
        test_labels=data.test.labels,
        classes=(EVIL, "b&b", "c"),
        name="<b>blobs</b>",
    )


def _with_truth(folder: Path) -> None:
    ebpl.train(named_blobs(), quick(labels_per_class=5, curriculum__steps=2), run=folder / "run")


def _without_truth(folder: Path) -> None:
    class_folders(folder / EVIL.replace("/", "_"), unlabeled=12)
    ebpl.train(folder / EVIL.replace("/", "_"), quick(curriculum__steps=3), run=folder / "run")


def _baseline(folder: Path) -> None:
    ebpl.train(named_blobs(), quick(method="curriculum-labeling", pseudo_labels="none"), run=folder / "run")


MADE = {"with truth": _with_truth, "without truth": _without_truth, "baseline": _baseline}


@pytest.fixture
def run_named(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Callable[[str], Run]:
    """A copy of one of the runs, by name."""

    def copy(name: str) -> Run:
        if name not in SHARED:
            SHARED[name] = tmp_path_factory.mktemp("shared")
            MADE[name](SHARED[name])
        return Run(shutil.copytree(SHARED[name] / "run", tmp_path / "run"))

    return copy
