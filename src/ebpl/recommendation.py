"""Which settings to train with: those that were given, else those that the images themselves call for.

A pretrained encoder helps with images that are like those it was trained on. Whether they are is found out by
cross-validation on the labels: its features are compared with plain colours and textures, which any network finds that
learns from nothing. So is whether learning from nothing needs larger images than 32 x 32, on a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebpl.comparison import (
    DETAIL,
    PLAIN_SIZE,
    accuracy_by_size,
    colors_and_textures,
    cross_validated_accuracy,
    features_of,
    is_ahead,
    size_for,
    some_of_each_class,
)
from ebpl.config import Settings
from ebpl.config import presets as named
from ebpl.config.presets import default_settings, nearest_preset
from ebpl.data import BENCHMARK_NAMES, format_of
from ebpl.data.dataset import UNLABELED, Images, ImageSet, check
from ebpl.data.decode import FORMATS, in_threads, is_text, read_picture, resized_picture, stacked
from ebpl.data.folder import LARGEST_KEPT, Listed
from ebpl.data.split import split_for
from ebpl.devices import choose_device
from ebpl.encoders import DEFAULT, EncoderInfo, fastest_device, find_encoder, load_encoder
from ebpl.errors import DataError, EbplError, UsageError, number_of
from ebpl.launch import place
from ebpl.methods import get_method
from ebpl.terminal import Progress, Silent, duration

if TYPE_CHECKING:
    import os

    Data = str | os.PathLike[str] | ImageSet

Result = TypeVar("Result")
PRESET = "features"
"""The preset that learns on the features of an encoder."""
MARGINS = {"quick": 0.1, "best": 0.17}
"""How far features must be ahead of colours and textures, by the preset that would learn from nothing. With 10 labels
a class it was 0.17 to 0.44 on photographs, where `quick` loses 30 points, and 0.06 to 0.22 on cells of 128 pixels."""
LOOKED_AT = 20
"""Images whose size says whether all are small."""
ENCODING = {"cpu": 0.06, "cuda": 0.005}
"""Seconds to read and encode an image, about."""
COMPARED = "compare an encoder with learning from nothing"
PATIENCE = 2.0
"""Seconds of silence before a bar is shown."""


@dataclass(frozen=True)
class Recommendation:
    """What to train with, and why."""

    preset: str
    encoder: str | None
    """None: from nothing."""
    image_size: int | None
    """Height and width that image files are to be read at; None: as they are read without a recommendation."""
    reason: str
    """A sentence."""
    labels: int = 0
    """Labelled images that were compared on; 0 where nothing was compared."""
    encoder_accuracy: float | None = None
    """Of logistic regression on the encoder's features, in cross-validation."""
    plain_accuracy: float | None = None
    """The same on plain colours and textures at 32 x 32 pixels."""
    size_accuracies: dict[int, float] | None = None
    """The same on those at larger sizes as well; None where there is nothing to choose from."""
    compared: ImageSet | None = field(default=None, repr=False, compare=False)
    """The images that were compared on, as training on the features takes them."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but pixels, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "compared"}

    @property
    def longer(self) -> str:
        """What else there is where an encoder helps, as a sentence."""
        more = "--fine-tune end lets the encoder's last block learn too: it takes longer, and is often more accurate."
        return more if self.encoder else ""

    def line(self, otherwise: str) -> str:
        """All of it in a line; `otherwise` is the preset that is the alternative."""
        if self.encoder:
            return (
                f"preset {self.preset}: {self.reason} {self.longer} --preset {otherwise} learns from nothing instead."
            )
        size = f" at {self.image_size} x {self.image_size} pixels" if self.size_accuracies and self.image_size else ""
        return f"preset {self.preset}, from nothing{size}: {self.reason} --preset {PRESET} uses an encoder instead."


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
) -> tuple[Settings, int | None]:
    """The settings to train with, from what a user has given, and the size that image files are best read at, if any.

    Only where neither settings, a preset, a file of settings, an encoder nor a network is named are the images asked,
    if they are files; `progress` is told of a recommendation that is followed. `seed` is of the labels that are
    compared on, if several seeds are trained.
    """
    if settings is not None and preset is not None:
        raise UsageError(
            "Give settings or a preset, not both: settings = ebpl.preset(name, ...) makes one of the other."
        )
    from_file = named.read_config(config) if config is not None else {}

    def changed(base: Settings) -> Settings:
        chosen = base.changed(from_file).changed(changes or {})
        return chosen if get_method(chosen.method).pseudo_labels else chosen.changed(pseudo_labels="none")

    if settings is not None or preset not in (None, PRESET):
        return changed(settings if settings is not None else named.preset(preset or "")), None
    features = changed(named.preset(PRESET))
    if features.model.fine_tune != "none":
        return changed(named.preset(named.FINE_TUNED[features.model.fine_tune])), None
    if preset is not None:
        return features, None
    default = default_settings(features.runtime.device)
    plain = changed(default)
    if plain.model.encoder:
        return features, None
    asked = config is None and plain.model == default.model and get_method(plain.method).takes_features
    if not asked or place().count > 1 or not listing(data):
        return plain, None
    choose_device(plain.runtime)
    try:
        how: dict[str, Any] = {"image_size": image_size, "skip_unreadable": skip_unreadable, "progress": progress}
        found = recommend(data, plain if seed is None else plain.changed(seed=seed), **how, time_limit=time_limit)
    except EbplError:  # loading the images says what is wrong with them
        return plain, None
    if progress is not None:
        progress.say(found.line(nearest_preset(default)[0]))
    features = changed(named.preset(PRESET, {"model.encoder": found.encoder}))
    return features if found.encoder else plain, found.image_size


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
    """Whether to learn on the features of the default encoder or, as `settings` do, from nothing, and at which size.

    `data` are image files or an `ImageSet`; `side` is the length of the longer side of most, where it is known. Data
    that cannot be trained on is an error.
    """
    info = find_encoder(DEFAULT)
    source = source_of(data, image_size, info.size)
    if source.absent and not skip_unreadable:
        raise DataError(f"{source.images.name}: some images do not exist.")
    check(source.images)
    labeled = split_for(source.images, settings).labeled
    preset = nearest_preset(default_settings(settings.runtime.device))[0]

    def nothing(reason: str) -> Recommendation:
        return Recommendation(preset, None, image_size, reason)

    sample = some_of_each_class(source.images.train.labels, labeled, settings.seed)
    longest = min(image_size or math.inf, _side(source, sample) if side is None else side)
    if longest <= LARGEST_KEPT:
        return nothing(
            f"The images are no larger than {LARGEST_KEPT} x {LARGEST_KEPT} pixels, where an encoder that was trained "
            "on larger photographs is of little use."
        )
    counts = np.bincount(source.images.train.labels[labeled], minlength=len(source.images.classes))
    if counts.min() < 2:
        name = source.images.classes[int(counts.argmin())]
        return nothing(
            f"Class {name} has a single label; comparing an encoder with learning from nothing takes two of each."
        )
    why = _not_comparable(source, info, time_limit)
    sizes = listing(data) is not None and image_size is None and choose_device(settings.runtime).type == "cuda"
    if why and not sizes:
        return nothing(why)
    shown = Shown(progress or Silent(), len(sample))
    images = source.read(sample, skip_unreadable, shown)
    if len(images.classes) < 2 or np.bincount(images.train.labels).min() < 2:
        return nothing("Too few of the labelled images can be read to compare an encoder with learning from nothing.")
    found = nothing(why) if why else _compared_with_encoder(nothing(""), info, images, settings, shown)
    if found.encoder:
        return replace(found, image_size=image_size or source.size)
    return _with_size(found, images, longest, settings.seed) if sizes else found


def _compared_with_encoder(
    nothing: Recommendation, info: EncoderInfo, images: ImageSet, settings: Settings, shown: Shown
) -> Recommendation:
    """The recommendation to learn from nothing or, if its features are ahead, on those of the encoder."""
    labels = images.train.labels
    try:
        rows = features_of(load_encoder(info.name, fastest_device()), images.train.pixels, settings, shown)
    except EbplError as error:
        return replace(nothing, reason=f"{info.name} could not be compared with learning from nothing. {error}")
    accuracy, plain = (
        cross_validated_accuracy(each, labels, settings.seed)
        for each in (rows, colors_and_textures(images.train.pixels))
    )
    margin = MARGINS.get(nothing.preset, max(MARGINS.values()))
    ahead = is_ahead(accuracy, plain, margin)
    reason = (
        f"By cross-validation on {len(labels)} labels, features of {info.name} reach an accuracy of "
        f"{accuracy * 100:.0f} %, plain colours and textures {plain * 100:.0f} %; a lead of {margin * 100:.0f} points, "
        f"or half the errors, {'is' if ahead else 'would be'} reason to use the encoder."
    )
    numbers: dict[str, Any] = {"labels": len(labels), "encoder_accuracy": accuracy, "plain_accuracy": plain}
    found = replace(nothing, reason=reason, **numbers)
    return replace(found, preset=PRESET, encoder=info.name, compared=images) if ahead else found


def _with_size(found: Recommendation, images: ImageSet, largest: float, seed: int) -> Recommendation:
    """The recommendation to learn from nothing with the size that suits images which are no larger than this."""
    by_size = accuracy_by_size(images.train.pixels, images.train.labels, largest, seed)
    size, plain = size_for(by_size), by_size[PLAIN_SIZE]
    others = [f"{accuracy * 100:.0f} % at {size}" for size, accuracy in by_size.items() if size > PLAIN_SIZE]
    reason = (
        f"{found.reason} Colours and textures reach {plain * 100:.0f} % at {PLAIN_SIZE} x {PLAIN_SIZE} pixels and, "
        f"with the detail of larger images, {' and '.join(others)}; {DETAIL * 100:.0f} points more are reason for "
        "larger images, which take longer."
    )
    numbers: dict[str, Any] = {"labels": len(images.train), "plain_accuracy": plain, "size_accuracies": by_size}
    return replace(found, image_size=size if size > PLAIN_SIZE else None, reason=reason, **numbers)


class Shown:
    """A bar for work that takes longer than a moment."""

    def __init__(self, progress: Progress, total: int, what: str = "labelled images", why: str = COMPARED) -> None:
        self._progress, self._total, self._what, self._why, self._where = progress, total, what, why, ""
        self._begun, self._done, self._live = 0.0, 0, False

    def __call__(self, count: int, where: str) -> None:
        """So many more are done; what is called otherwise than before begins anew."""
        if where != self._where:
            self._where, self._begun, self._done, self._live = where, time.monotonic(), 0, False
        self._done += count
        if self._live:
            self._progress.advance(count, f"{where} {self._what}", {})
            self._progress.epoch(f"{where} {self._what} to {self._why}")
        elif time.monotonic() - self._begun > PATIENCE and self._done < self._total:
            self._live = True
            self._progress.begin(self._total, self._done)


@dataclass(frozen=True)
class Source:
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

    def read(self, positions: NDArray[np.int64], skip_unreadable: bool, shown: Shown) -> ImageSet:
        """The labelled training images at these positions that can be read."""
        pixels, kept = self.pixels(positions, skip_unreadable, shown)
        labels = np.unique(self.images.train.labels[kept], return_inverse=True)
        classes = tuple(self.images.classes[label] for label in labels[0])
        return ImageSet(self.images.name, classes, Images(pixels, labels[1].astype(np.int64)))

    def pixels(
        self, positions: NDArray[np.int64], skip_unreadable: bool, shown: Shown
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Training images that can be read, and their positions."""
        found, kept = [], []
        read = in_threads(_or_none(self.open), positions.tolist())
        for position, opened in zip(positions.tolist(), read, strict=True):
            shown(1, "reading")
            if opened is not None:
                found.append(opened)
                kept.append(position)
            elif not skip_unreadable:
                raise DataError("An image cannot be read.")
        size = (found[0].shape[0], found[0].shape[1]) if found else (0, 0)
        gray = all(picture.ndim == 2 for picture in found)
        return stacked(found, size, 1 if gray else 3), np.array(kept, np.int64)


def _or_none(function: Callable[[int], Result]) -> Callable[[int], Result | None]:
    """The same function; None where it fails: a damaged file can be wrong in any way, and loading says which are."""

    def tried(position: int) -> Result | None:
        try:
            return function(position)
        except Exception:
            return None

    return tried


def source_of(data: Data, image_size: int | None, encoder_size: int) -> Source:
    """The data as a source; files are read at `image_size`, or else at the size of an encoder."""
    lister = listing(data)
    if lister is None:
        assert isinstance(data, ImageSet)
        parts = [part for part in (data.train, data.validation, data.test) if part is not None]

        def given(position: int) -> NDArray[np.uint8]:
            pixels: NDArray[np.uint8] = data.train.pixels[position]
            return pixels[..., 0] if pixels.shape[2] == 1 else pixels

        return Source(data, sum(map(len, parts)), None, False, given, lambda _: max(data.shape[1:]))
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
    return Source(images, len(listed.files), size, bool(listed.absent), opened, side)


def _side(source: Source, sample: NDArray[np.int64]) -> float:
    """The longer side of an image, by the headers of a few."""
    spread = sample[np.linspace(0, len(sample) - 1, min(LOOKED_AT, len(sample))).astype(int)]
    sides = [side for side in map(_or_none(source.side), spread.tolist()) if side is not None]
    return float(np.median(sides)) if sides else math.inf


def _not_comparable(source: Source, info: EncoderInfo, time_limit: float | None) -> str | None:
    """Why the encoder cannot be compared with learning from nothing, if it cannot."""
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
