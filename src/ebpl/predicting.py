"""Predictions for image files, as many as there are, in bounded memory: read, predicted and written in batches."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.files import image_files, printable, read_pixels, readers, unreadable
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError
from ebpl.learning.prediction import BATCH, predict
from ebpl.runs import Run

Row = dict[str, Any]


@dataclass
class Summary:
    """What came out, in numbers."""

    images: int = 0
    unreadable: int = 0
    kept: int = 0
    """Images with a label: readable, and the model was confident enough."""
    outliers: int = 0
    confidence: float = 0.0
    """Sum of the confidences of those; their mean is the accuracy to expect, if the confidence can be believed."""

    @property
    def expected_accuracy(self) -> float | None:
        """The share of right labels to expect among those given."""
        return self.confidence / self.kept if self.kept else None


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
    write: Callable[[Row], None],
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
    summary = Summary()
    with readers() as pool:
        for paths in _batches(iter(images), BATCH):
            read = list(pool.map(lambda path: _read(path, (height, width), channels == 1), paths))
            pixels = [each for each in read if not isinstance(each, str)]
            predictions = predict(model, np.stack(pixels), dtype) if pixels else None
            at = 0
            for path, found in zip(paths, read, strict=True):
                row: Row = {"image": printable(path), "label": "", "confidence": "", "energy": "", "outlier": ""}
                summary.images += 1
                if isinstance(found, str) or predictions is None:
                    summary.unreadable += 1
                    write({**row, **{f"p({name})": "" for name in classes}, "problem": found})
                    continue
                probabilities, energy = predictions.probabilities[at], float(predictions.energies[at])
                at += 1
                best = int(probabilities.argmax())
                confidence = float(probabilities[best])
                if confidence >= abstain_below:
                    row["label"] = classes[best]
                    summary.kept += 1
                    summary.confidence += confidence
                row |= {"confidence": f"{confidence:.6f}", "energy": f"{energy:.6g}"}
                if limit is not None:
                    row["outlier"] = "yes" if energy > limit else "no"
                    summary.outliers += energy > limit
                write(
                    {
                        **row,
                        **{f"p({n})": f"{p:.6f}" for n, p in zip(classes, probabilities, strict=True)},
                        "problem": "",
                    }
                )
            done(len(paths))
    return summary


def outlier_limit(run: Run, quantile: float) -> float | None:
    """The energy that this share of the training images stays below; None for a model without a density."""
    energies = run.metrics().get("training_energies") if run.finished else None
    return float(np.quantile(energies, quantile)) if energies else None


def csv_writer(file: IO[str]) -> Callable[[Row], None]:
    """Writes rows to a CSV file, with a header before the first."""
    writer: csv.DictWriter[str] | None = None

    def write(row: Row) -> None:
        nonlocal writer
        if writer is None:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)

    return write


def _batches(paths: Iterator[Path], size: int) -> Iterator[Sequence[Path]]:
    while batch := list(islice(paths, size)):
        yield batch


def _read(path: Path, size: tuple[int, int], gray: bool) -> NDArray[np.uint8] | str:
    """The image, or why it cannot be read."""
    try:
        return read_pixels(path, size, gray)
    except Exception as error:
        return unreadable(path, error)
