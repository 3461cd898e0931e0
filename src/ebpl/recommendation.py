"""Which settings to train with: those that were given, else those that the images themselves call for.

A pretrained encoder helps with images that are like those it was trained on. Whether they are is found out by
cross-validation on the labels: its features are compared with plain colours and textures, which any network finds that
learns from scratch. So is whether its last block should learn too, and whether learning from scratch needs larger
images than 32 x 32, on a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ebpl.comparison import (
    DETAIL,
    PLAIN_SIZE,
    accuracy_by_size,
    colors_and_textures,
    components_of,
    cross_validated_accuracy,
    encoded_by,
    is_ahead,
    size_for,
    some_of_each_class,
)
from ebpl.config import Settings
from ebpl.config import presets as named
from ebpl.config.presets import default_settings, nearest_preset
from ebpl.data.contents import Data, LazyImages, lazy_images, listing, side_of
from ebpl.data.dataset import ImageSet, check
from ebpl.data.folder import LARGEST_KEPT
from ebpl.data.split import split_for
from ebpl.devices import choose_device
from ebpl.encoders import DEFAULT, EncoderInfo, fastest_device, find_encoder, load_encoder
from ebpl.errors import DataError, EbplError, UsageError, number_of
from ebpl.launch import place
from ebpl.methods import get_method
from ebpl.terminal import Progress, Silent, duration
from ebpl.training.probe import square_roots_suit

PRESET, FINE_TUNED = "features", named.FINE_TUNED["end"]
"""The presets that learn on the features of an encoder, and that let its last block learn too."""
MARGINS = {"quick": 0.1, "best": 0.17}
"""How far features must be ahead of colours and textures, by the preset that would learn from scratch. With 10 labels
a class it was 0.18 to 0.46 on photographs, where `quick` loses 30 points, and 0.16 to 0.20 on cells of 128 pixels,
three seeds each."""
ACCURATE = 0.8
"""From this accuracy of logistic regression on its features on, in cross-validation, an encoder is left as it is. With
10 labels a class, letting its last block learn too gained 0.8 points on TrashNet and 1.4 on PACS, which are below (on
held-out training images, three seeds each), and nothing on Intel scenes, which are above (one seed)."""
ENCODING = {"cpu": 0.03, "cuda": 0.005}
"""Rough seconds to read and encode an image, until some have been timed."""
VIEWS = 3.0
"""Computing the views of an image takes so many times as long as encoding it."""
MOST_VIEWS = 20_000
"""Training images whose views are recommended to be computed: half an hour on a CPU, 3 GB of memory."""
COMPARED = "compare an encoder with learning from scratch"
PATIENCE = 2.0
"""Seconds of silence before a bar is shown."""


@dataclass(frozen=True)
class Recommendation:
    """What to train with, and why."""

    preset: str
    encoder: str | None
    """None: from scratch."""
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
    square_root: bool = False
    """Whether square roots of the features were compared, which suit the labels clearly better."""
    compared: ImageSet | None = field(default=None, repr=False, compare=False)
    """The images that were compared on, as training on the features takes them."""
    reading: float = field(default=0.0, repr=False, compare=False)
    """Seconds to read one of them."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but pixels and seconds, for JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("compared", "reading")}

    @property
    def other(self) -> str:
        """The other way to learn with an encoder, as a sentence."""
        if self.preset == FINE_TUNED:
            return f"--preset {PRESET} keeps the encoder as it is, which takes less time."
        return "--fine-tune end lets the encoder's last block learn too, which takes longer." if self.encoder else ""

    def line(self, otherwise: str) -> str:
        """All of it in a line; `otherwise` is the preset that is the alternative."""
        if self.encoder:
            return f"preset {self.preset}: {self.reason} {self.other} --preset {otherwise} learns from scratch instead."
        size = f" at {self.image_size} x {self.image_size} pixels" if self.size_accuracies and self.image_size else ""
        return f"preset {self.preset}, from scratch{size}: {self.reason} --preset {PRESET} uses an encoder instead."


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
    if found.encoder:
        plain = changed(named.preset(found.preset, {"model.encoder": found.encoder}))
    return plain, found.image_size


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
    """Whether to learn on the features of the default encoder, to let its last block learn too, or, as `settings` do,
    to learn from scratch, and at which size.

    `data` are image files or an `ImageSet`; `side` is the length of the longer side of most, where it is known. Data
    that cannot be trained on is an error.
    """
    info = find_encoder(DEFAULT)
    source = lazy_images(data, image_size, info.size)
    if source.absent and not skip_unreadable:
        raise DataError(f"{source.images.name}: some images do not exist.")
    check(source.images)
    labeled = split_for(source.images, settings).labeled
    preset = nearest_preset(default_settings(settings.runtime.device))[0]

    def nothing(reason: str) -> Recommendation:
        return Recommendation(preset, None, image_size, reason)

    sample = some_of_each_class(source.images.train.labels, labeled, settings.seed)
    longest = min(image_size or math.inf, side_of(source, sample) if side is None else side)
    if longest <= LARGEST_KEPT:
        return nothing(
            f"The images are no larger than {LARGEST_KEPT} x {LARGEST_KEPT} pixels, where an encoder that was trained "
            "on larger photographs is of little use."
        )
    counts = np.bincount(source.images.train.labels[labeled], minlength=len(source.images.classes))
    if counts.min() < 2:
        name = source.images.classes[int(counts.argmin())]
        return nothing(
            f"Class {name} has a single label; comparing an encoder with learning from scratch takes two of each."
        )
    why = _not_comparable(source, info, time_limit)
    sizes = listing(data) is not None and image_size is None and choose_device(settings.runtime).type == "cuda"
    if why and not sizes:
        return nothing(why)
    shown = Shown(progress or Silent(), len(sample))
    begun = time.monotonic()
    images = source.read(sample, skip_unreadable, shown)
    reading = (time.monotonic() - begun) / len(sample)
    if len(images.classes) < 2 or np.bincount(images.train.labels).min() < 2:
        return nothing("Too few of the labelled images can be read to compare an encoder with learning from scratch.")
    found = nothing(why) if why else _compared_with_encoder(nothing(""), info, images, settings, shown)
    if found.encoder:
        found = replace(found, image_size=image_size or source.size, reading=reading)
        return _with_last_block(found) if _may_learn(source, time_limit) else found
    return _with_size(found, images, longest, settings.seed) if sizes else found


def _compared_with_encoder(
    nothing: Recommendation, info: EncoderInfo, images: ImageSet, settings: Settings, shown: Shown
) -> Recommendation:
    """The recommendation to learn from scratch or, if its features are ahead, on those of the encoder."""
    labels = images.train.labels
    try:
        encoder = load_encoder(info.name, fastest_device())
        features = encoded_by(encoder, images.train.pixels, shown)
    except EbplError as error:
        return replace(nothing, reason=f"{info.name} could not be compared with learning from scratch. {error}")
    rows = [components_of(encoder, features, settings, root) for root in (False, True)]
    square_root = square_roots_suit(lambda root: rows[root], labels, settings.seed)
    accuracy, plain = (
        cross_validated_accuracy(each, labels, settings.seed)
        for each in (rows[square_root], colors_and_textures(images.train.pixels))
    )
    named_features = f"{'square roots of the features' if square_root else 'features'} of {info.name}"
    margin = MARGINS.get(nothing.preset, max(MARGINS.values()))
    ahead = is_ahead(accuracy, plain, margin)
    reason = (
        f"By cross-validation on {len(labels)} labels, {named_features} reach an accuracy of "
        f"{accuracy * 100:.0f} %, plain colours and textures {plain * 100:.0f} %; a lead of {margin * 100:.0f} points, "
        f"or half the errors, {'is' if ahead else 'would be'} reason to use the encoder."
    )
    numbers: dict[str, Any] = {"encoder_accuracy": accuracy, "plain_accuracy": plain, "square_root": square_root}
    found = replace(nothing, reason=reason, labels=len(labels), **numbers)
    return replace(found, preset=PRESET, encoder=info.name, compared=images) if ahead else found


def _may_learn(source: LazyImages, time_limit: float | None) -> bool:
    """Whether there are time and memory for views of all training images."""
    views = len(source.images.train) * ENCODING[fastest_device()] * VIEWS
    return len(source.images.train) <= MOST_VIEWS and (time_limit is None or views <= time_limit / 2)


def _with_last_block(found: Recommendation) -> Recommendation:
    """The recommendation of an encoder whose last block learns too, unless its features are good as they are."""
    assert found.encoder_accuracy is not None
    if found.encoder_accuracy >= ACCURATE:
        return found
    reason = f"{found.reason} Below {100 * ACCURATE:.0f} % its last block should learn too."
    return replace(found, preset=FINE_TUNED, reason=reason)


def _with_size(found: Recommendation, images: ImageSet, largest: float, seed: int) -> Recommendation:
    """The recommendation to learn from scratch with the size that suits images which are no larger than this."""
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


def _not_comparable(source: LazyImages, info: EncoderInfo, time_limit: float | None) -> str | None:
    """Why the encoder cannot be compared with learning from scratch, if it cannot."""
    if info.path is None:
        return (
            f"{info.name} is not installed, so it could not be compared with learning from scratch; "
            f"{info.install} installs it."
        )
    needed = source.count * ENCODING[fastest_device()]
    if time_limit is not None and needed > time_limit / 2:
        many = number_of(source.count, "image")
        return f"An encoder needs about {duration(needed)} for {many}, which is more than half of the time limit."
    return None
