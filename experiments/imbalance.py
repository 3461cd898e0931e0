"""What is the class mix worth? `python -m experiments.imbalance FOLDER... --datasets NAME...` measures it.

Data is made imbalanced: the most frequent class has 10 or 50 times the images of the rarest, with the others evenly
between on a logarithmic scale; which class is which is drawn by the seed. Of the labels each class has ten (balanced),
or they are as many, drawn from the mix (random), or most are of the rarest class (tail-heavy). Test images have the
mix of the unlabelled ones. Trained with the labels' mix, with one that is estimated, and with the true one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebpl
from ebpl.cli import guarded
from ebpl.config import Settings
from ebpl.config.presets import nearest_preset, preset
from ebpl.data import load
from ebpl.data.dataset import Images, ImageSet
from ebpl.encoders import encode_all
from ebpl.errors import DataError
from ebpl.io import write_json
from ebpl.metrics import measure
from ebpl.metrics.calibration import Floats, expected_calibration_error
from ebpl.models.predictions import predict
from ebpl.rng import parse_seeds
from ebpl.terminal import terminal_progress
from experiments.images import described, photographs, with_test_images

LABELS_PER_CLASS = 10
TAIL_HEAVY = 3
"""With tail-heavy labels the rarest class has this many times the labels of the most frequent one."""
TESTED = 20_000
"""Test images that are drawn from the mix, with replacement, so that each image counts as its class does."""
CHANCES = 50
"""How often labels are drawn for what ECE a perfectly calibrated model would have."""
LABELS = ("balanced", "random", "tail-heavy")
MIXES = {"labels": "labels", "estimated": "auto", "known": None}
"""Class mixes to train with, by their setting; the true one is in a file."""


@dataclass(frozen=True)
class Case:
    """A dataset that was made imbalanced."""

    images: ImageSet
    mix: Floats
    """The share of each class among the unlabelled images, and in use."""
    labels: NDArray[np.int64]
    """How many labels each class has."""


def tail(classes: int, ratio: float) -> Floats:
    """Shares that fall exponentially from the first class to the last, by this ratio in all.

    >>> (21 * tail(3, 16)).round(6).tolist()
    [16.0, 4.0, 1.0]
    """
    shares = ratio ** -np.linspace(0, 1, classes)
    return np.asarray(shares / shares.sum())


def imbalanced(images: ImageSet, ratio: float, kind: str, seed: int) -> Case:
    """Fully labelled data with this ratio of the most frequent class to the rarest, and labels of a kind."""
    classes, random = len(images.classes), np.random.default_rng([seed, round(ratio)])
    order = random.permutation(classes)
    mix = tail(classes, ratio)[order]
    total = LABELS_PER_CLASS * classes
    if kind == "balanced":
        counts = np.full(classes, LABELS_PER_CLASS)
    elif kind == "random":
        counts = random.multinomial(total, mix)
    else:
        counts = np.round(total * tail(classes, TAIL_HEAVY)[::-1][order]).astype(np.int64)
    counts = np.maximum(counts, 2)  # fewer cannot be cross-validated
    own = [random.permutation(np.flatnonzero(images.train.labels == number)) for number in range(classes)]
    spare = min((len(each) - count) / share for each, count, share in zip(own, counts, mix, strict=True))
    if spare * mix.min() < 1:
        raise DataError(f"{images.name} has too few images for a ratio of 1:{ratio:g}.")
    labeled = np.concatenate([each[:count] for each, count in zip(own, counts, strict=True)])
    rest = zip(own, counts, np.round(spare * mix).astype(np.int64), strict=True)
    unlabeled = np.concatenate([each[count : count + more] for each, count, more in rest])
    train = images.train.take(np.concatenate([labeled, unlabeled]))
    labels = np.concatenate([images.train.labels[labeled], np.full(len(unlabeled), -1)])
    found = np.bincount(images.train.labels[unlabeled], minlength=classes) / len(unlabeled)
    few = replace(images, train=replace(train, labels=labels), labels_per_class=None)
    return Case(few, found, counts)


def at_most(images: ImageSet, count: int | None) -> ImageSet:
    """At most so many training images and half as many test images, the same for every seed."""
    if count is None or images.test is None:
        return images
    random = np.random.default_rng(0)
    parts = (
        part.take(np.sort(random.permutation(len(part))[:most]))
        for part, most in ((images.train, count), (images.test, count // 2))
    )
    train, test = parts
    return replace(images, train=train, test=test)


def measured(probabilities: Floats, test: Images, mix: Floats, seed: int) -> dict[str, float]:
    """Metrics on test images that are drawn from a mix."""
    random = np.random.default_rng(seed)
    weights = (mix / np.maximum(np.bincount(test.labels, minlength=len(mix)), 1))[test.labels]
    drawn = random.choice(len(test), TESTED, p=weights / weights.sum())
    found = measure(probabilities[drawn], test.labels[drawn])
    return {**found, "ece_by_chance": by_chance(probabilities, drawn, random)}


def by_chance(probabilities: Floats, drawn: NDArray[np.int64], random: np.random.Generator) -> float:
    """The mean ECE of a perfectly calibrated model on these images, of which some were drawn often."""
    guessed, errors = probabilities.argmax(1), []
    for _ in range(CHANCES):
        wrong = random.random(len(probabilities)) >= probabilities.max(1)
        labels = np.where(wrong, (guessed + 1) % probabilities.shape[1], guessed)
        errors.append(expected_calibration_error(probabilities[drawn], labels[drawn]))
    return float(np.mean(errors))


def trained(case: Case, settings: Settings, mix: str, seed: int) -> dict[str, Any]:
    """Train with a class mix; its metrics, and the mix that was used."""
    assert case.images.test is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mix.csv"
        rows = zip(case.images.classes, case.mix, strict=True)
        file.write_text("".join(f'"{name}",{max(share, 1e-6)}\n' for name, share in rows), "utf-8")
        chosen = settings.changed({"data.class_mix": MIXES[mix] or str(file)})
        run = ebpl.train(case.images, chosen, run=Path(folder) / "run")
        probabilities = predict(run.load_model()[0], case.images.test.pixels).probabilities
        used = run.metrics().get("class_mix") or {"shares": (case.labels / case.labels.sum()).tolist()}
    distance = float(np.abs(np.array(used["shares"]) - case.mix).sum() / 2)
    return {"metrics": measured(probabilities, case.images.test, case.mix, seed), "distance": distance, **used}


def cases(ratios: Sequence[float], kinds: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Ratios and kinds of labels; where classes are equally frequent, labels are balanced."""
    for ratio in ratios:
        yield from ((ratio, kind) for kind in kinds if ratio > 1 or kind == "balanced")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write a record for each dataset, ratio, kind of labels and seed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.imbalance", description=__doc__)
    add = parser.add_argument
    add("folders", nargs="*", type=Path, metavar="FOLDER", help="class folders of photographs, learned from features")
    add("--datasets", nargs="*", default=[], metavar="NAME", help="benchmarks")
    add("--preset", default="best", help="for benchmarks; features learns from those of the encoder")
    add("--at-most", type=int, metavar="N", help="take so many training images of a benchmark, and half as many others")
    add("--ratios", nargs="*", type=float, default=[1, 10, 50], metavar="N")
    add("--labels", nargs="*", choices=LABELS, default=LABELS, metavar="KIND", help=", ".join(LABELS))
    add("--mixes", nargs="*", choices=MIXES, default=list(MIXES), metavar="MIX", help=", ".join(MIXES))
    add("--seeds", default="3-7")
    add("--tune", action="store_true", help="measure on some of the training images, not on test images")
    add("--results", type=Path, default=Path("results/imbalance"), metavar="DIR")
    options = parser.parse_args(arguments)
    return guarded(lambda: _main(options), "experiments.imbalance")


def _data(options: argparse.Namespace) -> Iterator[tuple[ImageSet, Settings]]:
    for name in options.datasets:
        images = at_most(with_test_images(load(name), options.tune), options.at_most)
        yield images, preset(options.preset, validation_fraction=0.0)
    for folder in options.folders:
        yield photographs(folder, tune=options.tune), preset("features", validation_fraction=0.0)


def _main(options: argparse.Namespace) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    for images, chosen in _data(options):
        name = nearest_preset(chosen)[0]
        encode_all(images, chosen.model.encoder, terminal_progress())
        for ratio, kind in cases(options.ratios, options.labels):
            for seed in parse_seeds(options.seeds):
                path = options.results / f"{images.name}-{name}-{ratio:g}-{kind}-seed{seed}.json"
                case, settings = imbalanced(images, ratio, kind, seed), chosen.changed(seed=seed)
                record: dict[str, Any] = (
                    json.loads(path.read_text("utf-8"))
                    if path.is_file()
                    else {
                        **described(images, settings),
                        "preset": name,
                        "ratio": ratio,
                        "labels": kind,
                        "label_counts": case.labels.tolist(),
                        "unlabelled": int((~case.images.train.labeled).sum()),
                        "mix": case.mix.tolist(),
                        "trained": {},
                    }
                )
                for mix in (mix for mix in options.mixes if mix not in record["trained"]):
                    found = record["trained"][mix] = trained(case, settings, mix, seed)
                    write_json(path, record)
                    numbers = " ".join(f"{100 * found['metrics'][name]:.1f}" for name in ("accuracy", "ece"))
                    print(path.stem, mix, numbers, f"{100 * found['distance']:.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
