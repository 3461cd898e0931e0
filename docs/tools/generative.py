"""Tables about the preset `generative`, generated from the records in `results/` and `results/samples/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from docs.tools.results import unbroken
from docs.tools.text import mean, records
from ebpl.config.presets import preset
from ebpl.terminal import markdown_table
from experiments.grid import Cell
from experiments.overview import listed_seeds, unseen
from experiments.readme import SEEDS
from experiments.results_store import Record, load, modern_record
from experiments.table import NOT_MEASURED, Entry, measured, title_of

PRESET = "generative"
METRICS = ("accuracy", "f_score", "ece", "nll", "aurc")
COMPARED = ((PRESET, "soft"), ("best", "soft"), ("standard", "soft"), ("standard", "none"))
"""Presets and forms of pseudo-labels."""
MOST_DISTANCE, MOST_GAP, LEAST_AUROC = 25.0, 5.0, 90.0
"""The goals, in per cent: of the noise's distance, of the spread of energies, and of the energy on unseen datasets."""
GOALS_OF = "blood"
"""All goals were set for this dataset; the first two for every one."""


@cache
def samples(root: Path) -> dict[str, list[Record]]:
    """What `experiments.samples` measured of runs with the preset, by dataset and in the order of seeds."""
    made: dict[str, list[Record]] = {}
    for each in records(root, "samples"):
        run = modern_record(each["run"])
        data, seed = run["data"]["name"], run["settings"]["seed"]
        if Cell(data, preset(PRESET, seed=seed)).is_in(run):
            made.setdefault(data, []).append(each)
    return made


def classifier(root: Path) -> str:
    """Accuracy and calibration with the last weights, beside the other presets."""
    lines = []
    for data in samples(root):
        for name, kind in COMPARED:
            seeds, entries = _classifier(root, data, name, kind)
            title = f"`{name}`" + (", no pseudo-labels" if kind == "none" else "")
            lines.append([data, title, seeds, *(str(entry or NOT_MEASURED) for entry in entries)])
    return unbroken(markdown_table(["data", "preset", "seeds", *map(title_of, METRICS)], lines))


def _classifier(root: Path, data: str, name: str, kind: str) -> tuple[str, list[Entry | None]]:
    wanted = [Cell(data, preset(name, seed=seed, pseudo_labels=kind)) for seed in SEEDS]
    records = load_records(root)
    chosen, seeds = unseen(wanted, records)
    entries = measured(chosen, records, "last")
    return seeds, [entries.get((metric, "ebpl", kind, data)) for metric in METRICS]


@cache
def load_records(root: Path) -> list[Record]:
    """The result records."""
    return load(root / "results")


def gap(each: Record) -> float:
    """The mean energy of images minus that of samples in the last epoch, in per cent of the spread of energies."""
    return 100 * float(each["energy"]["gap_in_training"] / each["energy"]["images"][1])


def gap_to_test_images(each: Record) -> float:
    """The same with the averaged weights after training, for test images and the samples in the replay buffer."""
    images, of_samples = each["energy"]["images"], each["energy"]["samples"]
    return 100 * float((images[0] - of_samples[0]) / images[1])


def of_noise(each: Record) -> float:
    """The Fréchet distance of samples, in per cent of that of uniform noise."""
    return 100 * float(each["frechet"]["samples"] / each["frechet"]["uniform_noise"])


def worst_auroc(each: Record) -> float:
    """Of the energy, among the datasets that the run has not seen, in per cent."""
    return 100 * float(min(scores["energy"] for scores in each["unseen"].values()))


Measure = Callable[[Record], float]


def energy_model(root: Path) -> str:
    """A line for each measure of the energy model and its samples, a column for each dataset."""
    runs = samples(root)
    lines = [["seeds", *(listed_seeds(_seed(each) for each in own) for own in runs.values())]]
    for title, measure, decimals in _MEASURES:
        lines.append([title, *(_mean([measure(each) for each in own], decimals) for own in runs.values())])
    for other in dict.fromkeys(name for own in runs.values() for each in own for name in each["unseen"]):
        for score in ("energy", "confidence"):
            values = [
                [100 * each["unseen"][other][score] for each in own if other in each["unseen"]] for own in runs.values()
            ]
            lines.append([f"AUROC % of the {score} on {other}", *(_mean(each, 1) if each else "" for each in values)])
    return unbroken(markdown_table(["measure", *runs], lines))


_MEASURES: Sequence[tuple[str, Measure, int]] = (
    ("energy gap in training, % of the spread", gap, 1),
    ("energy gap of test images after training, % of the spread", gap_to_test_images, 1),
    ("Fréchet distance of samples", lambda each: each["frechet"]["samples"], 1),
    ("– of training images", lambda each: each["frechet"]["training_images"], 1),
    ("– of the Gaussian that chains start from", lambda each: each["frechet"]["fitted_gaussian"], 1),
    ("– of uniform noise", lambda each: each["frechet"]["uniform_noise"], 1),
    ("samples' distance, % of the noise's", of_noise, 3),
    (
        "samples' distance, % of the Gaussian's",
        lambda each: 100 * each["frechet"]["samples"] / each["frechet"]["fitted_gaussian"],
        2,
    ),
    ("judge's accuracy on test images, %", lambda each: 100 * each["judge"]["accuracy"], 1),
    ("judge's confidence on samples, %", lambda each: 100 * each["judge"]["confidence_on_samples"], 1),
    ("judge's confidence on test images, %", lambda each: 100 * each["judge"]["confidence_on_test_images"], 1),
    ("samples' distance to the nearest training image, median", lambda each: _nearest(each, "samples", 2), 2),
    ("test images' distance, median", lambda each: _nearest(each, "test_images", 2), 2),
    ("samples' distance, nearest 1 %", lambda each: _nearest(each, "samples", 0), 2),
    ("test images' distance, nearest 1 %", lambda each: _nearest(each, "test_images", 0), 2),
)


def _nearest(each: Record, kind: str, quantile: int) -> float:
    return float(each["nearest_training_image"][kind][quantile])


def _seed(each: Record) -> int:
    return int(each["run"]["settings"]["seed"])


def _mean(values: Sequence[float], decimals: int) -> str:
    """Mean and standard deviation; what does not depend on the run has none."""
    return mean(values if len(set(values)) > 1 else values[:1], decimals)


def goals(root: Path) -> str:
    """What was to be reached, and whether it was."""
    runs = samples(root)
    lines: list[list[str]] = []
    for title, measure, most, decimals in (
        (f"Fréchet distance at most {MOST_DISTANCE:g} % of the noise's", of_noise, MOST_DISTANCE, 3),
        (f"energy gap at most {MOST_GAP:g} % of the spread", gap, MOST_GAP, 1),
    ):
        values = [[abs(measure(each)) for each in own] for own in runs.values()]
        lines.append([title, *(_verdict(each, most, decimals) for each in values)])
    _, (accuracy, _, ece, *_) = _classifier(root, GOALS_OF, "standard", "none")
    for name, title, limit in (("accuracy", "accuracy at least", accuracy), ("ece", "ECE at most", ece)):
        cells = []
        for data in runs:
            own = _classifier(root, data, PRESET, "soft")[1][METRICS.index(name)]
            if own is None or limit is None or own.mean is None or limit.mean is None:
                cells.append(NOT_MEASURED)
            else:
                better = own.mean <= limit.mean if name == "ece" else own.mean >= limit.mean
                cells.append(_reached(data, better, str(own)))
        lines.append([f"{title} that of `standard` on {GOALS_OF}, {limit or NOT_MEASURED} %", *cells])
    aurocs = {data: min(map(worst_auroc, own)) for data, own in runs.items()}
    cells = [_reached(data, value >= LEAST_AUROC, f"{value:.1f} at worst") for data, value in aurocs.items()]
    lines.append([f"AUROC of the energy at least {LEAST_AUROC:g} % on every unseen dataset and seed", *cells])
    return unbroken(markdown_table(["goal", *runs], lines))


def _verdict(values: Sequence[float], most: float, decimals: int) -> str:
    """By the mean over seeds, with the range."""
    mean = sum(values) / len(values)
    low, high = (f"{limit:.{decimals}f}" for limit in (min(values), max(values)))
    return f"{'reached' if mean <= most else 'missed'}: {mean:.{decimals}f} ({low} to {high})"


def _reached(data: str, reached: bool, value: str) -> str:
    return f"{'reached' if reached else 'missed'}: {value}" if data == GOALS_OF else f"no goal: {value}"
