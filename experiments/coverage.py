"""Do prediction sets keep their promise with few labels? `python -m experiments.coverage FOLDER...` measures it.

Models are trained with ten labels a class, on digits from their pixels and on folders of photographs from the features
of an encoder. Of the test images, calibration labels are drawn again and again; sets are measured on the others, which
are also the unlabelled images of the semi-supervised form. Where MAPIE is installed, its sets from the same
probabilities and labels are measured too.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebpl
from ebpl.calibration.conformal import METHODS, calibrate
from ebpl.cli import guarded
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data import load
from ebpl.data.dataset import ImageSet
from ebpl.io import write_json
from ebpl.metrics.calibration import Floats, Labels
from ebpl.models.predictions import predict
from ebpl.rng import parse_seeds
from experiments.images import described, photographs

COVERAGE = 0.9
LABELS = (20, 50, 100)
DRAWS = 20
LABELS_PER_CLASS = 10
MAPIE = ("lac", "aps", "raps")
Sets = Callable[[Floats, Labels, Floats], NDArray[np.bool_]]
"""From the probabilities and labels of calibration images to the sets of others with these probabilities."""


def ours(method: str, **how: Any) -> Sets:
    """Prediction sets of EBPL."""
    return lambda known, labels, others: calibrate(known, labels, COVERAGE, method, **how).contains(others)


def semi_supervised(method: str) -> Sets:
    """The same, with the others as unlabelled images."""
    return lambda known, labels, others: ours(method, unlabelled=others)(known, labels, others)


def mapie(method: str) -> Sets:
    """Prediction sets of MAPIE from the same probabilities."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
        """A classifier whose probabilities are its input."""

        def fit(self, X: Floats, y: Labels) -> Given:
            """Nothing is learned."""
            self.classes_ = np.arange(X.shape[1])
            return self

        def predict_proba(self, X: Floats) -> Floats:
            """The input."""
            return X

        def predict(self, X: Floats) -> Labels:
            """The most probable class."""
            best: Labels = X.argmax(1)
            return best

    def sets(known: Floats, labels: Labels, others: Floats) -> NDArray[np.bool_]:
        fitted = Given().fit(known, labels)
        model = SplitConformalClassifier(fitted, COVERAGE, conformity_score=method, prefit=True, random_state=0)
        return np.asarray(model.conformalize(known, labels).predict_set(others)[1][:, :, 0], bool)

    return sets


def ways() -> dict[str, Sets]:
    """Everything that is compared, by name; MAPIE's if it is installed."""
    found = {method: ours(method) for method in METHODS}
    found |= {f"{method}, semi-supervised": semi_supervised(method) for method in ("lac", "random-aps")}
    if importlib.util.find_spec("mapie") is None:
        return found
    return found | {f"MAPIE {method}": mapie(method) for method in MAPIE}


def measured(probabilities: Floats, labels: Labels, seed: int) -> dict[str, Any]:
    """Coverage and mean size of the sets of each way, for each number of labels and draw."""
    found: dict[str, Any] = {}
    for few in LABELS:
        for draw in range(DRAWS):
            order = np.random.default_rng([seed, few, draw]).permutation(len(labels))
            known, others = order[:few], order[few:]
            for name, sets in ways().items():
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # MAPIE's on classes without a calibration label
                        inside = sets(probabilities[known], labels[known], probabilities[others])
                except ValueError:  # MAPIE's RAPS cannot split so few labels
                    continue
                rows = found.setdefault(name, {}).setdefault(str(few), {"coverage": [], "size": []})
                rows["coverage"].append(round(float(inside[np.arange(len(others)), labels[others]].mean()), 5))
                rows["size"].append(round(float(inside.sum(1).mean()), 4))
    return found


def datasets(folders: Sequence[Path]) -> Iterator[tuple[ImageSet, Settings]]:
    """Digits and these folders, each with the settings that it is learned with."""
    few = {"labels_per_class": LABELS_PER_CLASS, "validation_fraction": 0.0}
    yield load("digits"), preset("quick", **few)
    for folder in folders:
        yield photographs(folder), preset("features", **few)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write a record for each dataset and seed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.coverage", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="class folders of photographs")
    parser.add_argument("--seeds", default="3-7")
    parser.add_argument("--results", type=Path, default=Path("results/coverage"), metavar="DIR")
    parser.add_argument("--predictions", type=Path, metavar="DIR", help="keep the probabilities here, or take them")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.coverage")


def _main(options: argparse.Namespace) -> int:
    for folder in (options.results, options.predictions):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    for images, chosen in datasets(options.folders):
        assert images.test is not None
        for seed in parse_seeds(options.seeds):
            name, settings = f"{images.name}-seed{seed}", chosen.changed(seed=seed)
            path = options.results / f"{name}.json"
            if path.is_file():
                continue
            kept = options.predictions / f"{name}.npy" if options.predictions else None
            if kept and kept.is_file():
                probabilities = np.load(kept, allow_pickle=False)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    run = ebpl.train(images, settings, run=Path(folder) / "run")
                    probabilities = predict(run.load_model()[0], images.test.pixels).probabilities
                if kept:
                    np.save(kept, probabilities)
            accuracy = float((probabilities.argmax(1) == images.test.labels).mean())
            record = {
                **described(images, settings),
                "coverage": COVERAGE,
                "test_images": len(images.test),
                "accuracy": accuracy,
                "ways": measured(probabilities, images.test.labels, seed),
            }
            write_json(path, record)
            print(name, f"{100 * accuracy:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
