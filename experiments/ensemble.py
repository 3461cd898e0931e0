"""What are several seeds worth together? `python -m experiments.ensemble FOLDER...` measures it.

Ten labels a class are drawn once, so that all seeds learn from the same ones, on digits from their pixels and on
folders of photographs from the features of an encoder. The mean of their probabilities is measured beside each of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ebpl
from ebpl.cli import guarded
from ebpl.inference.ensemble import Ensemble
from ebpl.io import write_json
from ebpl.metrics import measure
from ebpl.models.predictions import predict
from ebpl.rng import parse_seeds
from experiments.coverage import datasets
from experiments.images import described, with_drawn_labels


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write a record for each dataset and draw of labels."""
    parser = argparse.ArgumentParser(prog="python -m experiments.ensemble", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="class folders of photographs")
    parser.add_argument("--seeds", default="0-4", help="the members")
    parser.add_argument("--draws", default="3", help="seeds that draw labels")
    parser.add_argument("--results", type=Path, default=Path("results/ensemble"), metavar="DIR")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.ensemble")


def _main(options: argparse.Namespace) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    seeds = parse_seeds(options.seeds)
    for images, settings in datasets(options.folders):
        for draw in parse_seeds(options.draws):
            path = options.results / f"{images.name}-labels{draw}.json"
            if path.is_file():
                continue
            labelled = with_drawn_labels(images, settings.changed(seed=draw))
            assert labelled.test is not None
            pixels, truth = labelled.test.pixels, labelled.test.labels
            with tempfile.TemporaryDirectory() as folder:
                runs = ebpl.train(labelled, settings, seeds=seeds, run=Path(folder) / "seeds")
                members = [measure(predict(run.load_model()[0], pixels).probabilities, truth) for run in runs]
                together = measure(Ensemble(runs).predict(pixels).probabilities, truth)
            record = {
                **described(images, settings),
                "labels_drawn_by_seed": draw,
                "members": dict(zip(map(str, seeds), members, strict=True)),
                "ensemble": together,
            }
            write_json(path, record)
            print(path.stem, f"{100 * together['accuracy']:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
