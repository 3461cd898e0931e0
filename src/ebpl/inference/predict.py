"""Predictions for image files, as many as there are, in bounded memory: read, predicted and written in batches."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ebpl.data.decode import (
    LINKED_FOLDER,
    as_seen,
    image_files,
    listed_file,
    printable,
    read_image,
    readers,
    sized,
    unreadable,
)
from ebpl.data.formats import read_costs, read_table, text_of
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, RunError, UsageError
from ebpl.inference.evaluate import opened
from ebpl.io import Row, Write, check_output, check_table_name, is_number, rows_into
from ebpl.models.predictions import BATCH
from ebpl.models.predictions import predict as predict_images
from ebpl.runs import Run
from ebpl.runs.reader import TEST_METRICS, read_answers

if TYPE_CHECKING:
    from PIL.Image import Image

DECISIONS = ("probable", "balanced")
PATH_COLUMNS = ("image", "path", "file")
Item = Path | tuple[str, "NDArray[np.uint8] | Image"]
"""An image file, or a name and its pixels or picture."""
Decide = Callable[[NDArray[np.float64]], int]
"""From the probabilities of the classes to the number of the class that is decided for."""


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
    outlier_quantile: float = 0.99,
    label_outliers: bool = False,
    decide: str | os.PathLike[str] = "probable",
    force: bool = False,
    done: Callable[[int], None] = lambda _: None,
) -> list[Row] | Summary:
    """Label images with a run's model: a file, a folder, a CSV that lists files, or several of these.

    They may also be PIL images, or an array (N, H, W, C) of uint8.

    Without `output` it is a list of rows: image, label, confidence, energy, outlier, a probability a class. With it,
    the rows are written there (Parquet if it ends in .parquet, else CSV), in bounded memory, and summed up; a file
    that exists is replaced only with `force`.

    Outliers, whose energy is higher than that of `outlier_quantile` of the training images, get no label unless
    `label_outliers`. With `decide="balanced"` there is a column `decision` too: the class whose probability is highest
    compared with its mean over the training images, which finds more images of rare classes and makes more errors.
    With a CSV of costs, a line for each true class and a column for each decision, it is the class of the least
    expected cost.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/predicting", epochs=2, pseudo_labels="none")
    >>> row = ebpl.predict(run, ebpl.load("digits").test.pixels[:3])[0]
    >>> row["image"], sorted(row)[:3]
    ('0', ['confidence', 'energy', 'image'])
    """
    run = opened(run)
    if output is not None:
        check_table_name(output)
        check_output(output, force, inside=run.path)
    limits: dict[str, Any] = {
        "abstain_below": abstain_below,
        "outlier_quantile": outlier_quantile,
        "label_outliers": label_outliers,
        "decide": decide,
    }
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    if isinstance(images, np.ndarray):
        where = f"an array of shape {images.shape}"
        found = _rows_of(run, images)
    else:
        places = _places(images)
        where = " or ".join(printable(place) for place in places if isinstance(place, Path)) or "an empty list"
        found = _found(places, skipped)
    if output is None:
        summary = predict_files(run, found, rows.append, **limits, done=done)
        summary.skipped = skipped
        if told := summary.skipped_in_words:
            logging.getLogger("ebpl").info("Skipped: %s", told)
        return rows
    with rows_into(str(output)) as write:
        summary = predict_files(run, found, write, **limits, done=done)
        summary.skipped = skipped
        if not summary.images:
            told = f" Skipped: {summary.skipped_in_words}." if skipped else ""
            raise DataError(f"There is no image in {where}.{told}")
    return summary


def _places(images: Any) -> list[Path | Image]:
    """What was given, one by one."""
    from PIL.Image import Image

    try:
        several = [images] if isinstance(images, str | os.PathLike | Image) else list(images)
    except TypeError:
        several = [images]
    for each in several:
        if not isinstance(each, str | os.PathLike | Image):
            kind = f"{type(each).__module__}.{type(each).__qualname__}".removeprefix("builtins.")
            raise UsageError(
                f"Images cannot be given as {kind}. Give files, folders or CSVs that list files, PIL images, or one "
                "NumPy array of uint8 (N, H, W, C)."
            )
    return [each if isinstance(each, Image) else Path(each) for each in several]


def _found(places: Sequence[Path | Image], skipped: Counter[str]) -> Iterator[Item]:
    """The images in files, folders and lists, and pictures with their numbers for names."""
    parts: list[Iterable[Item]] = [
        find_images([place], skipped) if isinstance(place, Path) else [(str(number), place)]
        for number, place in enumerate(places)
    ]
    return chain.from_iterable(parts)


def find_images(places: Iterable[str | os.PathLike[str]], skipped: Counter[str] | None = None) -> Iterator[Path]:
    """The files named, those that a CSV lists, and the image files in the folders named and below, sorted by name.

    Hidden folders and folders that a link leads to are not entered, so no loop is; `skipped` counts what is not read. A
    place that does not exist is an error before the first image is given, so that it costs no work.
    """
    paths = [Path(place) for place in places]
    for place in paths:
        if not os.path.exists(place):
            raise DataError(f"There is no file or folder {printable(place)}.")
    return chain.from_iterable([_files_in(place, skipped) for place in paths])


def _files_in(place: Path, skipped: Counter[str] | None) -> Iterable[Path]:
    if place.is_dir():
        return image_files(place, skipped)
    if place.suffix.lower() in (".csv", ".tsv"):
        return _listed(place)
    if place.suffix.lower() in (".npz", ".npy"):
        raise DataError(
            f"{printable(place)} holds arrays, no image. Arrays are predicted from Python: ebpl.predict(run, array)."
        )
    return [place]


def _listed(path: Path) -> list[Path]:
    """The files that a CSV lists, by paths relative to it."""
    found = []
    for line, row in read_table(path, text_of(path), PATH_COLUMNS):
        name = next((row[column] for column in PATH_COLUMNS if row.get(column)), "")
        if not name or "\0" in name:
            raise DataError(f"{path}, line {line}: no image is named.")
        found.append(listed_file(path.parent, name))
    if not any(map(os.path.exists, found)):
        what = f"names no file that exists (relative to {path.parent})" if found else "lists no images"
        raise DataError(f"{printable(path)} {what}.")
    return found


def _rows_of(run: Run, images: NDArray[Any]) -> Iterator[Item]:
    """The images of an array, with their numbers for names."""
    pixels = images[..., None] if images.ndim == 3 else images
    channels, height, width = run.load_model()[1]["image_shape"]
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (height, width, channels):
        raise DataError(
            f"The model takes uint8 images of {height} x {width} x {channels}; these are {images.dtype} of shape "
            f"{images.shape}."
        )
    return ((str(number), each) for number, each in enumerate(pixels))


def predict_files(
    run: Run,
    images: Iterable[Item],
    write: Write,
    *,
    abstain_below: float = 0.0,
    outlier_quantile: float = 0.99,
    label_outliers: bool = False,
    decide: str | os.PathLike[str] = "probable",
    done: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Give each image a row: path, label, confidence, energy, outlier, a probability a class; or why it has none.

    Below `abstain_below` there is no label, nor for an outlier: the energy of this share of the training images is
    lower.
    """
    check_shares(abstain_below=abstain_below, outlier_quantile=outlier_quantile)
    model, description = run.load_model()
    channels, height, width = description["image_shape"]
    device, dtype = device_and_dtype(run.settings.runtime)
    model = model.to(device)
    classes = description["classes"]
    decision = _decision(run, decide, classes)
    limit = run.energy_limit(outlier_quantile)
    summary = Summary(outliers=None if limit is None else 0)
    labels = ("label",) if decision is None else ("label", "decision")
    names = (*labels, "confidence", "energy", "outlier", *(f"p({name})" for name in classes), "problem")
    empty = dict.fromkeys(names)
    none = np.zeros((0, height, width, channels), np.uint8)
    with readers() as pool:
        for items in _batches(iter(images), BATCH):
            read = list(pool.map(lambda item: _read(item, (height, width), channels == 1), items))
            pixels = [found[0] for found in read if not isinstance(found, str)]
            predictions = predict_images(model, np.stack(pixels) if pixels else none, dtype)
            predicted = zip(predictions.probabilities.tolist(), predictions.energies.tolist(), strict=True)
            for item, found in zip(items, read, strict=True):
                name = item[0] if isinstance(item, tuple) else printable(item)
                row: Row = {"image": name, **empty}
                summary.images += 1
                if isinstance(found, str):
                    summary.unreadable += 1
                    write({**row, "problem": found})
                    continue
                summary.frames += found[1]
                probabilities, energy = next(predicted)
                confidence = max(probabilities)
                outlier = limit is not None and not energy <= limit
                if confidence >= abstain_below and (label_outliers or not outlier):
                    row["label"] = classes[probabilities.index(confidence)]
                    if decision is not None:
                        row["decision"] = classes[decision(np.array(probabilities))]
                    summary.kept += not outlier
                    summary.labelled_outliers += outlier
                    summary.confidence += 0.0 if outlier else confidence
                row |= {"confidence": confidence, "energy": energy}
                row |= {f"p({name})": p for name, p in zip(classes, probabilities, strict=True)}
                if summary.outliers is not None:
                    row["outlier"] = outlier
                    summary.outliers += outlier
                write(row)
            done(len(items))
    return summary


def check_shares(**values: float) -> None:
    """Raise where a share is no number from 0 to 1."""
    for name, value in values.items():
        if not isinstance(value, int | float | np.number) or not 0 <= value <= 1:
            raise UsageError(f"{name} is {value!r}, but must be a number from 0 to 1; 90 % is 0.9.")


def _decision(run: Run, decide: str | os.PathLike[str], classes: Sequence[str]) -> Decide | None:
    """How a class is decided for where that is not simply the most probable one."""
    if decide == "probable":
        return None
    if decide == "balanced":
        means = _class_means(run, classes)
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


def _batches(items: Iterator[Item], size: int) -> Iterator[Sequence[Item]]:
    while batch := list(islice(items, size)):
        yield batch


def _read(item: Item, size: tuple[int, int], gray: bool) -> tuple[NDArray[np.uint8], bool] | str:
    """The image and whether it has several frames, or why it cannot be read."""
    given = None if isinstance(item, Path) else item[1]
    if isinstance(given, np.ndarray):
        return given, False
    try:
        if given is not None:
            picture, info = as_seen(given)
            return sized(picture, size, gray), info.frames
        assert isinstance(item, Path)
        pixels, info = read_image(item, size, gray)
        return pixels, info.frames
    except Exception as error:
        return unreadable(item if isinstance(item, Path) else Path(os.devnull), error)
