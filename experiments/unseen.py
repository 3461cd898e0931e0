"""Which score tells images of another kind? `python -m experiments.unseen FOLDER FOLDER...` measures it.

The preset features, or one that fine-tunes its encoder, is trained on each folder, with few labels. Its new images are
then the test images of the same folder, which belong, and those of the other folders, which do not. A folder is as for
`experiments.photos`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

import ebpl
from ebpl.cli import guarded
from ebpl.config import Settings
from ebpl.config.presets import FINE_TUNED, preset
from ebpl.data.dataset import ImageSet
from ebpl.encoders import encode_all, find_encoder, load_encoder
from ebpl.errors import UsageError
from ebpl.io import write_json
from ebpl.models import HybridModel
from ebpl.models.outliers import fit_detector, outlier_limit
from ebpl.models.predictions import predict, predict_with_features
from ebpl.rng import parse_seeds
from ebpl.terminal import terminal_progress
from experiments.images import described, photographs, with_drawn_labels
from experiments.outliers import auroc

Floats = NDArray[np.float64]
Inputs = Tensor | NDArray[np.uint8]
"""The features of an encoder, or pixels for one that was fine-tuned."""
Score = Callable[[Tensor], Floats]
"""High for images unlike the training images, from the features of an encoder."""
LIMITS = {"energy": "training_energies", "reconstruction error": "training_reconstruction_errors"}
"""Scores that a finished run can flag images by."""
NEIGHBOR = 10
LABELS, QUANTILE = 10, 0.99


def scores(model: HybridModel, train: Tensor, labels: NDArray[np.int64]) -> dict[str, Score]:
    """Other ways to tell whether images belong to the training images, few of which have a label (-1: none)."""
    said, features = predict_with_features(model, train)
    known = labels >= 0
    of_labels = fit_detector(features[known], labels[known])
    of_predictions = fit_detector(features, np.where(known, labels, said.labels))
    of_all = fit_detector(features, np.zeros(len(features), int))
    center = F.normalize(train).mean(0)

    def components(images: Tensor) -> NDArray[np.float32]:
        return predict_with_features(model, images)[1]

    def relative(images: Tensor) -> Floats:
        found = components(images)
        return of_predictions.distances(found) - of_all.distances(found)

    def neighbors(images: Tensor) -> Floats:
        rows, others = (F.normalize(F.normalize(each) - center) for each in (images, train))
        return -(rows @ others.T).topk(NEIGHBOR).values[:, -1].double().numpy()

    return {
        "Mahalanobis distance": lambda images: of_labels.distances(components(images)),
        "relative Mahalanobis distance": relative,
        "nearest neighbours": neighbors,
    }


def measured(name: str, images: ImageSet, settings: Settings, test: Mapping[str, Inputs]) -> dict[str, Any]:
    """For each score the AUROC on images of each other kind, and which share of all new images is flagged."""
    with tempfile.TemporaryDirectory() as folder:
        run = ebpl.train(images, settings, run=Path(folder) / "run")
        model, result = run.load_model()[0], run.metrics()
    said = {kind: predict(model, each) for kind, each in test.items()}
    values: dict[str, dict[str, Floats]] = {
        "confidence": {kind: -each.confidences for kind, each in said.items()},
        "energy": {kind: each.energies for kind, each in said.items()},
    }
    if settings.model.frozen_encoder:
        train = torch.from_numpy(load_encoder(settings.model.frozen_encoder).encode(images.train.pixels))
        labels = with_drawn_labels(images, settings).train.labels
        for score, of in scores(model, train, labels).items():
            values[score] = {kind: of(each) for kind, each in test.items() if isinstance(each, Tensor)}
    errors = {kind: each.reconstruction_errors for kind, each in said.items()}
    values["reconstruction error"] = {kind: each for kind, each in errors.items() if each is not None}
    found = {
        score: {kind: auroc(each[name], others) for kind, others in each.items() if kind != name}
        for score, each in values.items()
    }
    flagged: dict[str, dict[str, float]] = {}
    for score, entry in LIMITS.items():
        limit = outlier_limit({entry: result[entry]}, QUANTILE)
        assert limit is not None
        flagged[score] = {kind: float(limit.exceeded(each).mean()) for kind, each in said.items()}
    return {"auroc": found, "flagged": flagged, "accuracy": result["metrics"]["accuracy"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write a record for each folder and seed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.unseen", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", default="3-7")
    parser.add_argument("--encoder", default="efficientnet_lite0")
    parser.add_argument("--fine-tune", choices=["none", *FINE_TUNED], default="none", help="what of it learns too")
    parser.add_argument("--at-most", type=int, metavar="N", help="of more test images of a folder, take so many")
    parser.add_argument("--results", type=Path, default=Path("results/unseen"), metavar="DIR")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.unseen")


def _main(options: argparse.Namespace) -> int:
    if len(options.folders) < 2:
        raise UsageError("Give at least two folders: images of one are unseen for a model of the other.")
    encoder = find_encoder(options.encoder)

    name = FINE_TUNED.get(options.fine_tune, "features")
    learned = {"model.encoder": options.encoder, "model.fine_tune": options.fine_tune}
    chosen = preset(name, learned, labels_per_class=LABELS, validation_fraction=0.0)
    frozen = chosen.model.frozen_encoder

    test: dict[str, Inputs] = {}
    for folder in options.folders:  # all are encoded first; pixels of one folder at a time are in memory
        images = photographs(folder, encoder.size)
        assert images.test is not None
        every = -(-len(images.test) // options.at_most) if options.at_most else 1
        pixels = images.test.pixels[::every]
        encode_all(images, frozen, terminal_progress())
        test[images.name] = torch.from_numpy(load_encoder(frozen).encode(pixels)) if frozen else pixels.copy()
    for folder in options.folders:
        images = photographs(folder, encoder.size)
        for seed in parse_seeds(options.seeds):
            learns = "" if frozen else f"-fine-tuned-{options.fine_tune}"
            path = options.results / f"{images.name}-{Path(options.encoder).stem}{learns}-seed{seed}.json"
            if path.is_file():
                continue
            settings = chosen.changed(seed=seed)
            record = {
                **described(images, settings),
                "labels_per_class": LABELS,
                "quantile": QUANTILE,
                **measured(images.name, images, settings, test),
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, record)
            print(path.stem, record["auroc"]["energy"], record["auroc"]["reconstruction error"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
