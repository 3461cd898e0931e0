"""Predictions for image files, as many as there are, in bounded memory: read, predicted and written in batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.decode import image_files, printable, read_image, readers, unreadable
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, RunError, UsageError
from ebpl.inference.evaluate import opened
from ebpl.io import Row, Write, check_output, is_number, rows_into
from ebpl.metrics import accuracy_at_coverage
from ebpl.models.predictions import BATCH
from ebpl.models.predictions import predict as predict_images
from ebpl.runs import Run
from ebpl.runs.reader import TEST_METRICS

DECISIONS = ("probable", "balanced")
Item = Path | tuple[str, NDArray[np.uint8]]
"""An image file, or a name and its pixels."""


@dataclass
class Summary:
    """What came out, in numbers."""

    images: int = 0
    unreadable: int = 0
    kept: int = 0
    """Images with a label that are no outliers: readable, and the model was confident enough."""
    confidence: float = 0.0
    """Sum of the confidences of those; their mean is the accuracy to expect if it is calibrated."""
    outliers: int | None = None
    """Images unlike the training images; None for a model without a density."""
    labelled_outliers: int = 0
    """Those of them with a label, where that was asked for."""
    frames: int = 0
    """Images with several frames or pages, of which the first was taken."""

    @property
    def expected_accuracy(self) -> float | None:
        """The share of right labels to expect among those given to images that are no outliers."""
        return self.confidence / self.kept if self.kept else None

    @property
    def coverage(self) -> float | None:
        """The share of the readable images that have a label; outliers are left out of both."""
        usual = self.images - self.unreadable - (self.outliers or 0)
        return self.kept / usual if usual else None


def predict(
    run: Run | str | os.PathLike[str],
    images: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    abstain_below: float = 0.0,
    outlier_quantile: float = 0.99,
    label_outliers: bool = False,
    decide: str = "probable",
    force: bool = False,
    done: Callable[[int], None] = lambda _: None,
) -> list[Row] | Summary:
    """Label images with a run's model: a file, a folder, several of them, or an array (N, H, W, C) of uint8.

    Without `output` it is a list of rows: image, label, confidence, energy, outlier, a probability a class. With it,
    the rows are written there (Parquet if it ends in .parquet, else CSV), in bounded memory, and summed up; a file
    that exists is replaced only with `force`.

    Outliers, whose energy is higher than that of `outlier_quantile` of the training images, get no label unless
    `label_outliers`. With `decide="balanced"` there is a column `decision` too: the class whose probability is highest
    compared with its mean over the training images, which finds more images of rare classes and makes more errors.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/predicting", epochs=2, pseudo_labels="none")
    >>> row = ebpl.predict(run, ebpl.load("digits").test.pixels[:3])[0]
    >>> row["image"], sorted(row)[:3]
    ('0', ['confidence', 'energy', 'image'])
    """
    run = opened(run)
    if output is not None:
        check_output(output, force, inside=run.path)
    limits: dict[str, Any] = {
        "abstain_below": abstain_below,
        "outlier_quantile": outlier_quantile,
        "label_outliers": label_outliers,
        "decide": decide,
    }
    rows: list[Row] = []
    if isinstance(images, np.ndarray):
        places: list[Any] = [f"an array of shape {images.shape}"]
        found = _rows_of(run, images)
    else:
        places = [images] if isinstance(images, str | os.PathLike) else list(images)
        found = find_images(places)
    if output is None:
        predict_files(run, found, rows.append, **limits, done=done)
        return rows
    with rows_into(str(output)) as write:
        summary = predict_files(run, found, write, **limits, done=done)
        if not summary.images:
            raise DataError(f"There is no image in {' or '.join(map(str, places))}.")
    return summary


def find_images(places: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files named, and the image files in the folders named and below, in the order of their names.

    Hidden folders and folders that a link leads to are not entered, so no loop is. A place that does not exist is an
    error before the first image is given, so that it costs no work.
    """
    paths = [Path(place) for place in places]
    for place in paths:
        if not os.path.exists(place):
            raise DataError(f"There is no file or folder {printable(place)}.")
    return chain.from_iterable(image_files(place) if place.is_dir() else [place] for place in paths)


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
    decide: str = "probable",
    done: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Give each image a row: path, label, confidence, energy, outlier, a probability a class; or why it has none.

    Below `abstain_below` there is no label, nor for an outlier: the energy of this share of the training images is
    lower.
    """
    model, description = run.load_model()
    channels, height, width = description["image_shape"]
    device, dtype = device_and_dtype(run.settings.runtime)
    model = model.to(device)
    classes = description["classes"]
    means = _class_means(run, decide, classes)
    limit = run.energy_limit(outlier_quantile)
    summary = Summary(outliers=None if limit is None else 0)
    labels = ("label",) if means is None else ("label", "decision")
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
                    if means is not None:
                        row["decision"] = classes[int(np.argmax(probabilities / means))]
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


def _class_means(run: Run, decide: str, classes: Sequence[str]) -> NDArray[np.float64] | None:
    """The mean probability of each class over the training images, where decisions are to be balanced by it."""
    if decide not in DECISIONS:
        raise UsageError(f"decide is {decide!r}, but there are: {', '.join(DECISIONS)}.")
    if decide == "probable":
        return None
    means = run.metrics().get("class_means") if run.finished else None
    if not isinstance(means, list) or len(means) != len(classes) or not all(map(is_number, means)):
        raise RunError(
            f"{run.path} does not hold the mean probability of each class, which a balanced decision needs: it is not "
            f"finished, or of an older version. Remove {run.path / TEST_METRICS} if it is there, and run: "
            f"ebpl resume {run.path}"
        )
    floor: NDArray[np.float64] = np.maximum(np.array(means, float), 1e-6)
    return floor


def measured_accuracy(run: Run, coverage: float) -> tuple[float, int] | None:
    """The accuracy of a run on this share of its test images, the most confident ones, and how many it has.

    None where it has no labelled test images, or is not finished.
    """
    bins = run.metrics().get("reliability") if run.finished else None
    accuracy = accuracy_at_coverage(bins, coverage) if bins else None
    return None if accuracy is None else (accuracy, sum(row["images"] for row in bins or ()))


def _batches(items: Iterator[Item], size: int) -> Iterator[Sequence[Item]]:
    while batch := list(islice(items, size)):
        yield batch


def _read(item: Item, size: tuple[int, int], gray: bool) -> tuple[NDArray[np.uint8], bool] | str:
    """The image and whether it has several frames, or why it cannot be read."""
    if isinstance(item, tuple):
        return item[1], False
    try:
        pixels, info = read_image(item, size, gray)
    except Exception as error:
        return unreadable(item, error)
    return pixels, info.frames
