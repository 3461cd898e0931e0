"""Active learning: which unlabelled images to label next, and the labels that come back."""

from __future__ import annotations

import csv
import difflib
import io
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data import BENCHMARK_NAMES, load
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.formats import NO_LABEL, read_arrays
from ebpl.data.split import split_for
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, UsageError, number_of, several, some_of
from ebpl.inference.predict import check_shares
from ebpl.inference.sources import images_now
from ebpl.io import check_output, harmless_cell, no_formula, plain_cell, write_bytes, write_text
from ebpl.labeling.label_studio import no_labels, read_labels
from ebpl.models.predictions import predict_with_features
from ebpl.runs import Run

LOG = logging.getLogger("ebpl")
Floats = NDArray[np.float64]
CANDIDATES = 10
"""So many times the wanted number, the most uncertain ones, are looked at for variety."""


def uncertainty(probabilities: Floats) -> Floats:
    """How near the second class comes to the first: 1 where they are equal, 0 where the first is certain.

    >>> uncertainty(np.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])).round(3).tolist()
    [1.0, 0.2]
    """
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    return np.asarray(1 - (first - second), np.float64)


def choose(
    probabilities: Floats,
    features: NDArray[np.float32],
    count: int,
    seed: int = 0,
    allowed: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Positions of `count` images, the most uncertain first; fewer if no more are allowed.

    The most uncertain images are grouped by their features into as many clusters as are wanted, where an image weighs
    as much as it is uncertain, and each cluster gives the image nearest to its middle (after Zhdanov 2019). So one
    kind of doubt is not labelled over and over.
    """
    from sklearn.cluster import KMeans

    doubt = uncertainty(probabilities)
    places = np.arange(len(doubt)) if allowed is None else np.flatnonzero(allowed)
    candidates = places[np.argsort(-doubt[places], kind="stable")][: CANDIDATES * count]
    if len(candidates) <= count:
        return candidates
    points = features[candidates].astype(np.float64)
    distinct = len(np.unique(points, axis=0))
    weights = np.maximum(doubt[candidates], 1e-6)
    groups = KMeans(min(count, distinct), n_init=3, random_state=seed).fit(points, sample_weight=weights)
    distances = ((points - groups.cluster_centers_[groups.labels_]) ** 2).sum(1)
    nearest = [candidates[_first(distances, groups.labels_ == group)] for group in range(groups.n_clusters)]
    rest = np.setdiff1d(candidates, nearest, assume_unique=True)  # images that are alike make fewer clusters
    rest = rest[np.argsort(-doubt[rest], kind="stable")][: count - len(nearest)]
    chosen = np.concatenate([np.array(nearest, np.int64), rest])
    return np.asarray(chosen[np.argsort(-doubt[chosen], kind="stable")], np.int64)


def _first(distances: Floats, inside: NDArray[np.bool_]) -> int:
    """The position of the smallest distance among those inside."""
    return int(np.argmin(np.where(inside, distances, np.inf)))


@dataclass(frozen=True)
class Suggestion:
    """An image to label, what the model takes it for, and how sure it is."""

    image: str
    index: int
    """Its position among the training images."""
    guess: str
    """What the model takes it for."""
    confidence: float
    second_guess: str
    second_confidence: float
    energy: float

    def row(self, rank: int) -> dict[str, Any]:
        """A line of the list, with a place for the label."""
        return {
            "rank": rank,
            "image": self.image,
            "label": "",
            "guess": self.guess,
            "confidence": self.confidence,
            "second_guess": self.second_guess,
            "second_confidence": self.second_confidence,
            "energy": self.energy,
        }


def suggest(
    run: Run | str | os.PathLike[str],
    n: int = 50,
    *,
    data: ImageSet | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
    with_outliers: bool = False,
    outlier_quantile: float = 0.99,
) -> list[Suggestion]:
    """The `n` unlabelled images of a finished run that are most worth a label, the most uncertain first.

    They are chosen from the run's current data: unlabelled images may have been added or removed since training.
    Images that do not look like the others are left out unless `with_outliers` is true: their label would teach little.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/few", epochs=2, pseudo_labels="none")
    >>> [len(ebpl.suggest(run, n=3)), ebpl.suggest(run, n=1)[0].confidence < 1]
    [3, True]
    """
    run = run if isinstance(run, Run) else Run(Path(run))
    if n < 1:
        raise UsageError(f"n is {n}, but must be at least 1.")
    check_shares(outlier_quantile=outlier_quantile)
    model, description = run.load_model()
    images, unchanged = images_now(run, description, data, data_dir=data_dir, skip_unreadable=skip_unreadable)
    unlabeled = _pool(run, description, images, unchanged)
    device, dtype = device_and_dtype(run.settings.runtime)
    pixels = images.train.take(unlabeled).with_channels(description["image_shape"][0]).pixels
    predictions, features = predict_with_features(model.to(device), pixels, dtype)
    limit = None if with_outliers else run.outlier_limit(outlier_quantile)
    allowed = ~limit.exceeded(predictions) if limit is not None else None
    chosen = choose(predictions.probabilities, features, n, run.settings.seed, allowed)
    classes = description["classes"]
    return [
        _suggestion(
            images.train.name(int(unlabeled[i])),
            int(unlabeled[i]),
            predictions.probabilities[i],
            float(predictions.energies[i]),
            classes,
        )
        for i in chosen
    ]


def _pool(run: Run, description: Mapping[str, Any], images: ImageSet, unchanged: bool) -> NDArray[np.int64]:
    """The positions of the unlabelled images among the training images of a run's current data."""
    if unchanged:
        unlabeled = split_for(images, run.settings).unlabeled
    else:
        if list(images.shape[1:]) != description["image_shape"][1:]:
            raise DataError(
                f"The images of {run.data_name} are {images.shape[2]} x {images.shape[1]} pixels (width x height) now, "
                f"the model was trained on {description['image_shape'][2]} x {description['image_shape'][1]}."
            )
        unlabeled = np.flatnonzero(~images.train.labeled)
        LOG.warning(
            "The images or labels of %s have changed since training. Its %d current unlabelled images are used.",
            run.data_name,
            len(unlabeled),
        )
    if not len(unlabeled):
        raise DataError(f"{run.data_name} has no unlabelled images to choose from.")
    return unlabeled


def _suggestion(
    image: str, index: int, probabilities: NDArray[np.float64], energy: float, classes: list[str]
) -> Suggestion:
    second, first = np.argsort(probabilities, kind="stable")[-2:]
    return Suggestion(
        image,
        index,
        classes[first],
        float(probabilities[first]),
        classes[second],
        float(probabilities[second]),
        energy,
    )


@dataclass(frozen=True)
class Added:
    """What came of it."""

    output: Path
    new: int
    """Images that had no label before."""
    changed: int
    """Images that had another label before."""
    notes: tuple[str, ...] = ()
    """What of the data is left out of the output, and why."""


def add_labels(
    data: str | os.PathLike[str],
    labels: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    new_classes: bool = False,
    skip_unreadable: bool = False,
) -> Added:
    """Write `data` with the labels of an export into `output`: a .csv for a folder or CSV, an .npz for an .npz.

    A class that the data does not know is an error, unless `new_classes` are wanted. Image files that cannot be read
    are an error, or left out of the output with `skip_unreadable`.
    """
    source, target = Path(data), Path(output)
    if str(data) in BENCHMARK_NAMES:
        raise UsageError(f"{data} is a benchmark, which has all its labels. Give the folder, CSV or .npz of your own.")
    wanted = ".npz" if source.suffix.lower() == ".npz" else ".csv"
    if target.suffix.lower() != wanted:
        raise UsageError(f"{source} with labels becomes a {wanted} file; the output is {target}.")
    if os.path.lexists(target):
        raise UsageError(f"{target} exists already. Choose another name.")
    check_output(target, force=False)
    read = read_labels(Path(labels))
    images = load(data, training=False, skip_unreadable=skip_unreadable)
    given = _matched(images, read, source, Path(labels))
    _check(images, given, Path(labels), new_classes and wanted == ".csv")
    before = {images.train.name(i): int(label) for i, label in enumerate(images.train.labels)}
    old = {name: images.classes[label] if label != UNLABELED else "" for name, label in before.items()}
    if wanted == ".npz":
        _write_arrays(source, target, images, given)
    else:
        _write_list(source, target, images, given)
    new = sum(old[name] == "" for name in given)
    changed = sum(old[name] not in ("", label) for name, label in given.items())
    return Added(target, new, changed, tuple(note for note in images.notes if "left out" in note))


def _matched(images: ImageSet, read: Mapping[str, str], source: Path, labels: Path) -> dict[str, str]:
    """The labels by what the data calls the images, and as it calls the classes.

    A name may also be the end of an image's path: so labels for a folder fit a CSV of the same images, and the reverse.
    """
    names = [images.train.name(i) for i in range(len(images.train))]
    exact, classes = _by_cell(names), _by_cell(images.classes)
    inexact = images.train.paths and any(image not in exact for image in read)
    by_file = _by_file(source, names if inexact else ())
    found: dict[str, str] = {}
    unknown: dict[str, list[str]] = {}
    for image, label in read.items():
        if label.lower() in NO_LABEL and label not in classes:
            continue
        name, near = "", list[str]()
        for written in dict.fromkeys((image, image.replace("\\", "/"))):  # as it stands, or as Windows writes it
            near = near or _ends_with(by_file, written)
            name = name or exact.get(written) or (near[0] if len(set(near)) == 1 else "")
        if not name:
            unknown[image] = near
        elif found.setdefault(name, classes.get(label, label)) != classes.get(label, label):
            raise DataError(f"{labels} gives {name} two labels: {found[name]} and {label}. Keep one of them.")
    if unknown:
        lines = _not_in_training(images, source, unknown)
        raise DataError(several(f"{labels} labels images that are no training images of {images.name}", lines))
    if not found:
        raise no_labels(labels)
    return found


ByFile = Mapping[str, Sequence[tuple[tuple[str, ...], str]]]
"""The parts of paths and the names of images, by the names of their files."""


def _by_file(source: Path, names: Sequence[str]) -> ByFile:
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for name in names:
        parts = _place(source, name).parts
        found.setdefault(parts[-1], []).append((parts, name))
    return found


def _ends_with(by_file: ByFile, image: str) -> list[str]:
    """The names of the images whose path ends with this one."""
    wanted = tuple(part for part in PurePosixPath(image).parts if part not in ("..", "."))
    return [name for parts, name in by_file.get(wanted[-1] if wanted else "", ()) if parts[-len(wanted) :] == wanted]


def _not_in_training(images: ImageSet, source: Path, unknown: Mapping[str, Sequence[str]]) -> list[str]:
    """A line about each image that is no training image: which ones it may be, or that it is a test image."""
    kinds = (("validation", images.validation), ("test", images.test))
    others = [(kind, _by_file(source, part.paths)) for kind, part in kinds if part is not None and part.paths]
    lines = []
    for image, near in unknown.items():
        kind = next((kind for kind, files in others if _ends_with(files, image.replace("\\", "/"))), "")
        told = f" (a {kind} image; only training images get labels)" if kind else ""
        lines.append(image[:200] + (f" (which of {', '.join(near[:3])}?)" if near else told))
    return lines


def _by_cell(names: Sequence[str]) -> dict[str, str]:
    """Names by themselves, and by how they are written in a sheet."""
    return {plain_cell(harmless_cell(name)): name for name in names} | {name: name for name in names}


def _place(source: Path, name: str) -> Path:
    """Where an image of a folder or CSV lies."""
    root = source if source.is_dir() else source.parent
    return Path(os.path.normpath(root.resolve() / name))


def _check(images: ImageSet, given: Mapping[str, str], labels: Path, new_classes: bool) -> None:
    """Every label must be of a class that is known, unless new ones are wanted."""
    unknown: dict[str, list[str]] = {}
    for image, label in given.items():
        if label not in images.classes and not new_classes:
            unknown.setdefault(label, []).append(image)
    if unknown:
        lines = [_unknown(label, found, images.classes) for label, found in unknown.items()]
        what = several(f"{labels} has labels that are no class of {images.name}", lines)
        raise DataError(
            f"{what}\nIts classes: {some_of(images.classes, 10)}. (--new-classes allows others for a folder or CSV.)"
        )


def _unknown(label: str, found: Sequence[str], classes: Sequence[str]) -> str:
    """A line about a label that is no class: where it is, and what may be meant."""
    near = difflib.get_close_matches(label[:200].lower(), [name.lower() for name in classes], n=1)
    meant = [name for name in classes if name.lower() in near]
    more = f" and {number_of(len(found) - 1, 'other image')}" if len(found) > 1 else ""
    ask = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return f"{label[:200]!r} for {found[0][:200]}{more}{ask}"


def _write_list(source: Path, target: Path, images: ImageSet, given: Mapping[str, str]) -> None:
    """A CSV of all images, with paths relative to where it lies."""
    if odd := [name for name in {*images.classes, *given.values()} if name.lower() in NO_LABEL]:
        raise DataError(f"A class is named {odd[0]}, which means unlabelled in a CSV. Give it another name.")
    root = source if source.is_dir() else source.parent
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    quoting = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["image", "label", "split"])
    for split, part in (("train", images.train), ("val", images.validation), ("test", images.test)):
        for i in range(len(part) if part else 0):
            assert isinstance(part, Images)
            name, number = part.name(i), int(part.labels[i])
            old = images.classes[number] if number != UNLABELED else ""
            label = given.get(name, old) if split == "train" else old
            path = Path(os.path.relpath((root / name).absolute(), target.parent.absolute())).as_posix()
            cells = [path if path == no_formula(path) else f"./{path}", no_formula(label), split]
            (quoting if "\r" in path + label else writer).writerow(cells)  # Python itself forgets to quote it
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
