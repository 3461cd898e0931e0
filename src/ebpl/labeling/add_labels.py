"""Labels that came back, put into the data: a new CSV or .npz to train on, the old data as it was."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebpl.data import BENCHMARK_NAMES, load
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.formats import read_arrays
from ebpl.errors import DataError, UsageError, did_you_mean
from ebpl.io import write_bytes, write_text
from ebpl.labeling.label_studio import read_labels


@dataclass(frozen=True)
class Added:
    """What came of it."""

    output: Path
    new: int
    """Images that had no label before."""
    changed: int
    """Images that had another label before."""


def add_labels(
    data: str | os.PathLike[str],
    labels: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    new_classes: bool = False,
) -> Added:
    """Write `data` with the labels of an export into `output`: a .csv for a folder or CSV, an .npz for an .npz.

    A class that the data does not know is an error, unless `new_classes` are wanted.
    """
    source, target = Path(data), Path(output)
    if str(data) in BENCHMARK_NAMES:
        raise UsageError(f"{data} is a benchmark, which has all its labels. Give the folder, CSV or .npz of your own.")
    wanted = ".npz" if source.suffix.lower() == ".npz" else ".csv"
    if target.suffix.lower() != wanted:
        raise UsageError(f"{source} with labels becomes a {wanted} file; the output is {target}.")
    if target.exists():
        raise UsageError(f"{target} exists already. Choose another name.")
    given = read_labels(Path(labels))
    images = load(data, training=False)
    _check(images, given, Path(labels), new_classes and wanted == ".csv")
    before = {images.train.name(i): int(label) for i, label in enumerate(images.train.labels)}
    old = {name: images.classes[label] if label != UNLABELED else "" for name, label in before.items()}
    if wanted == ".npz":
        _write_arrays(source, target, images, given)
    else:
        _write_list(source, target, images, given)
    new = sum(old[name] == "" for name in given)
    return Added(target, new, sum(old[name] not in ("", label) for name, label in given.items()))


def _check(images: ImageSet, given: Mapping[str, str], labels: Path, new_classes: bool) -> None:
    """Every label must be for an image that is there, and of a class that is known."""
    names = {images.train.name(i) for i in range(len(images.train))}
    unknown = [image for image in given if image not in names]
    if unknown:
        shown = "\n  ".join(unknown[:10])
        more = f"\n  ... and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        raise DataError(f"{labels} labels images that {images.name} does not have:\n  {shown}{more}")
    for image, label in given.items():
        if label not in images.classes and not new_classes:
            raise DataError(
                f"{labels} calls {image} {label!r}, which is no class of {images.name}. "
                f"{did_you_mean(label, images.classes)} (--new-classes allows it for a folder or CSV.)"
            )


def _write_list(source: Path, target: Path, images: ImageSet, given: Mapping[str, str]) -> None:
    """A CSV of all images, with paths relative to where it lies."""
    root = source if source.is_dir() else source.parent
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "label", "split"])
    for split, part in (("train", images.train), ("val", images.validation), ("test", images.test)):
        for i in range(len(part) if part else 0):
            assert isinstance(part, Images)
            name, number = part.name(i), int(part.labels[i])
            old = images.classes[number] if number != UNLABELED else ""
            label = given.get(name, old) if split == "train" else old
            path = os.path.relpath((root / name).absolute(), target.parent.absolute())
            writer.writerow([Path(path).as_posix(), label, split])
    write_text(target, text.getvalue())


def _write_arrays(source: Path, target: Path, images: ImageSet, given: Mapping[str, str]) -> None:
    """The same arrays with other training labels."""
    arrays = read_arrays(source)
    values = arrays["train_labels"].astype(np.int64)
    for image, label in given.items():
        values.reshape(len(values), -1)[int(image)] = images.classes.index(label)
    arrays["train_labels"] = values
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]  # NumPy takes an array to be its switch
    write_bytes(target, packed.getbuffer())
