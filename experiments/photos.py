"""Why not a pretrained network and logistic regression? `python -m experiments.photos FOLDER...` measures it.

On the features of one frozen encoder, with the same few labels: logistic regression and nearest neighbours, label
spreading and self-training of scikit-learn, and EBPL; and EBPL that fine-tunes the encoder, or learns from scratch.
Ways that a record lacks are added to it. A folder holds class folders, split into train and test, all labelled; what is
not drawn as a label is treated as unlabelled.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ebpl
from ebpl.cli import guarded
from ebpl.cli.options import assignment
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet
from ebpl.devices import describe_environment
from ebpl.encoders import DEFAULT, encode_all, find_encoder, load_encoder
from ebpl.errors import DataError, UsageError
from ebpl.io import write_json
from ebpl.metrics import measure
from ebpl.recommendation import recommend
from ebpl.rng import parse_seeds
from ebpl.terminal import terminal_progress
from ebpl.training.probe import SQUARE_ROOT_MARGIN
from experiments.images import described, photographs, with_drawn_labels

Floats = NDArray[np.float64]
Answer = Callable[[Floats, NDArray[np.int64], Floats], Floats]
"""Probabilities for the last rows, from rows with a label (-1: unlabelled)."""
SMALL = 32
"""Pixels of images that are learned from scratch."""
LENGTH = 10.0
"""Of a feature vector: regularisation is chosen from powers of ten around what suits it."""


def _search(rows: Floats, labels: NDArray[np.int64]) -> Any:
    """The search for the C of logistic regression that has the lowest cross-validated negative log-likelihood."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    grid = {"C": [0.01, 0.1, 1, 10, 100, 1000]}
    return GridSearchCV(LogisticRegression(max_iter=1000), grid, scoring="neg_log_loss", cv=folds).fit(rows, labels)


def logistic_regression(rows: Floats, labels: NDArray[np.int64], others: Floats) -> Floats:
    """On the labelled rows."""
    known = labels >= 0
    found: Floats = _search(rows[known], labels[known]).predict_proba(others)
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
    """Scikit-learn's, on the ten nearest neighbours of each row; of rows that no label reaches it says nothing."""
    from sklearn.semi_supervised import LabelSpreading

    with np.errstate(invalid="ignore"):
        found = LabelSpreading(kernel="knn", n_neighbors=10, max_iter=100).fit(rows, labels).predict_proba(others)
    known: Floats = np.where(np.isnan(found), 1 / found.shape[1], found)
    return known


def self_training(rows: Floats, labels: NDArray[np.int64], others: Floats) -> Floats:
    """Scikit-learn's, with that logistic regression: it learns what it is at least 75 % sure of."""
    from sklearn.base import clone
    from sklearn.semi_supervised import SelfTrainingClassifier

    known = labels >= 0
    best = clone(_search(rows[known], labels[known]).best_estimator_)
    found: Floats = SelfTrainingClassifier(best).fit(rows, labels).predict_proba(others)
    return found


PROBES: dict[str, Answer] = {
    "logistic regression": logistic_regression,
    "nearest neighbours": nearest_neighbors,
    "label spreading": label_spreading,
    "self-training": self_training,
}
ON_FEATURES, LAST_BLOCK, FROM_SCRATCH = "EBPL on features", "EBPL with the last block fine-tuned", "EBPL from scratch"
TRAINED = {
    ON_FEATURES: "features",
    LAST_BLOCK: "fine-tuned-end",
    "EBPL fine-tuned": "fine-tuned",
    FROM_SCRATCH: "quick",
}
"""What is trained by EBPL, with its preset."""
METHODS = {
    "probes": list(PROBES),
    "features": [ON_FEATURES],
    "fine-tuned-end": [LAST_BLOCK],
    "fine-tuned": ["EBPL fine-tuned"],
    "from-scratch": [FROM_SCRATCH],
}
"""Ways to learn by the words of the command line."""
RECOMMENDED = "EBPL as recommended"
"""The way that `ebpl inspect` recommends for these images and labels."""


def normalised(train: NDArray[np.float32], test: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Features of one length, centred on the training images, of one length again."""

    def unit(rows: Floats) -> Floats:
        of_one_length: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return of_one_length

    center = unit(train.astype(np.float64)).mean(0)
    first, second = (LENGTH * unit(unit(rows.astype(np.float64)) - center) for rows in (train, test))
    return first, second


def suited(
    train: NDArray[np.float32], test: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[Floats, Floats, bool]:
    """Normalised features or, by the same rule as for EBPL, normalised square roots of them; and which they are."""
    roots = [np.sign(rows) * np.sqrt(np.abs(rows)) for rows in (train, test)]
    ways, known = [normalised(train, test), normalised(roots[0], roots[1])], labels >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's on convergence
        plain, root = (-_search(rows[known], labels[known]).best_score_ for rows, _ in ways)
    better = bool(root < (1 - SQUARE_ROOT_MARGIN) * plain)
    return *ways[better], better


def probed(images: ImageSet, settings: Settings, ways: Sequence[str]) -> dict[str, Any]:
    """Measures of these probes for one draw of labels, each with its seconds; encoding is not counted."""
    if not ways:
        return {}
    assert images.test is not None
    assert settings.model.encoder is not None
    encoder = load_encoder(settings.model.encoder)
    labels = with_drawn_labels(images, settings).train.labels
    rows, others, root = suited(encoder.encode(images.train.pixels), encoder.encode(images.test.pixels), labels)
    found: dict[str, Any] = {}
    for name in ways:
        begun = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn's on convergence and on classes that were never chosen
            probabilities = PROBES[name](rows, labels, others)
        seconds = time.monotonic() - begun
        found[name] = {**measure(probabilities, images.test.labels), "seconds": seconds, "square_root": root}
    return found


def trained(images: ImageSet, settings: Settings) -> dict[str, Any]:
    """Measures of EBPL with these settings, with its seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = ebpl.train(images, settings, run=Path(folder) / "run")
        return {**run.metrics()["metrics"], "seconds": time.monotonic() - begun}


def recommended(images: ImageSet, settings: Settings) -> dict[str, Any]:
    """What `ebpl inspect` recommends where only the labels that these settings draw are known, as a way to learn."""
    found = recommend(with_drawn_labels(images, settings), settings)
    ways = {name: way for way, name in TRAINED.items()}
    if found.preset not in ways:
        raise UsageError(f"{found.preset} is recommended, which is not among the ways that are compared.")
    environment = describe_environment(settings.runtime)
    return {
        "way": ways[found.preset],
        "encoder_accuracy": found.encoder_accuracy,
        "plain_accuracy": found.plain_accuracy,
        "square_root": found.square_root,
        **{name: environment[name] for name in ("commit", "device")},
    }


Measured = dict[tuple[str, int, str], list[dict[str, float]]]
"""Measures of all seeds, by dataset, labels a class and way to learn."""


def _records(results: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(results.glob("*.json")):
        yield json.loads(path.read_text("utf-8"))


def recorded(results: Path) -> Measured:
    """What the records hold."""
    groups: Measured = {}
    for record in _records(results):
        ways = record["methods"]
        if (advised := record.get("recommended", {}).get("way")) in ways:
            ways = {**ways, RECOMMENDED: ways[advised]}
        for way, found in ways.items():
            groups.setdefault((record["data"]["name"], record["labels_per_class"], way), []).append(found)
    return groups


def advised_ways(results: Path) -> dict[tuple[str, int], list[str]]:
    """What was recommended for each seed, by dataset and labels a class."""
    found: dict[tuple[str, int], list[str]] = {}
    for record in _records(results):
        if "recommended" in record:
            group = record["data"]["name"], record["labels_per_class"]
            found.setdefault(group, []).append(record["recommended"]["way"])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write a record for each folder, number of labels and seed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.photos", description=__doc__)
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="FOLDER")
    ways = [*METHODS, "recommended"]
    add("--methods", nargs="+", choices=ways, default=["probes", "features"], metavar="M", help=", ".join(ways))
    add("--labels", nargs="*", type=int, default=[5, 10, 25], metavar="N", help="labels per class")
    add("--seeds", default="3-7")
    add("--encoder", default="efficientnet_lite0")
    add("--set", nargs="*", default=[], type=assignment, metavar="X=Y", help="settings of what is trained")
    add("--tune", action="store_true", help="measure on some of the training images, not on test images")
    add("--results", type=Path, default=Path("results/photos"), metavar="DIR")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.photos")


def _main(options: argparse.Namespace) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    encoder = find_encoder(options.encoder)
    if "recommended" in options.methods and encoder.name != find_encoder(DEFAULT).name:
        raise UsageError(f"What is recommended is of the encoder {DEFAULT}; leave out --encoder.")
    wanted = [way for method in options.methods for way in METHODS.get(method, [])]
    for folder in options.folders:
        at_size = functools.cache(functools.partial(photographs, folder, tune=options.tune))
        images = at_size(encoder.size)
        if not images.train.labeled.all():
            raise DataError(f"{folder}: every image must have a label, to be hidden or to be measured with.")
        if {"probes", "features"} & set(options.methods):
            encode_all(images, options.encoder, terminal_progress())
        for few in options.labels:
            for seed in parse_seeds(options.seeds):
                path = options.results / f"{images.name}-{Path(options.encoder).stem}-{few}-seed{seed}.json"
                common = {
                    "data.labels_per_class": few,
                    "data.validation_fraction": 0.0,
                    "data.class_mix": "labels",  # as for the probes
                    "seed": seed,
                }
                named = {"model.encoder": options.encoder, **common}
                record: dict[str, Any] = (
                    json.loads(path.read_text("utf-8"))
                    if path.is_file()
                    else {
                        **described(images, preset("features", named)),
                        "labels_per_class": few,
                        "threads": torch.get_num_threads(),
                        "methods": {},
                    }
                )
                if "recommended" in options.methods and "recommended" not in record:
                    record["recommended"] = recommended(images, preset("features", named))
                    write_json(path, record)
                advised = [record["recommended"]["way"]] if "recommended" in options.methods else []
                missing = [way for way in dict.fromkeys([*wanted, *advised]) if way not in record["methods"]]
                probes = [way for way in missing if way in PROBES]
                found = probed(images, preset("features", named), probes)
                for way in (way for way in missing if way in TRAINED):
                    chosen = preset(TRAINED[way], common if way == FROM_SCRATCH else named).changed(dict(options.set))
                    found[way] = trained(at_size(SMALL if way == FROM_SCRATCH else encoder.size), chosen)
                    record.setdefault("trained", {})[way] = described(images, chosen)
                if found:
                    record["methods"] |= found
                    write_json(path, record)
                    shown = {
                        way: f"{100 * each['accuracy']:.1f}/{100 * each['ece']:.1f}" for way, each in found.items()
                    }
                    print(path.stem, shown, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
