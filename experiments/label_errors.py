"""Are wrong labels found, and does the learning curve keep its word? `python -m experiments.label_errors` measures it.

5 % of the labels are exchanged, for any other class or for the class that theirs is most often taken for. Measured is
how many of them are in the first tenth of the list. Blood and Fashion are judged by colours and textures, with `--by
encoder` by features of an encoder too, and with `--by network` also by a network that was trained on the wrong labels;
a FOLDER of class folders, split into train and test, by the features of an encoder. There, also what 50 more labels
bring is compared with the interval of the report.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

import ebpl
from ebpl.cli import guarded
from ebpl.comparison import colors_and_textures
from ebpl.config import RuntimeSettings, Settings
from ebpl.config.presets import preset
from ebpl.data import load
from ebpl.data.dataset import Images, ImageSet
from ebpl.devices import describe_environment
from ebpl.encoders import load_encoder
from ebpl.io import write_json
from ebpl.labeling.label_errors import (
    Labelled,
    best_decay,
    cross_validated,
    deal,
    find_label_errors,
    independent_rows,
    labelled,
)
from ebpl.labeling.learning_curve import MORE, learning_curve
from ebpl.models.encoder import EncodedImages
from ebpl.rng import parse_seeds
from ebpl.training.probe import logistic_regression
from experiments.images import photographs

Labels = NDArray[np.int64]
SHARE, FIRST = 0.05, 0.1
"""Of labels that are exchanged, and of the list that is looked at."""
KINDS = ("random", "confusable")
WAYS = ("plain", "encoder", "network")
COUNTS, FEW_COUNTS = (100, 500), (100,)
"""Labels of each class, and those that encoders and networks judge too."""
CURVES = (5, 10, 20, 50)
"""Labels of each class that learning curves start from."""
ENCODER = "efficientnet_lite0"
BENCHMARKS = ("blood", "fashion")


def exchanged(labels: Labels, kind: str, confused: Labels, seed: int) -> tuple[Labels, Labels]:
    """Labels of which some are wrong, and the positions of these; `confused` is what each class is taken for."""
    random, classes = np.random.default_rng(seed), len(confused)
    at = random.permutation(len(labels))[: round(SHARE * len(labels))]
    others = (labels[at] + random.integers(1, classes, len(at))) % classes
    wrong = labels.copy()
    wrong[at] = others if kind == "random" else confused[labels[at]]
    return wrong, at


def confusions(known: Labelled) -> Labels:
    """The class that each is most often taken for."""
    labels = known.images.labels
    said = cross_validated([torch.from_numpy(known.rows[0])], labels, known.seed).argmax(1)
    matrix = np.zeros((len(known.classes),) * 2, np.int64)
    np.add.at(matrix, (labels, said), 1)
    np.fill_diagonal(matrix, -1)
    taken: Labels = matrix.argmax(1)
    return taken


def found(known: Labelled, wrong: Labels) -> dict[str, float]:
    """How well the list finds the labels at these positions."""
    check = find_label_errors(known)
    positions = known.positions[wrong]
    first = [error.index for error in check.errors][: round(FIRST * len(known.images))]
    return {
        "labels": len(known.images),
        "exchanged": len(wrong),
        "first": len(first),
        "found": int(np.isin(positions, first).sum()),
        "listed": len(check.errors),
        "accuracy": check.accuracy,
    }


def some(images: ImageSet, count: int, seed: int) -> ImageSet:
    """So many training images of each class."""
    order = np.random.default_rng(seed).permutation(len(images.train))
    labels = images.train.labels[order]
    at = np.concatenate([order[labels == c][:count] for c in range(len(images.classes))])
    return ImageSet(images.name, images.classes, images.train.take(at))


def relabelled(images: ImageSet, labels: Labels) -> ImageSet:
    """The same images with these labels."""
    return replace(images, train=Images(images.train.pixels, labels, images.train.paths))


def judged_by_run(images: ImageSet, settings: Settings) -> Labelled:
    """The labels as a run that was trained on them sees them."""
    with tempfile.TemporaryDirectory() as folder:
        run = ebpl.train(images, settings, run=Path(folder) / "run")
        return labelled(run, run.load_model()[0], images)


def judged_plainly(images: ImageSet, seed: int) -> Labelled:
    """The labels as colours and textures see them."""
    rows = (colors_and_textures(images.train.pixels).numpy(),)
    at = np.arange(len(images.train))
    return Labelled(images.train, at, images.classes, rows, "colours and textures", seed)


def benchmark(name: str, seed: int, by: str) -> Iterator[dict[str, Any]]:
    """Wrong labels of a benchmark, judged in one of the `WAYS`."""
    images = load(name)
    settings = preset("quick", pseudo_labels="none", validation_fraction=0.0, seed=seed)
    for count in COUNTS if by == "plain" else FEW_COUNTS:
        clean = some(images, count, seed)
        plain = judged_plainly(clean, seed)
        rows = independent_rows(clean.train.pixels) if by == "encoder" else plain.rows
        confused = confusions(plain)
        for kind in KINDS:
            labels, wrong = exchanged(clean.train.labels, kind, confused, seed)
            told = {"labels_per_class": count, "kind": kind, "features": by}
            if by == "network":
                known = judged_by_run(relabelled(clean, labels), settings)
            else:
                known = replace(plain, images=relabelled(clean, labels).train, rows=rows)
            yield {**told, **found(known, wrong)}


def of_photographs(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Wrong labels of photographs, all of which are labelled, on the features of an encoder."""
    images = photographs(folder)
    settings = preset("features", epochs=1, pseudo_labels="none", validation_fraction=0.0, seed=seed)
    known = judged_by_run(images, settings.changed({"model.encoder": ENCODER}))
    confused = confusions(known)
    for kind in KINDS:
        labels, wrong = exchanged(known.images.labels, kind, confused, seed)
        changed = replace(known, images=Images(known.images.pixels, labels, known.images.paths))
        yield {"kind": kind, "features": ENCODER, **found(changed, wrong)}


def curves(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """What more labels bring by the learning curve, and what they bring."""
    images = photographs(folder)
    assert images.test is not None
    encoder = load_encoder(ENCODER)
    rows, others = (torch.from_numpy(encoder.encode(part.pixels)) for part in (images.train, images.test))
    backbone = EncodedImages(ENCODER, encoder.digest, encoder.dimension, preset("features").model.components)
    backbone.fit(rows)
    rows, others = backbone.scale(rows), backbone.scale(others)
    labels, random = images.train.labels, np.random.default_rng(seed)
    order = random.permutation(len(labels))
    for count in CURVES:
        at = np.concatenate([order[labels[order] == c][:count] for c in range(len(images.classes))])
        curve = learning_curve(rows[at].numpy(), labels[at], seed)
        if curve is None:
            continue
        more = np.concatenate([at, random.permutation(np.setdiff1d(order, at))[:MORE]])
        before, after = (_accuracy(rows[each], labels[each], others, images.test.labels) for each in (at, more))
        told = {"labels_per_class": count, "labels": len(at), "more": MORE, "predicted": curve.gain}
        yield {**told, "interval": list(curve.interval), "accuracy": before, "gain": after - before}


def _accuracy(rows: torch.Tensor, labels: Labels, others: torch.Tensor, truth: Labels) -> float:
    """Of logistic regression on test images."""
    decay = best_decay(rows, labels, deal(labels, np.random.RandomState(0)))[0]
    weight, bias = logistic_regression(rows, F.one_hot(torch.from_numpy(labels)).float(), decay)
    return float((F.linear(others, weight, bias).argmax(1).numpy() == truth).mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write a record for each dataset and seed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.label_errors", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="class folders of photographs")
    parser.add_argument("--seeds", default="3-7")
    parser.add_argument("--by", choices=WAYS, default="plain", help="how blood and fashion are judged: %(choices)s")
    parser.add_argument("--results", type=Path, default=Path("results/label_errors"), metavar="DIR")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.label_errors")


def _main(options: argparse.Namespace) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    for seed in parse_seeds(options.seeds):
        work: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {}
        if options.folders:
            for folder in options.folders:
                work[f"{folder.name}-{ENCODER}"] = partial(of_photographs, folder, seed)
                work[f"{folder.name}-curve"] = partial(curves, folder, seed)
        else:
            work |= {f"{name}-{options.by}": partial(benchmark, name, seed, options.by) for name in BENCHMARKS}
        for name, measured in work.items():
            path = options.results / f"{name}-seed{seed}.json"
            if path.is_file():
                continue
            rows = list(measured())
            data = {"name": name.partition("-")[0]}
            write_json(
                path, {"data": data, "seed": seed, "environment": describe_environment(RuntimeSettings()), "rows": rows}
            )
            print(path.stem, *rows, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
