"""Which settings to train with: those that were given, else those that the images themselves call for.

A pretrained encoder helps with images that are like those it was trained on. Whether they are is found out by
cross-validation on the labels: logistic regression on the encoder's features is compared with logistic regression on
plain colours and textures, which anything that learns from nothing finds as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ebpl.config import Settings
from ebpl.config import presets as named
from ebpl.config.presets import default_settings, nearest_preset
from ebpl.data import BENCHMARK_NAMES, format_of
from ebpl.data.dataset import UNLABELED, Images, ImageSet, check
from ebpl.data.decode import FORMATS, in_threads, is_text, read_picture, resized_picture, stacked
from ebpl.data.folder import LARGEST_KEPT, Listed
from ebpl.data.split import split_for
from ebpl.devices import choose_device
from ebpl.encoders import DEFAULT, Encoder, EncoderInfo, fastest_device, find_encoder, load_encoder
from ebpl.errors import DataError, EbplError, UsageError, number_of
from ebpl.launch import place
from ebpl.methods import get_method
from ebpl.models.encoder import EncodedImages
from ebpl.rng import derived_seed
from ebpl.terminal import Progress, Silent, duration
from ebpl.training.probe import logistic_regression, stratified_folds

if TYPE_CHECKING:
    import os

    Data = str | os.PathLike[str] | ImageSet

Result = TypeVar("Result")
PRESET = "features"
"""The preset that learns on the features of an encoder."""
MARGINS = {"quick": 0.1, "best": 0.17}
"""How far features must be ahead of colours and textures, by the preset that would learn from nothing. With 10 labels
a class it was 0.17 to 0.44 on photographs, where `quick` loses 30 points, and 0.06 to 0.22 on cells of 128 pixels."""
MOST_LABELS, MOST_CLASSES = 300, 30
"""Labelled images that are compared on, and the classes that they are of, so that it stays quick."""
LOOKED_AT = 20
"""Images whose size says whether all are small."""
PLAIN_SIZE, GRIDS = 32, (1, 2, 4)
"""Height and width at which colours and textures are looked at, and the cells a side that they are averaged over."""
UPDATES, DECAYS, REPEATS = 30, (1.0, 0.1, 0.01), 3
"""Of logistic regression, and how often the labels are dealt into folds anew: enough to compare, and quick."""
LEARNED = 8
"""Labels of a class that are learned from in a fold, as where the margin was measured: with more, any features gain."""
ENCODING = {"cpu": 0.06, "cuda": 0.005}
"""Seconds to read and encode an image, about."""
PATIENCE = 2.0
"""Seconds of silence before a bar is shown."""


@dataclass(frozen=True)
class Recommendation:
    """What to train with, and why."""

    preset: str
    encoder: str | None
    """None: from nothing."""
    image_size: int | None
    """Height and width that image files are to be read at; None: as they are read without an encoder."""
    reason: str
    """A sentence."""
    labels: int = 0
    """Labelled images that were compared on; 0 where nothing was compared."""
    encoder_accuracy: float | None = None
    """Of logistic regression on the encoder's features, in cross-validation."""
    plain_accuracy: float | None = None
    """The same on plain colours and textures."""
    compared: ImageSet | None = field(default=None, repr=False, compare=False)
    """The images that were compared on, as training on the features takes them."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but pixels, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "compared"}

    def line(self, otherwise: str) -> str:
        """All of it in a line; `otherwise` is the preset that is the alternative."""
        if self.encoder:
            return f"preset {self.preset}: {self.reason} --preset {otherwise} learns from nothing instead."
        return f"preset {self.preset}, from nothing: {self.reason} --preset {PRESET} uses an encoder instead."


def settings_for(
    data: Data,
    settings: Settings | None = None,
    preset: str | None = None,
    config: Any = None,
    changes: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
    image_size: int | None = None,
    skip_unreadable: bool = False,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Settings:
    """The settings to train with, from what a user has given; `progress` is told of a recommendation that is followed.

    Only where neither settings, a preset, a file of settings, an encoder nor a network is named are the images asked,
    if they are files. `seed` is of the labels that are compared on, if several seeds are trained.
    """
    if settings is not None and preset is not None:
        raise UsageError(
            "Give settings or a preset, not both: settings = ebpl.preset(name, ...) makes one of the other."
        )
    from_file = named.read_config(config) if config is not None else {}

    def changed(base: Settings) -> Settings:
        chosen = base.changed(from_file).changed(changes or {})
        return chosen if get_method(chosen.method).pseudo_labels else chosen.changed(pseudo_labels="none")

    if settings is not None or preset is not None:
        return changed(settings if settings is not None else named.preset(preset or ""))
    default = default_settings(changed(Settings()).runtime.device)
    plain = changed(default)
    if plain.model.encoder:
        return changed(named.preset(PRESET))
    if config is not None or plain.model != default.model or place().count > 1 or not listing(data):
        return plain
    choose_device(plain.runtime)
    try:
        how: dict[str, Any] = {"image_size": image_size, "skip_unreadable": skip_unreadable, "progress": progress}
        found = recommend(data, plain if seed is None else plain.changed(seed=seed), **how, time_limit=time_limit)
    except EbplError:  # loading the images says what is wrong with them
        return plain
    if progress is not None:
        progress.say(found.line(nearest_preset(default)[0]))
    return changed(named.preset(PRESET, {"model.encoder": found.encoder})) if found.encoder else plain


def listing(data: Data) -> Callable[[Path], Listed] | None:
    """What lists the image files of the data; None where it is not made of image files."""
    if isinstance(data, ImageSet) or str(data) in BENCHMARK_NAMES or not is_text(str(data)):
        return None
    form = format_of(Path(data))
    return form.lister() if form else None


def encoder_size(data: Data, settings: Settings) -> int | None:
    """The size to read image files at for the encoder of these settings; it resizes other images itself."""
    return find_encoder(settings.model.encoder).size if settings.model.encoder and listing(data) else None


def recommend(
    data: Data,
    settings: Settings,
    *,
    image_size: int | None = None,
    side: float | None = None,
    skip_unreadable: bool = True,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Recommendation:
    """Whether to learn on the features of the default encoder or, as `settings` do, from nothing.

    `data` are image files or an `ImageSet`; `side` is the length of the longer side of most, where it is known. Data
    that cannot be trained on is an error.
    """
    info = find_encoder(DEFAULT)
    source = _source(data, image_size, info.size)
    if source.absent and not skip_unreadable:
        raise DataError(f"{source.images.name}: some images do not exist.")
    check(source.images)
    labeled = split_for(source.images, settings).labeled
    preset = nearest_preset(default_settings(settings.runtime.device))[0]

    def nothing(reason: str) -> Recommendation:
        return Recommendation(preset, None, image_size, reason)

    sample = _sample(source.images.train.labels, labeled, settings.seed)
    longest = min(image_size or math.inf, _side(source, sample) if side is None else side)
    if longest <= LARGEST_KEPT:
        return nothing(
            f"The images are no larger than {LARGEST_KEPT} x {LARGEST_KEPT} pixels, where an encoder that was trained "
            "on larger photographs is of little use."
        )
    if why := _not_comparable(source, labeled, info, time_limit):
        return nothing(why)
    shown = _Shown(progress or Silent(), len(sample))
    images = source.read(sample, skip_unreadable, shown)
    if len(images.classes) < 2 or np.bincount(images.train.labels).min() < 2:
        return nothing("Too few of the labelled images can be read to compare an encoder with learning from nothing.")
    try:
        encoder = load_encoder(info.name, fastest_device())
        accuracy = _accuracy(_features(encoder, images, settings, shown), images.train.labels, settings.seed)
    except EbplError as error:
        return nothing(f"{info.name} could not be compared with learning from nothing. {error}")
    plain = _accuracy(colors_and_textures(images.train.pixels), images.train.labels, settings.seed)
    margin = MARGINS.get(preset, max(MARGINS.values()))
    labels, ahead = len(images.train), is_ahead(accuracy, plain, margin)
    verdict = "is reason" if ahead else "would be reason"
    reason = (
        f"By cross-validation on {labels} labels, features of {info.name} reach an accuracy of {accuracy * 100:.0f} %, "
        f"plain colours and textures {plain * 100:.0f} %; a lead of {margin * 100:.0f} points, or half the errors, "
        f"{verdict} to use the encoder."
    )
    if not ahead:
        return Recommendation(preset, None, image_size, reason, labels, accuracy, plain)
    return Recommendation(PRESET, info.name, image_size or source.size, reason, labels, accuracy, plain, images)


def is_ahead(accuracy: float, plain: float, margin: float) -> bool:
    """Whether features are far enough ahead of plain statistics; two classes often leave no room for such a lead."""
    return accuracy - plain >= margin or (accuracy > plain and 1 - accuracy <= (1 - plain) / 2)


class _Shown:
    """A bar for work that takes longer than a moment."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._where = progress, total, ""
        self._begun, self._done, self._live = 0.0, 0, False

    def __call__(self, count: int, where: str) -> None:
        """So many more are done; what is called otherwise than before begins anew."""
        if where != self._where:
            self._where, self._begun, self._done, self._live = where, time.monotonic(), 0, False
        self._done += count
        if self._live:
            self._progress.advance(count, f"{where} labelled images", {})
            self._progress.epoch(f"{where} labelled images to compare an encoder with learning from nothing")
        elif time.monotonic() - self._begun > PATIENCE and self._done < self._total:
            self._live = True
            self._progress.begin(self._total, self._done)


@dataclass(frozen=True)
class _Source:
    """Labels of all images, and a way to the pixels of a few."""

    images: ImageSet
    """Without pixels where they are in files."""
    count: int
    """Images of all parts."""
    size: int | None
    """Height and width that files are read at."""
    absent: bool
    """Whether images are listed that do not exist."""
    open: Callable[[int], NDArray[np.uint8]]
    """The pixels of a training image, gray (H, W) or colour (H, W, 3)."""
    side: Callable[[int], int]
    """The length of the longer side of a training image before it is resized."""

    def read(self, positions: NDArray[np.int64], skip_unreadable: bool, shown: _Shown) -> ImageSet:
        """The training images at these positions that can be read."""
        found, kept = [], []
        for position, opened in zip(
            positions.tolist(), in_threads(_or_none(self.open), positions.tolist()), strict=True
        ):
            shown(1, "reading")
            if opened is not None:
                found.append(opened)
                kept.append(position)
            elif not skip_unreadable:
                raise DataError("An image cannot be read.")
        size = (found[0].shape[0], found[0].shape[1]) if found else (0, 0)
        pixels = stacked(found, size, 1 if all(picture.ndim == 2 for picture in found) else 3)
        labels = np.unique(self.images.train.labels[np.array(kept, np.int64)], return_inverse=True)
        classes = tuple(self.images.classes[label] for label in labels[0])
        return ImageSet(self.images.name, classes, Images(pixels, labels[1].astype(np.int64)))


def _or_none(function: Callable[[int], Result]) -> Callable[[int], Result | None]:
    """The same function; None where it fails: a damaged file can be wrong in any way, and loading says which are."""

    def tried(position: int) -> Result | None:
        try:
            return function(position)
        except Exception:
            return None

    return tried


def _source(data: Data, image_size: int | None, encoder_size: int) -> _Source:
    lister = listing(data)
    if lister is None:
        assert isinstance(data, ImageSet)
        parts = [part for part in (data.train, data.validation, data.test) if part is not None]

        def given(position: int) -> NDArray[np.uint8]:
            pixels: NDArray[np.uint8] = data.train.pixels[position]
            return pixels[..., 0] if pixels.shape[2] == 1 else pixels

        return _Source(data, sum(map(len, parts)), None, False, given, lambda _: max(data.shape[1:]))
    assert not isinstance(data, ImageSet)
    listed, size = lister(Path(data)), image_size or encoder_size
    number = {label: index for index, label in enumerate(listed.classes)} | {"": UNLABELED}
    bare = {
        part: Images(
            np.zeros((len(files), 0, 0, 1), np.uint8), np.array([number[label] for _, label in files], np.int64)
        )
        for part, files in listed.parts.items()
    }
    nobody = Images(np.zeros((0, 0, 0, 1), np.uint8), np.zeros(0, np.int64))

    def opened(position: int) -> NDArray[np.uint8]:
        picture = read_picture(listed.parts["train"][position][0])[0]
        return np.asarray(resized_picture(picture, (size, size)), np.uint8)

    def side(position: int) -> int:
        with Image.open(listed.parts["train"][position][0], formats=FORMATS) as picture:
            return max(picture.size)

    images = ImageSet(listed.name, listed.classes, bare.get("train", nobody), validation=bare.get("validation"))
    return _Source(images, len(listed.files), size, bool(listed.absent), opened, side)


def _sample(labels: NDArray[np.int64], positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Some labelled images of each class, or of some classes where there are many: a function of the seed."""
    random = np.random.RandomState(derived_seed(seed, "recommendation") % 2**32)
    classes = random.permutation(np.unique(labels[positions]))[:MOST_CLASSES]
    each = MOST_LABELS // len(classes)
    return np.sort(np.concatenate([random.permutation(positions[labels[positions] == c])[:each] for c in classes]))


def _side(source: _Source, sample: NDArray[np.int64]) -> float:
    """The longer side of an image, by the headers of a few."""
    spread = sample[np.linspace(0, len(sample) - 1, min(LOOKED_AT, len(sample))).astype(int)]
    sides = [side for side in map(_or_none(source.side), spread.tolist()) if side is not None]
    return float(np.median(sides)) if sides else math.inf


def _not_comparable(
    source: _Source, labeled: NDArray[np.int64], info: EncoderInfo, time_limit: float | None
) -> str | None:
    """Why an encoder cannot be compared with learning from nothing, if it cannot."""
    counts = np.bincount(source.images.train.labels[labeled], minlength=len(source.images.classes))
    if counts.min() < 2:
        name = source.images.classes[int(counts.argmin())]
        return f"Class {name} has a single label; comparing an encoder with learning from nothing takes two of each."
    if info.path is None:
        return (
            f"{info.name} is not installed, so it could not be compared with learning from nothing; "
            f"{info.install} installs it."
        )
    needed = source.count * ENCODING[fastest_device()]
    if time_limit is not None and needed > time_limit / 2:
        many = number_of(source.count, "image")
        return f"An encoder needs about {duration(needed)} for {many}, which is more than half of the time limit."
    return None


def _features(encoder: Encoder, images: ImageSet, settings: Settings, shown: _Shown) -> Tensor:
    """The images as training on the features would see them, were they all that there is."""
    features = torch.from_numpy(encoder.encode(images.train.pixels, lambda count: shown(count, "encoding")))
    backbone = EncodedImages(encoder.info.name, encoder.digest, encoder.dimension, settings.model.components)
    backbone.fit(features)
    return backbone.scale(features)


def colors_and_textures(pixels: NDArray[np.uint8]) -> Tensor:
    """Means and standard deviations of pixels and of their gradients over cells of each image, standardised."""
    pictures = [image[..., 0] if image.shape[2] == 1 else image for image in pixels]
    small = torch.from_numpy(stacked(pictures, (PLAIN_SIZE, PLAIN_SIZE), pixels.shape[3]))
    values = small.permute(0, 3, 1, 2).float() / 255
    across, down = values.diff(dim=3, append=values[..., -1:]).abs(), values.diff(dim=2, append=values[:, :, -1:]).abs()
    maps = torch.cat([values, across, down], 1)
    found = []
    for cells in GRIDS:
        side = PLAIN_SIZE // cells
        grid = maps.reshape(*maps.shape[:2], cells, side, cells, side).transpose(3, 4).flatten(4)
        found += [grid.mean(-1).flatten(1), grid.std(-1).flatten(1)]
    rows = torch.cat(found, 1)
    return (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-6)


def _accuracy(rows: Tensor, labels: NDArray[np.int64], seed: int) -> float:
    """Of logistic regression in cross-validation, with the weight decay that suits it best."""
    answers = torch.from_numpy(labels)
    targets, right = F.one_hot(answers).float(), dict.fromkeys(DECAYS, 0)
    random = np.random.RandomState(derived_seed(seed, "folds") % 2**32)
    for _ in range(REPEATS):
        for rest, seen in stratified_folds(labels, int(random.randint(2**31))):
            mixed = random.permutation(rest)
            learned = np.concatenate([mixed[labels[mixed] == c][:LEARNED] for c in range(targets.shape[1])])
            for decay in DECAYS:
                weight, bias = logistic_regression(rows[learned], targets[learned], decay, UPDATES)
                right[decay] += int((F.linear(rows[seen], weight, bias).argmax(1) == answers[seen]).sum())
    return max(right.values()) / (REPEATS * len(labels))
