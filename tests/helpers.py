"""What several tests need: small data and quick settings."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet, from_arrays

if TYPE_CHECKING:
    from ebpl.models import Architecture
    from ebpl.training.callbacks import Callback
    from ebpl.training.distributed import Ranks
    from ebpl.training.trainer import Trainer

CHROMIUM = shutil.which("chromium")
NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None or importlib.util.find_spec("playwright") is None,
        reason="Chromium or Playwright is not installed (make test-browser)",
    ),
]
ROOT = Path(__file__).parent.parent
_SHORT = {"sgld.steps": 2, "sgld.buffer_size": 128, "optim.epochs": 2, "curriculum.epochs": 1}


def sets(settings: Mapping[str, object]) -> list[str]:
    """Settings as words of the command line."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


QUICK = ["--preset", "quick", *sets(_SHORT)]


def quick(**changes: object) -> Settings:
    """Settings that train in about a second on `blobs`."""
    return preset("quick", _SHORT).changed(changes)


def blobs(count: int = 150, unlabeled: bool = True, classes: int = 3, seed: int = 0) -> ImageSet:
    """Images of 8 x 8 with one bright corner each; the corner is the class."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = random.integers(0, 60, (count, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 120
    given = np.where((np.arange(count) < 5 * classes) | (not unlabeled), labels, -1)
    return from_arrays(
        images[: count - 30],
        given[: count - 30],
        test_images=images[count - 30 :],
        test_labels=labels[count - 30 :],
        name="blobs",
    )


def architecture(
    precision: str | None = "diagonal",
    *,
    depth: int = 10,
    width: int = 1,
    stages: int = 3,
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 3,
) -> Architecture:
    """A wide residual network with its heads, for `blobs` unless told otherwise."""
    from ebpl.models import Architecture

    options = {"depth": depth, "width": width} | ({} if stages == 3 else {"stages": stages})
    return Architecture("wide_resnet", shape, classes, precision, options)


def trainer_of(
    settings: Settings, data: ImageSet | None = None, *callbacks: Callback, ranks: Ranks | None = None
) -> Trainer:
    """A trainer as `ebpl.train` makes one, that tells these callbacks alone."""
    from ebpl.methods import get_method
    from ebpl.training.distributed import ALONE
    from ebpl.training.trainer import Trainer

    method = get_method(settings.method)
    return Trainer(
        settings,
        data or blobs(),
        method.terms,
        reinitialise=method.reinitialise,
        callbacks=callbacks,
        ranks=ranks or ALONE,
    )


def random_images(count: int, *shape: int) -> np.ndarray:
    """The same random pixels whenever they are asked for."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_png(path: Path, size: tuple[int, int] = (8, 8), mode: str = "L", value: int = 0) -> Path:
    """A small image file, with some structure so that no two values give the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (np.add.outer(np.arange(size[1]) * 7, np.arange(size[0]) * 3) + value) % 256
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(path)
    return path


def class_folders(root: Path, labeled: int = 4, unlabeled: int = 6) -> Path:
    """A folder with two classes and unlabelled images."""
    for label, base in (("cats", 0), ("dogs", 120)):
        for i in range(labeled):
            write_png(root / label / f"{i}.png", value=base + i)
    for i in range(unlabeled):
        write_png(root / "unlabeled" / f"{i}.png", value=60 * i)
    return root


def result(run: Path) -> dict[str, object]:
    """All that a run leaves behind, but for times of the clock."""
    with open(run / "metrics.csv", newline="") as file:
        metrics = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    final = json.loads((run / "test_metrics.json").read_text())
    del final["seconds"]
    return {
        "metrics": metrics,
        "final": final,
        "pseudo_labels": {p.name: p.read_text() for p in (run / "pseudo_labels").glob("*.csv")},
        "weights": {k: v.numpy().tobytes() for k, v in load_file(run / "best.safetensors").items()},
    }


def environment() -> dict[str, str]:
    """One thread for a child process: tests share two cores, and the order of additions must not change."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def ebpl(*arguments: object, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    command = [sys.executable, "-m", "ebpl", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment(), timeout=timeout, stdin=subprocess.DEVNULL
    )


def in_processes(
    count: int, command: list[object], variables: Callable[[int], dict[str, str]] | None = None, timeout: float = 120
) -> list[subprocess.CompletedProcess[str]]:
    """A command in several processes at once, each told its number in the environment, as torchrun would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])

    def torchrun(index: int) -> dict[str, str]:
        return {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": str(count)}

    shared = {**environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
    words = [str(word) for word in command]
    children = [
        subprocess.Popen(
            words,
            env={**shared, **(variables or torchrun)(index)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        said = [child.communicate(timeout=timeout) for child in children]
    finally:
        for child in children:
            child.kill()
    return [
        subprocess.CompletedProcess(words, child.returncode, *texts)
        for child, texts in zip(children, said, strict=True)
    ]
