"""The images to predict or to measure on: files, folders, lists and arrays, and a run's own data."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ebpl.calibration.class_mix import mix_of
from ebpl.data import BENCHMARK_NAMES, load
from ebpl.data.dataset import UNLABELED, Images, ImageSet, in_training
from ebpl.data.decode import as_seen, image_files, listed_file, printable, read_image, sized, unreadable
from ebpl.data.formats import read_table, text_of
from ebpl.data.split import split_for
from ebpl.errors import DataError, EbplError, RunError, UsageError, number_of
from ebpl.runs import Run
from ebpl.runs.reader import WEIGHTS, finite, read_training_digests

if TYPE_CHECKING:
    from PIL.Image import Image

    from ebpl.models import HybridModel

PATH_COLUMNS = ("image", "path", "file")
MOST_FILES = 20_000
"""More image files of a run are not read again only to look for some of them."""
Data = str | os.PathLike[str] | ImageSet
Item = Path | tuple[str, "NDArray[np.uint8] | Image"]
"""An image file, or a name and its pixels or picture."""
Reading = tuple[NDArray[np.uint8], bool] | str
"""An image and whether it has several frames, or why it cannot be read."""


def opened(run: Run | str | os.PathLike[str]) -> Run:
    """The run, or the one at this path."""
    return run if isinstance(run, Run) else Run(Path(run))


def model_of(run: Run, class_mix: str | os.PathLike[str] | None = None) -> tuple[HybridModel, dict[str, Any]]:
    """A run's model and its description, for another class mix than its own where one is given.

    It is "labels", "balanced" or a file. Energies, by which outliers are told, stay as they were.
    """
    model, description = run.load_model()
    if class_mix is not None:
        counts = label_counts(run, description["classes"])
        mix = mix_of(os.fspath(class_mix), description["classes"], counts)
        if mix == "auto":
            raise UsageError(
                "A class mix is estimated in training (ebpl train --class-mix auto). Here it is labels, balanced, or "
                "a file."
            )
        ratio = mix.log_ratio if mix else [0.0] * len(counts)
        model.log_mix.copy_(torch.tensor(ratio))
    return model, description


def label_counts(run: Run, classes: Sequence[str]) -> NDArray[np.int64]:
    """How many labels of each class a finished run was trained with."""
    images = run.metrics().get("images") if run.finished else None
    labelled = images.get("labelled") if isinstance(images, dict) else None
    counts = [finite(labelled.get(name)) or 0 for name in classes] if isinstance(labelled, dict) else []
    if not counts or min(counts) < 1:
        raise RunError(
            f"{run.path} does not hold how many labels each class had, which another class mix needs: it is not "
            f"finished, or damaged. Continue it with: ebpl resume {run.path}"
        )
    return np.array(counts, np.int64)


def test_images(
    run: Run, data: Data | None, data_dir: Any, description: dict[str, Any], skip_unreadable: bool
) -> tuple[Images, Sequence[str]]:
    """The images to measure on, with labels in the model's own numbering, and what was done to them."""
    if data is None:
        return own_test_images(run, data_dir, description, skip_unreadable)
    images = load_for(description, data, data_dir, skip_unreadable)
    part = images.test if images.test is not None and images.test.labeled.any() else images.train
    if not part.labeled.any():
        raise DataError(f"{images.name} has no labelled image to measure on.")
    own = images if images.fingerprint() == run.source.get("fingerprint") else None
    part = as_trained(description, images, part)
    return part, [*images.notes, *trained_on(run, part, own)]


def calibration_images(
    runs: Sequence[Run], description: dict[str, Any], given: Data | None
) -> tuple[Images, str, list[str]]:
    """Labelled images that promises are made from: which they are, in words, and what to know of them.

    Those given; else the run's own test images, or its validation images, which chose the weights.
    """
    run = runs[0]
    advice = "Give labelled images that the model has not learned from with --calibration (in Python: calibration=...)."
    if given is not None:
        images, notes = test_images(run, given, None, description, True)
        name = given.name if isinstance(given, ImageSet) else os.fspath(given)
        return images, f"{number_of(int(images.labeled.sum()), 'labelled image')} of {name}", list(notes)
    try:
        now, unchanged = images_now(run, description)
        if now.test is not None and now.test.labeled.any():
            images, notes = own_test_images(run, None, description, False)
            which = number_of(int(images.labeled.sum()), "test image")
            return images, f"the run's {which}, which are no longer a fair test of this", list(notes)
    except (RunError, DataError) as error:
        raise type(error)(f"{error} {advice}") from error
    validation = _own_validation(runs, now) if unchanged else None
    if validation is None:
        raise DataError(f"{run.data_name} has no test or validation images to make promises from. {advice}")
    return validation, f"the run's {number_of(len(validation), 'validation image')}, which chose the weights", []


def _own_validation(runs: Sequence[Run], images: ImageSet) -> Images | None:
    """The labelled validation images of the data, or the labels that a single run held out of it."""
    if images.validation is not None:
        found = images.validation.take(np.flatnonzero(images.validation.labeled))
    elif len(runs) == 1:
        found = images.train.take(split_for(images, runs[0].settings).validation)
    else:  # each seed has learned from the labels that others held out
        return None
    return found if len(found) else None


def trained_on(run: Run, images: Images, own: ImageSet | None = None) -> list[str]:
    """A note where a run was trained on some of the labelled images, or where that is not known."""
    unknown, digests = "Whether these images were in the training data was not checked", read_training_digests(run.path)
    try:
        if digests is None and own is None and _many_files(run):
            return [f"{unknown}: the run's own images are too many to read them again"]
        digests = (own or run.load_data()).train.short_digests() if digests is None else digests
    except (EbplError, OSError, MemoryError):
        return [f"{unknown}: the run's own images cannot be read"]
    labeled = int(images.labeled.sum())
    return in_training(images.labeled_among(digests), labeled, f"these {labeled} images")


def _many_files(run: Run) -> bool:
    """Whether a run was trained on so many image files that reading them again takes long."""
    path = str(run.source.get("path"))
    counts = run.metrics().get("images") if run.finished else None
    if path in BENCHMARK_NAMES or path.lower().endswith(".npz") or not isinstance(counts, dict):
        return False
    labelled = counts.get("labelled")
    numbers = [*(labelled.values() if isinstance(labelled, dict) else ()), counts.get("unlabelled")]
    return sum(finite(number) or 0.0 for number in numbers) > MOST_FILES


def own_test_images(
    run: Run, data_dir: Any, description: dict[str, Any], skip_unreadable: bool
) -> tuple[Images, Sequence[str]]:
    """The run's own test images; they must be as they were, other images of its data need not."""
    images, unchanged = images_now(run, description, data_dir=data_dir, skip_unreadable=skip_unreadable)
    test, notes = images.test, list(images.notes)
    if unchanged:
        check_own(run, images, description)
    elif test is not None or "test_fingerprint" in run.source:
        where = shlex.quote(run.source["path"]) if test is not None and test.labeled.any() else "DATA"
        where += " --skip-unreadable" if run.source.get("skip_unreadable") else ""
        test = renumbered(description, images, test) if test is not None else None
        if test is None or test.fingerprint(tuple(description["classes"])) != run.source.get("test_fingerprint"):
            raise RunError(
                f"The images or labels of {run.data_name} have changed since {run.path} was trained, and its test "
                "images are not known to be the same. Measure on labelled images as they are now with: "
                f"ebpl evaluate {run.path} {where}"
            )
        notes.append(f"Images or labels of {run.data_name} have changed since training; its test images are the same.")
    if test is None or not test.labeled.any():
        raise DataError(
            f"{run.data_name} has no test images. Give labelled images to measure on: ebpl evaluate {run.path} DATA"
        )
    return test, [*notes, *trained_on(run, test, images if unchanged else None)]


def images_now(
    run: Run,
    description: dict[str, Any],
    data: ImageSet | None = None,
    *,
    data_dir: Any = None,
    skip_unreadable: bool = False,
) -> tuple[ImageSet, bool]:
    """A run's current data, at the size of its model, and whether it is unchanged since training."""
    if data is None:
        _, height, width = description["image_shape"]
        changes: dict[str, Any] = {"image_size": height} if height == width else {}
        changes |= {"skip_unreadable": True} if skip_unreadable else {}
        data = run.data_now(data_dir, training=False, **changes)
    return data, data.fingerprint() == run.source.get("fingerprint")


def check_own(run: Run, images: ImageSet, description: dict[str, Any]) -> None:
    """Raise where the weights in a run directory are not for the images that the run was trained on."""
    if list(images.classes) != description["classes"] or list(images.shape) != description["image_shape"]:
        raise RunError(f"{run.path / WEIGHTS} is not of this run: its classes or image sizes are others.")


def load_for(description: dict[str, Any], data: Data, data_dir: Any = None, skip_unreadable: bool = False) -> ImageSet:
    """Other data at the size that the model was trained on."""
    _, height, width = description["image_shape"]
    square = height if height == width else None
    return load(data, data_dir=data_dir, image_size=square, training=False, skip_unreadable=skip_unreadable)


def as_trained(description: dict[str, Any], images: ImageSet, part: Images) -> Images:
    """A part of other data with the channels and the numbering of classes that the model was trained on."""
    names, size = description["classes"], description["image_shape"]
    unknown = set(images.classes) - set(names)
    if unknown:
        raise DataError(
            f"{images.name} has classes the model does not know: {', '.join(sorted(unknown))}. "
            f"It knows: {', '.join(names)}. (Arrays get names with ebpl.from_arrays(images, labels, classes=...).)"
        )
    if list(images.shape[1:]) != size[1:]:
        raise DataError(
            f"{images.name} has images of {images.shape[2]} x {images.shape[1]} pixels (width x height), the model was "
            f"trained on {size[2]} x {size[1]}."
        )
    return renumbered(description, images, part)


def renumbered(description: dict[str, Any], images: ImageSet, part: Images) -> Images:
    """A part with the model's channels and numbering of classes; an image of a class that it does not know has none."""
    names, part = description["classes"], part.with_channels(description["image_shape"][0])
    number = np.array([names.index(name) if name in names else UNLABELED for name in images.classes] + [UNLABELED])
    return Images(part.pixels, number[part.labels], part.paths)


def items_of(images: Any, image_shape: Sequence[int], skipped: Counter[str]) -> tuple[Iterator[Item], str]:
    """The images one by one, and where they were looked for, in words; `skipped` counts what is not read there."""
    if isinstance(images, np.ndarray):
        return _rows_of(images, image_shape), f"an array of shape {images.shape}"
    places = _places(images)
    where = " or ".join(printable(place) for place in places if isinstance(place, Path)) or "an empty list"
    return _found(places, skipped), where


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


def _rows_of(images: NDArray[Any], image_shape: Sequence[int]) -> Iterator[Item]:
    """The images of an array, with their numbers for names."""
    pixels = images[..., None] if images.ndim == 3 else images
    channels, height, width = image_shape
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (height, width, channels):
        raise DataError(
            f"The model takes uint8 images of {height} x {width} x {channels}; these are {images.dtype} of shape "
            f"{images.shape}."
        )
    return ((str(number), each) for number, each in enumerate(pixels))


def batches(items: Iterator[Item], size: int) -> Iterator[Sequence[Item]]:
    """So many of the images at a time."""
    while batch := list(islice(items, size)):
        yield batch


def read_item(item: Item, size: tuple[int, int], gray: bool) -> Reading:
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
