"""Measures whether the energy model of finished runs models the data: `python -m experiments.samples RUN...`.

The samples are the chains of the replay buffer in a run's last checkpoint. They are judged by a classifier that is
trained on all labels and knows nothing of the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from ebpl.cli import guarded
from ebpl.data import load
from ebpl.data.dataset import ImageSet
from ebpl.data.transforms import augment
from ebpl.devices import choose_device, choose_dtype
from ebpl.errors import RunError
from ebpl.io import write_json
from ebpl.models import Architecture, HybridModel
from ebpl.models.predictions import predict, predict_with_features
from ebpl.runs import Run
from ebpl.runs.reader import METRICS_TABLE, read_table
from ebpl.sampling import FittedGaussian, as_pixels
from ebpl.training import checkpoint
from experiments.outliers import of_unseen
from experiments.results_store import record_of, without_details

if TYPE_CHECKING:
    from ebpl.models.predictions import Predictions

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
UPDATES, BATCH, RATE = 2500, 128, 1e-3
"""Of the classifier that judges."""
MOST = 10_000
"""Images of a kind that are compared."""
NEAREST = 1000
SHOWN = 10
"""Images of each class in the figure."""


def frechet_distance(first: Floats, second: Floats) -> float:
    """Between Gaussians fitted to two sets of features (N, D)."""
    covariances = [np.cov(each.astype(np.float64), rowvar=False) for each in (first, second)]
    values, vectors = np.linalg.eigh(covariances[0])
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    between = np.sqrt(np.linalg.eigvalsh(root @ covariances[1] @ root).clip(min=0)).sum()
    apart = first.mean(0, dtype=np.float64) - second.mean(0, dtype=np.float64)
    return float(apart @ apart + sum(np.trace(each) for each in covariances) - 2 * between)


def chains(run: Run) -> Pixels:
    """The samples in the last checkpoint of a run."""
    stored = checkpoint.load(run.checkpoints, print)
    buffer = (stored or {}).get("tensors", {}).get("buffer")
    if buffer is None or buffer.ndim != 4:
        raise RunError(f"{run.path} has no checkpoint with samples of images.")
    return as_pixels(buffer[torch.randperm(len(buffer), generator=torch.Generator().manual_seed(0))[:MOST]])


class Judge:
    """A classifier trained on all labels of a benchmark, and what it sees in images."""

    def __init__(self, data: ImageSet, device: torch.device, dtype: torch.dtype, updates: int = UPDATES) -> None:
        self.dtype, self.data = dtype, data
        architecture = Architecture("wide_resnet", data.shape, len(data.classes), None, {"depth": 16, "width": 4})
        self.model = architecture.build().initialise(torch.Generator().manual_seed(1)).to(device)
        self._train(device, updates)
        assert data.test is not None
        self.test = self.seen(data.test.pixels[:MOST])

    def _train(self, device: torch.device, updates: int) -> None:
        model, data, random = self.model, self.data, torch.Generator(device).manual_seed(2)
        known = np.flatnonzero(data.train.labeled)
        images = model.features.prepare(data.train.pixels[known]).to(device)
        labels = torch.from_numpy(data.train.labels[known]).to(device)
        optimizer = torch.optim.Adam(model.parameters(), RATE)
        rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=updates)
        for _ in range(updates):
            chosen = torch.randint(len(images), (BATCH,), generator=random, device=device)
            views = augment(model.features.scale(images[chosen]), data.augment, 3, random)
            with torch.autocast(device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
                loss = F.cross_entropy(model(views)[0].float(), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rates.step()
        model.eval()

    def seen(self, pixels: Pixels) -> tuple[Predictions, Floats]:
        """Predictions and features."""
        predictions, features = predict_with_features(self.model, pixels, self.dtype)
        return predictions, features.astype(np.float64)

    def distance(self, pixels: Pixels) -> float:
        """The Fréchet distance of images from the test images."""
        return frechet_distance(self.seen(pixels)[1], self.test[1])

    @property
    def accuracy(self) -> float:
        """On the test images."""
        assert self.data.test is not None
        return float((self.test[0].labels == self.data.test.labels[:MOST]).mean())


def nearest(images: Pixels, others: Pixels) -> list[float]:
    """Quantiles (1, 10 and 50 %) of the distance to the nearest of other images, in units of the range of a pixel."""
    first, second = (torch.from_numpy(each.reshape(len(each), -1) / 255.0).float() for each in (images, others))
    found = torch.cat([torch.cdist(part, second).amin(1) for part in torch.split(first[:NEAREST], 100)])
    return [float(value) for value in np.quantile(found.numpy(), (0.01, 0.1, 0.5))]


def measure(run: Run, judge: Judge, model: HybridModel, unseen: Sequence[ImageSet]) -> dict[str, Any]:
    """What the samples are like, and what the energies say."""
    data, dtype = judge.data, judge.dtype
    assert data.test is not None
    samples, random = chains(run), np.random.default_rng(0)
    noise = random.integers(0, 256, (len(samples), *samples.shape[1:]), dtype=np.uint8)
    train = data.train.pixels[random.permutation(len(data.train))[:MOST]]
    network = judge.model.features
    start = FittedGaussian(network.scale(network.prepare(train[: FittedGaussian.MOST])))
    drawn = as_pixels(start(len(samples), torch.Generator().manual_seed(0)))
    of_images, of_samples = (predict(model, each, dtype).energies for each in (data.test.pixels[:MOST], samples))
    seen = judge.seen(samples)[0]
    gap = float(read_table(run.path, METRICS_TABLE)[-1]["energy_gap"])
    return {
        "run": without_details(record_of(run)),
        "energy": {
            "gap_in_training": gap,
            "images": [float(of_images.mean()), float(of_images.std())],
            "samples": [float(of_samples.mean()), float(of_samples.std())],
        },
        "frechet": {
            "samples": judge.distance(samples),
            "uniform_noise": judge.distance(noise),
            "fitted_gaussian": judge.distance(drawn),
            "training_images": judge.distance(train),
        },
        "judge": {
            "accuracy": judge.accuracy,
            "confidence_on_samples": float(seen.confidences.mean()),
            "confidence_on_test_images": float(judge.test[0].confidences.mean()),
            "classes_of_samples": np.bincount(seen.labels, minlength=len(data.classes)).tolist(),
            "classes_of_test_images": np.bincount(data.test.labels, minlength=len(data.classes)).tolist(),
        },
        "nearest_training_image": {
            "samples": nearest(samples, train),
            "test_images": nearest(data.test.pixels, train),
        },
        "unseen": {other.name: of_unseen(model, data, other, dtype) for other in unseen},
    }


def figure(run: Run, judge: Judge, path: Path) -> None:
    """Test images to the left, samples to the right, a row for each class by the judge."""
    from PIL import Image

    assert judge.data.test is not None
    sides = []
    for pixels in (judge.data.test.pixels[:MOST], chains(run)):
        labels = judge.seen(pixels)[0].labels
        rows = [pixels[labels == label][:SHOWN] for label in range(len(judge.data.classes))]
        blank = np.full((SHOWN, *pixels.shape[1:]), 255, np.uint8)
        sides.append(np.stack([np.concatenate([row, blank[len(row) :]]) for row in rows]))
    gap = np.full((len(sides[0]), 1, *sides[0].shape[2:]), 255, np.uint8)
    grid = np.concatenate([sides[0], gap, sides[1]], 1)
    rows_, columns, height, width, channels = grid.shape
    picture = grid.transpose(0, 2, 1, 3, 4).reshape(rows_ * height, columns * width, channels).squeeze()
    Image.fromarray(picture).resize((2 * columns * width, 2 * rows_ * height), Image.Resampling.NEAREST).save(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure runs and write a record and a figure for each."""
    parser = argparse.ArgumentParser(prog="python -m experiments.samples", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--unseen", nargs="*", default=[], metavar="DATA", help="benchmarks not seen in training")
    parser.add_argument("--results", type=Path, default=Path("results/samples"), metavar="DIR")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of the classifier that judges")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.samples")


def _main(options: argparse.Namespace) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    judges: dict[str, Judge] = {}
    for path in options.runs:
        run = Run(path)
        device = choose_device(run.settings.runtime)
        dtype = choose_dtype(run.settings.runtime, device)
        if run.data_name not in judges:
            judges[run.data_name] = Judge(run.load_data(), device, dtype, options.updates)
        judge, model = judges[run.data_name], run.load_model()[0].to(device)
        name = f"{run.data_name}-{run.settings.model.network.lower()}-seed{run.settings.seed}"
        write_json(
            options.results / f"{name}.json", measure(run, judge, model, [load(each) for each in options.unseen])
        )
        figure(run, judge, options.results / f"{name}.png")
        print(options.results / f"{name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
