"""Predictions for image files, as many as there are, in bounded memory: read, predicted and written in batches."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration.abstention import Abstention, choose_threshold
from ebpl.calibration.conformal import PredictionSets, calibrate, check_coverage, check_enough, check_method, generator
from ebpl.data.decode import LINKED_FOLDER, printable, readers
from ebpl.data.formats import read_costs
from ebpl.errors import DataError, RunError, UsageError
from ebpl.inference.ensemble import Answers, Ensemble, members_of
from ebpl.inference.sources import Data, Item, Reading, batches, calibration_images, items_of, read_item
from ebpl.io import Row, Write, check_output, check_table_name, is_number, rows_into
from ebpl.models.predictions import BATCH
from ebpl.runs import Run
from ebpl.runs.reader import TEST_METRICS, read_answers

DECISIONS = ("probable", "balanced")
MOST_UNLABELLED = 5000
"""More unlabelled images change a threshold no more."""
Decide = Callable[[NDArray[np.float64]], int]
"""From the probabilities of the classes to the number of the class that is decided for."""


@dataclass(frozen=True)
class Promises:
    """Prediction sets of a coverage, and labels of an accuracy, from calibration labels."""

    sets: PredictionSets | None
    abstention: Abstention | None
    calibrated_on: str
    """Which images they were made from, in words."""
    notes: tuple[str, ...]


@dataclass
class Summary:
    """What came out, in numbers."""

    images: int = 0
    unreadable: int = 0
    kept: int = 0
    """Images with a label that are no outliers: readable, and the model was confident enough."""
    confidence: float = 0.0
    """Sum of the confidences of those."""
    outliers: int | None = None
    """Images unlike the training images; None for a model without a density."""
    labelled_outliers: int = 0
    """Those of them with a label, where that was asked for."""
    frames: int = 0
    """Images with several frames or pages, of which the first was taken."""
    skipped: Counter[str] = field(default_factory=Counter)
    """What was not read in the folders: files by the ending of their names, and linked folders."""
    promises: Promises | None = None
    """What was promised of labels and sets, if it was asked for."""
    set_sizes: Counter[int] = field(default_factory=Counter)
    """Images with a prediction set of each size."""

    @property
    def mean_confidence(self) -> float | None:
        """Of the labels given to images that are no outliers. How many are right is known from labelled images only."""
        return self.confidence / self.kept if self.kept else None

    @property
    def coverage(self) -> float | None:
        """The share of the readable images that have a label; outliers are left out of both."""
        usual = self.images - self.unreadable - (self.outliers or 0)
        return self.kept / usual if usual else None

    @property
    def skipped_in_words(self) -> str:
        """What was not read in the folders, and why; empty if all was."""
        counts = sorted(self.skipped.items(), key=lambda entry: (-entry[1], entry[0]))
        files = {ending: count for ending, count in counts if ending != LINKED_FOLDER}
        parts, more = [], f" and {len(files) - 5} other endings" if len(files) > 5 else ""
        if files:
            shown = ", ".join(f"{count} {ending or 'without an ending'}" for ending, count in list(files.items())[:5])
            total = sum(files.values())
            parts.append(f"{total} file{'s' * (total > 1)} whose name is not that of an image ({shown}{more})")
        if links := self.skipped[LINKED_FOLDER]:
            parts.append(f"{links} linked folder{'s' * (links > 1)}, as links are not followed")
        return " and ".join(parts)


def predict(
    run: Run | str | os.PathLike[str],
    images: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    abstain_below: float = 0.0,
    accuracy: float | None = None,
    coverage: float | None = None,
    set_method: str = "lac",
    by_class: bool = False,
    semi_supervised: bool = False,
    calibration: Data | None = None,
    outlier_quantile: float = 0.99,
    label_outliers: bool = False,
    decide: str | os.PathLike[str] = "probable",
    class_mix: str | os.PathLike[str] | None = None,
    force: bool = False,
    done: Callable[[int], None] = lambda _: None,
) -> list[Row] | Summary:
    """Label images with a run's model: a file, a folder, a CSV that lists files, or several of these.

    They may also be PIL images, or an array (N, H, W, C) of uint8. Of a folder of several seeds all finished runs
    answer together: probabilities are the mean of theirs, and a column `disagreement` says how much they differ.

    Without `output` it is a list of rows: image, label, confidence, energy, outlier, a probability a class. With it,
    the rows are written there (Parquet if it ends in .parquet, else CSV), in bounded memory, and summed up; a file
    that exists is replaced only with `force`.

    With a `coverage` there is a column `set`: the classes that hold the true one with this probability. With an
    `accuracy`, only images whose confidence promises it are labelled. Both are found with the labels of `calibration`,
    images that the model has not learned from, or else with the run's own test or validation images; `set_method`,
    `by_class` and `semi_supervised` are those of `predict_set`.

    Outliers, whose energy (on features of an encoder, reconstruction error) is higher than that of `outlier_quantile`
    of the training images, get no label unless `label_outliers`. With `decide="balanced"` there is a column `decision`
    too: the class whose probability is highest compared with its mean over the training images, which finds more
    images of rare classes and makes more errors. With a CSV of costs, a line for each true class and a column for each
    decision, it is the class of the least expected cost.

    Probabilities are for the class mix of the run. With a `class_mix` they are for another one: "labels", "balanced",
    or a CSV of class and share.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/predicting", epochs=2, pseudo_labels="none")
    >>> row = ebpl.predict(run, ebpl.load("digits").test.pixels[:3])[0]
    >>> row["image"], sorted(row)[:3]
    ('0', ['confidence', 'energy', 'image'])
    """
    runs = members_of(run)
    if output is not None:
        check_table_name(output)
        check_output(output, force, inside=run.path if isinstance(run, Run) else Path(run))
    check_shares(abstain_below=abstain_below, outlier_quantile=outlier_quantile)
    check_method(set_method)
    if coverage is not None:
        check_coverage(coverage)
    if calibration is not None and coverage is None and accuracy is None:
        raise UsageError("Calibration labels are for a coverage (--coverage) or an accuracy (--accuracy). Give one.")
    promised = (coverage is not None or accuracy is not None) and calibration is None
    if class_mix is not None and (promised or decide == "balanced"):
        raise UsageError(
            "The run's own images do not have another class mix. With class_mix, give calibration images that have it, "
            "and costs instead of a balanced decision."
        )
    model, skipped = Ensemble(runs, outlier_quantile, class_mix), Counter[str]()
    found, where = items_of(images, model.description["image_shape"], skipped)
    promises = None
    if coverage is not None or accuracy is not None:
        unlabelled: list[Item] = []
        if semi_supervised:
            items = list(found)
            unlabelled, found = items[:: max(1, len(items) // MOST_UNLABELLED)], iter(items)
        promises = _promises(model, calibration, coverage, set_method, by_class, accuracy, label_outliers, unlabelled)
    limits: dict[str, Any] = {
        "abstain_below": abstain_below,
        "label_outliers": label_outliers,
        "decide": decide,
        "promises": promises,
        "done": done,
    }
    rows: list[Row] = []
    if output is None:
        summary = predict_files(model, found, rows.append, **limits)
        summary.skipped = skipped
        if told := summary.skipped_in_words:
            logging.getLogger("ebpl").info("Skipped: %s", told)
        for note in promises.notes if promises else ():
            logging.getLogger("ebpl").warning("%s", note.removeprefix("Warning: "))
        return rows
    with rows_into(str(output)) as write:
        summary = predict_files(model, found, write, **limits)
        summary.skipped = skipped
        if not summary.images:
            also = f" Skipped: {summary.skipped_in_words}." if skipped else ""
            raise DataError(f"There is no image in {where}.{also}")
    return summary


def predict_set(
    run: Run | str | os.PathLike[str],
    images: Any,
    coverage: float = 0.9,
    *,
    calibration: Data | None = None,
    method: str = "lac",
    by_class: bool = False,
    semi_supervised: bool = False,
    class_mix: str | os.PathLike[str] | None = None,
) -> list[list[str] | None]:
    """For each image the classes that hold the true one with this probability; None where it cannot be read.

    They are found by split conformal prediction with the labels of `calibration`, data with labelled images that the
    model has not learned from, or else with the run's own test or validation images. `method` is the score: "lac",
    "aps", "raps", "random-aps" or "random-raps". `by_class` promises the coverage within each class. `semi_supervised`
    also uses the images themselves, for a coverage that varies less where labels are few. For another `class_mix` than
    that of the run, as in `predict`, `calibration` needs images that have it.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/sets", epochs=2, pseudo_labels="none")
    >>> sets = ebpl.predict_set(run, ebpl.load("digits").test.pixels[:3], coverage=0.95)
    >>> len(sets), set(sets[0]) <= set(ebpl.load("digits").classes)
    (3, True)
    """
    how: dict[str, Any] = {"calibration": calibration, "by_class": by_class, "semi_supervised": semi_supervised}
    how["class_mix"] = class_mix
    rows = predict(run, images, coverage=coverage, set_method=method, **how)
    assert isinstance(rows, list)
    return [row["set"] for row in rows]


def _promises(
    model: Ensemble,
    calibration: Data | None,
    coverage: float | None,
    set_method: str,
    by_class: bool,
    accuracy: float | None,
    label_outliers: bool,
    unlabelled: Sequence[Item],
) -> Promises:
    """What can be promised by the labels of calibration images, and by the unlabelled images where there are any."""
    images, which, notes = calibration_images(model.runs, model.description, calibration)
    known = images.take(np.flatnonzero(images.labeled))
    said = model.predict(known.pixels)
    sets = abstention = None
    if coverage is not None:
        others = [each.probabilities for _, _, each in _answers(model, unlabelled)]
        more = np.concatenate(others) if others else None
        sets = calibrate(said.probabilities, known.labels, coverage, set_method, by_class=by_class, unlabelled=more)
        if warning := check_enough(sets, model.classes):
            notes = [*notes, f"Warning: {warning}"]
    if accuracy is not None:
        labelled = np.full(len(known), True) if said.outliers is None or label_outliers else ~said.outliers
        right = said.probabilities.argmax(1) == known.labels
        abstention = choose_threshold(said.probabilities.max(1)[labelled], right[labelled], accuracy)
        if abstention.threshold is None:
            raise DataError(f"From {which}, {abstention}. Ask for less, or give more labels with --calibration.")
    return Promises(sets, abstention, which, tuple(notes))


def predict_files(
    model: Ensemble,
    images: Iterable[Item],
    write: Write,
    *,
    abstain_below: float = 0.0,
    label_outliers: bool = False,
    decide: str | os.PathLike[str] = "probable",
    promises: Promises | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Give each image a row: path, label, confidence, energy, outlier, a probability a class; or why it has none.

    Below `abstain_below` or the promised threshold there is no label, nor for an outlier.
    """
    classes, sets, random = model.classes, promises.sets if promises else None, generator()
    if promises and promises.abstention:
        abstain_below = max(abstain_below, promises.abstention.threshold or 0.0)
    decision = _decision(model.runs, decide, classes)
    summary = Summary(outliers=0 if model.has_outliers else None, promises=promises)
    names = ("label", *(("decision",) if decision else ()), *(("set",) if sets else ()), "confidence")
    names += (*(("disagreement",) if len(model.runs) > 1 else ()), "energy")
    names += (*(("reconstruction_error",) if model.has_errors else ()), "outlier")
    empty = dict.fromkeys((*names, *(f"p({name})" for name in classes), "problem"))
    for items, read, said in _answers(model, images):
        numbers = iter(range(len(said.probabilities)))
        inside = sets.contains(said.probabilities, random) if sets else None
        for item, found in zip(items, read, strict=True):
            name = item[0] if isinstance(item, tuple) else printable(item)
            row: Row = {"image": name, **empty}
            summary.images += 1
            if isinstance(found, str):
                summary.unreadable += 1
                write({**row, "problem": found})
                continue
            summary.frames += found[1]
            number = next(numbers)
            probabilities, energy = said.probabilities[number].tolist(), float(said.energies[number])
            confidence = max(probabilities)
            outlier = said.outliers is not None and bool(said.outliers[number])
            if confidence >= abstain_below and (label_outliers or not outlier):
                row["label"] = classes[probabilities.index(confidence)]
                if decision is not None:
                    row["decision"] = classes[decision(np.array(probabilities))]
                summary.kept += not outlier
                summary.labelled_outliers += outlier
                summary.confidence += 0.0 if outlier else confidence
            row |= {"confidence": confidence, "energy": energy}
            if said.reconstruction_errors is not None:
                row["reconstruction_error"] = float(said.reconstruction_errors[number])
            if inside is not None:
                row["set"] = [classes[i] for i in np.flatnonzero(inside[number])]
                summary.set_sizes[len(row["set"])] += 1
            if said.disagreement is not None:
                row["disagreement"] = float(said.disagreement[number])
            row |= {f"p({name})": p for name, p in zip(classes, probabilities, strict=True)}
            if summary.outliers is not None:
                row["outlier"] = outlier
                summary.outliers += outlier
            write(row)
        done(len(items))
    return summary


def _answers(model: Ensemble, images: Iterable[Item]) -> Iterator[tuple[Sequence[Item], list[Reading], Answers]]:
    """The images in batches, each with what was read of it or why it was not, and what is said of those read."""
    channels, height, width = model.description["image_shape"]
    none = np.zeros((0, height, width, channels), np.uint8)
    with readers() as pool:
        for items in batches(iter(images), BATCH):
            read = list(pool.map(lambda item: read_item(item, (height, width), channels == 1), items))
            pixels = [found[0] for found in read if not isinstance(found, str)]
            yield items, read, model.predict(np.stack(pixels) if pixels else none)


def check_shares(**values: float) -> None:
    """Raise where a share is no number from 0 to 1."""
    for name, value in values.items():
        if not isinstance(value, int | float | np.number) or not 0 <= value <= 1:
            raise UsageError(f"{name} is {value!r}, but must be a number from 0 to 1; 90 % is 0.9.")


def _decision(runs: Sequence[Run], decide: str | os.PathLike[str], classes: Sequence[str]) -> Decide | None:
    """How a class is decided for where that is not simply the most probable one."""
    if decide == "probable":
        return None
    if decide == "balanced":
        means = np.mean([_class_means(run, classes) for run in runs], axis=0)
        return lambda probabilities: int(np.argmax(probabilities / means))
    if not os.path.isfile(decide):
        raise UsageError(
            f"decide is {os.fspath(decide)!r}, but must be one of {', '.join(DECISIONS)}, or an existing CSV of costs."
        )
    costs = read_costs(Path(decide), classes)
    return lambda probabilities: int(np.argmin(probabilities @ costs))


def _class_means(run: Run, classes: Sequence[str]) -> NDArray[np.float64]:
    """The mean probability of each class over the training images."""
    means = run.metrics().get("class_means") if run.finished else None
    if not isinstance(means, list) or len(means) != len(classes) or not all(map(is_number, means)):
        raise RunError(
            f"{run.path} does not hold the mean probability of each class, which a balanced decision needs: it is not "
            f"finished, or of an older version. Remove {run.path / TEST_METRICS} if it is there, and run: "
            f"ebpl resume {run.path}"
        )
    floor: NDArray[np.float64] = np.maximum(np.array(means, float), 1e-6)
    return floor


class Measured(NamedTuple):
    """What a run's test images say of labels with at least some confidence."""

    right: int
    images: int
    """Labelled test images with such a confidence."""
    of: int
    """All labelled test images."""
    exact: bool
    """Whether it was counted; else it was estimated from the bins of the reliability diagram."""


def measured_accuracy(run: Run, at_least: float = 0.0) -> Measured | None:
    """How many of a run's test images are right, of those whose confidence is `at_least` this.

    It is at the same confidence and not at the same coverage, which is lower for images unlike the test images. None
    where the run has no labelled test images, or is not finished.
    """
    result = run.metrics() if run.finished else {}
    if result.get("metrics") is None:
        return None
    if answers := read_answers(run.path):
        confidences, right = answers
        enough = confidences >= at_least
        return Measured(int(right[enough].sum()), int(enough.sum()), len(right), True)
    rows = [row for row in result.get("reliability") or () if row["images"] and row["accuracy"] is not None]
    if not rows:
        return None
    enough_rows = [row for row in rows if row["up_to"] > at_least]
    hits = sum(row["images"] * row["accuracy"] for row in enough_rows)
    images, every = (int(sum(row["images"] for row in each)) for each in (enough_rows, rows))
    return Measured(round(hits), images, every, at_least <= 0)
