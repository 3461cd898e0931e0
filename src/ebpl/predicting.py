"""Predictions for image files, as many as there are, in bounded memory: read, predicted and written in batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ebpl.data.files import Look, image_files, printable, read_image, readers, unreadable
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError
from ebpl.learning.prediction import BATCH, predict
from ebpl.measuring.summary import accuracy_at_coverage
from ebpl.runs import Run
from ebpl.writing import Row, Write


@dataclass
class Summary:
    """What came out, in numbers."""

    images: int = 0
    unreadable: int = 0
    kept: int = 0
    """Images with a label: readable, and the model was confident enough."""
    confidence: float = 0.0
    """Sum of the confidences of those; their mean is the accuracy to expect, if the confidence can be believed."""
    outliers: int | None = None
    """Images that do not look like the training images; None where the model cannot tell."""
    frames: int = 0
    """Images with several frames or pages, of which the first was taken."""

    @property
    def expected_accuracy(self) -> float | None:
        """The share of right labels to expect among those given."""
        return self.confidence / self.kept if self.kept else None

    @property
    def coverage(self) -> float | None:
        """The share of the readable images that have a label."""
        readable = self.images - self.unreadable
        return self.kept / readable if readable else None


def find_images(places: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files named, and the image files in the folders named and below, in the order of their names.

    Hidden folders and folders that a link leads to are not entered, so no loop is. A place that does not exist is an
    error before the first image is given, so that it costs no work.
    """
    found = [Path(place) for place in places]
    for place in found:
        if not os.path.exists(place):
            raise DataError(f"There is no file or folder {printable(place)}.")
    return chain.from_iterable(image_files(place) if place.is_dir() else [place] for place in found)


def predict_files(
    run: Run,
    images: Iterable[Path],
    write: Write,
    *,
    abstain_below: float = 0.0,
    outlier_quantile: float = 0.99,
    done: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Give each image a row: path, label, confidence, energy, outlier, a probability a class; or why it has none.

    Below `abstain_below` there is no label. An outlier has a higher energy than that share of the training images.
    """
    model, description = run.load_model()
    channels, height, width = description["image_shape"]
    device, dtype = device_and_dtype(run.settings)
    model = model.to(device)
    classes = description["classes"]
    limit = outlier_limit(run, outlier_quantile)
    summary = Summary(outliers=None if limit is None else 0)
    names = ("label", "confidence", "energy", "outlier", *(f"p({name})" for name in classes), "problem")
    empty = dict.fromkeys(names)
    none = np.zeros((0, height, width, channels), np.uint8)
    with readers() as pool:
        for paths in _batches(iter(images), BATCH):
            read = list(pool.map(lambda path: _read(path, (height, width), channels == 1), paths))
            pixels = [found[0] for found in read if not isinstance(found, str)]
            predictions = predict(model, np.stack(pixels) if pixels else none, dtype)
            predicted = zip(predictions.probabilities.tolist(), predictions.energies.tolist(), strict=True)
            for path, found in zip(paths, read, strict=True):
                row: Row = {"image": printable(path), **empty}
                summary.images += 1
                if isinstance(found, str):
                    summary.unreadable += 1
                    write({**row, "problem": found})
                    continue
                summary.frames += found[1].frames
                probabilities, energy = next(predicted)
                confidence = max(probabilities)
                if confidence >= abstain_below:
                    row["label"] = classes[probabilities.index(confidence)]
                    summary.kept += 1
                    summary.confidence += confidence
                row |= {"confidence": confidence, "energy": energy}
                row |= {f"p({name})": p for name, p in zip(classes, probabilities, strict=True)}
                if limit is not None and summary.outliers is not None:
                    row["outlier"] = energy > limit
                    summary.outliers += energy > limit
                write(row)
            done(len(paths))
    return summary


def measured_accuracy(run: Run, coverage: float) -> tuple[float, int] | None:
    """The accuracy of a run on this share of its test images, the most confident ones, and how many it has.

    None where it has no labelled test images, or is not finished.
    """
    bins = run.metrics().get("reliability") if run.finished else None
    accuracy = accuracy_at_coverage(bins, coverage) if bins else None
    return None if accuracy is None else (accuracy, sum(row["images"] for row in bins or ()))


def outlier_limit(run: Run, quantile: float) -> float | None:
    """The energy that this share of the training images stays below; None for a model without a density."""
    energies = run.metrics().get("training_energies") if run.finished else None
    return float(np.quantile(energies, quantile)) if energies else None


def _batches(paths: Iterator[Path], size: int) -> Iterator[Sequence[Path]]:
    while batch := list(islice(paths, size)):
        yield batch


def _read(path: Path, size: tuple[int, int], gray: bool) -> tuple[NDArray[np.uint8], Look] | str:
    """The image, or why it cannot be read."""
    try:
        return read_image(path, size, gray)
    except Exception as error:
        return unreadable(path, error)
