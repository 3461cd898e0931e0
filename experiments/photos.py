"""Why not a pretrained network and logistic regression? `python -m experiments.photos FOLDER...` measures it.

On the features of one frozen encoder, with the same few labels: logistic regression and nearest neighbours, label
spreading and self-training of scikit-learn, and EBPL; and EBPL from nothing. A folder holds class folders, split into
train and test, all labelled; what is not drawn as a label is treated as unlabelled.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ebpl
from ebpl.cli import guarded
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data import load
from ebpl.data.dataset import Images, ImageSet
from ebpl.data.split import split_for
from ebpl.devices import describe_environment
from ebpl.encoders import encode_all, find_encoder, load_encoder
from ebpl.errors import DataError
from ebpl.io import write_json
from ebpl.metrics import measure
from ebpl.rng import parse_seeds
from ebpl.terminal import terminal_progress

Floats = NDArray[np.float64]
Answer = Callable[[Floats, NDArray[np.int64], Floats], Floats]
"""Probabilities for the last rows, from rows with a label (-1: unlabelled)."""
SMALL = 32
"""Pixels of images that are learned from nothing."""
TESTED = 2000
"""Images that are kept for testing where the data brings none."""
LENGTH = 10.0
"""Of a feature vector: regularisation is chosen from powers of ten around what suits it."""


def _regression(rows: Floats, labels: NDArray[np.int64]) -> Any:
    """Logistic regression whose C has the lowest cross-validated negative log-likelihood."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    grid = {"C": [0.01, 0.1, 1, 10, 100, 1000]}
    search = GridSearchCV(LogisticRegression(max_iter=1000), grid, scoring="neg_log_loss", cv=folds)
    return search.fit(rows, labels).best_estimator_


def logistic_regression(rows: Floats, labels: NDArray[np.int64], others: Floats) -> Floats:
    """On the labelled rows."""
    known = labels >= 0
    found: Floats = _regression(rows[known], labels[known]).predict_proba(others)
    return found


def nearest_neighbors(rows: Floats, labels: NDArray[np.int64], others: Floats) -> Floats:
    """Votes of the nearest labelled rows, as many as cross-validated accuracy likes best."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier

    known = labels >= 0
    search = GridSearchCV(KNeighborsClassifier(weights="distance"), {"n_neighbors": [1, 3, 5, 10]}, cv=5)
    found: Floats = search.fit(rows[known], labels[known]).predict_proba(others)
    return found


def label_spreading(rows: Floats, labels: NDArray[np.int64], others: Floats) -> Floats:
    """Scikit-learn's, on the ten nearest neighbours of each row."""
    from sklearn.semi_supervised import LabelSpreading

    found: Floats = LabelSpreading(kernel="knn", n_neighbors=10, max_iter=100).fit(rows, labels).predict_proba(others)
    return found


def self_training(rows: Floats, labels: NDArray[np.int64], others: Floats) -> Floats:
    """Scikit-learn's, with that logistic regression: it learns what it is at least 75 % sure of."""
    from sklearn.base import clone
    from sklearn.semi_supervised import SelfTrainingClassifier

    known = labels >= 0
    best = clone(_regression(rows[known], labels[known]))
    found: Floats = SelfTrainingClassifier(best).fit(rows, labels).predict_proba(others)
    return found


PROBES: dict[str, Answer] = {
    "logistic regression": logistic_regression,
    "nearest neighbours": nearest_neighbors,
    "label spreading": label_spreading,
    "self-training": self_training,
}


def with_test_images(images: ImageSet) -> ImageSet:
    """The data without validation images; where it brings no test images, some are drawn, the same for every seed."""
    if images.test is not None:
        return replace(images, validation=None)
    order = np.random.default_rng(0).permutation(len(images.train))
    count = min(TESTED, len(order) // 3)
    parts: list[Images] = [images.train.take(np.sort(order[part])) for part in (slice(count), slice(count, None))]
    return replace(images, test=parts[0], train=parts[1], validation=None)


def normalised(train: NDArray[np.float32], test: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Features of one length, centred on the training images, of one length again."""

    def unit(rows: Floats) -> Floats:
        of_one_length: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return of_one_length

    center = unit(train.astype(np.float64)).mean(0)
    first, second = (LENGTH * unit(unit(rows.astype(np.float64)) - center) for rows in (train, test))
    return first, second


def compared(images: ImageSet, settings: Settings, small: ImageSet | None) -> dict[str, Any]:
    """Measures of every way for one draw of labels, each with its seconds; encoding is not counted.

    From nothing it is learned on the same images at a smaller size, where they are given.
    """
    assert images.test is not None
    assert settings.model.encoder is not None
    encoder = load_encoder(settings.model.encoder)
    rows, others = normalised(*(encoder.encode(part.pixels) for part in (images.train, images.test)))
    drawn = split_for(images, settings).labeled
    labels = np.full(len(images.train), -1)
    labels[drawn] = images.train.labels[drawn]
    found: dict[str, Any] = {}
    for name, answer in PROBES.items():
        begun = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn's on convergence and on classes that were never chosen
            probabilities = answer(rows, labels, others)
        found[name] = {**measure(probabilities, images.test.labels), "seconds": time.monotonic() - begun}
    few = settings.data.labels_per_class
    ways = {"EBPL on features": (images, settings)}
    if small is not None:
        quick = preset("quick", labels_per_class=few, validation_fraction=0.0, seed=settings.seed)
        ways["EBPL from nothing"] = (small, quick)
    for name, (seen, chosen) in ways.items():
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            run = ebpl.train(seen, chosen, run=Path(folder) / "run")
            found[name] = {**run.metrics()["metrics"], "seconds": time.monotonic() - begun}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write a record for each folder, number of labels and seed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.photos", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--labels", nargs="*", type=int, default=[5, 10, 25], metavar="N", help="labels per class")
    parser.add_argument("--seeds", default="3-7")
    parser.add_argument("--encoder", default="efficientnet_lite0")
    parser.add_argument("--from-nothing", action="store_true", help="also train the preset quick on 32 pixels")
    parser.add_argument("--results", type=Path, default=Path("results/photos"), metavar="DIR")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.photos")


def _main(options: argparse.Namespace) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    encoder = find_encoder(options.encoder)
    for folder in options.folders:
        images = with_test_images(load(folder, image_size=encoder.size, skip_unreadable=True))
        if not images.train.labeled.all():
            raise DataError(f"{folder}: every image must have a label, to be hidden or to be measured with.")
        small = with_test_images(load(folder, image_size=SMALL, skip_unreadable=True)) if options.from_nothing else None
        encode_all(images, options.encoder, terminal_progress())
        for few in options.labels:
            for seed in parse_seeds(options.seeds):
                path = options.results / f"{images.name}-{Path(options.encoder).stem}-{few}-seed{seed}.json"
                if path.is_file():
                    continue
                chosen = preset("features", labels_per_class=few, validation_fraction=0.0, seed=seed)
                settings = chosen.changed({"model.encoder": options.encoder})
                record = {
                    "data": {"name": images.name, "fingerprint": images.fingerprint()},
                    "labels_per_class": few,
                    "settings": settings.to_dict(),
                    "environment": describe_environment(settings.runtime),
                    "threads": torch.get_num_threads(),
                    "methods": compared(images, settings, small),
                }
                write_json(path, record)
                shown = {
                    name: f"{100 * way['accuracy']:.1f}/{100 * way['ece']:.1f}"
                    for name, way in record["methods"].items()
                }
                print(path.stem, shown, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
