"""A look at data before training: what it holds, what is wrong with it, what to type, and how long that will take."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ebpl.calibration.class_mix import ClassMix
from ebpl.comparison import MOST_LABELS, PLAIN_SIZE, colors_and_textures, components_of, encoded_by, quick_mix
from ebpl.config import Settings
from ebpl.config.presets import default_settings, nearest_preset, preset
from ebpl.data.contents import PARTS, Contents, Duplicates, Group, contents, find_duplicates, lazy_images, listing
from ebpl.data.dataset import UNLABELED, ImageSet, check
from ebpl.data.folder import LARGEST_KEPT
from ebpl.data.split import split_for
from ebpl.devices import choose_device
from ebpl.encoders import fastest_device, load_encoder
from ebpl.errors import EbplError, is_memory, number_of, some_of
from ebpl.methods import get_method
from ebpl.recommendation import VIEWS, Recommendation, Shown, recommend
from ebpl.terminal import Progress, Silent
from ebpl.training.time_budget import Timing, time_training

FEW_LABELS = 5
"""With fewer labels of a class, which images they are decides more than the training does."""
MOST_UNLABELED = {False: 1000, True: 300}
"""Unlabelled images that their class mix is estimated from, without an encoder and with one."""
IMBALANCE = 5.0
"""With this ratio of labels the smallest class gets few pseudo-labels, and accuracy hardly shows it."""


@dataclass(frozen=True)
class Problem:
    """Something to look at before training; a serious one makes results wrong or training impossible."""

    kind: str
    serious: bool
    text: str


@dataclass(frozen=True)
class Suggestion:
    """How to train on the data here."""

    preset: str
    command: str
    device: str
    timing: Timing | None
    """None where it was not measured."""


@dataclass(frozen=True)
class MixFound:
    """The class mix of the labels, and the one that the unlabelled images seem to have."""

    labels: dict[str, float]
    unlabeled: ClassMix | None
    """None where it was not estimated."""
    how: str
    """What it was estimated from, or why it was not."""

    @property
    def differs(self) -> bool:
        """Whether the unlabelled images seem to have another one than the labels."""
        return self.unlabeled is not None and self.unlabeled.differs

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON: shares by class."""
        mix, classes = self.unlabeled, list(self.labels)
        return {
            "labels": self.labels,
            "unlabeled": dict(zip(classes, mix.shares, strict=True)) if mix else None,
            "intervals": dict(zip(classes, mix.interval, strict=True)) if mix and mix.interval else None,
            "differs": self.differs,
            "how": self.how,
        }


@dataclass(frozen=True, repr=False)
class Inspection:
    """What `inspect` found."""

    contents: Contents
    duplicates: Duplicates
    used: dict[str, int]
    """Labels of each class that training would use: all, but for a benchmark, of which it hides most."""
    unlabeled: int
    """Training images whose labels are not there or not used."""
    problems: tuple[Problem, ...]
    recommendation: Recommendation | None
    """Whether to use a pretrained encoder; None where no classifier can be trained on the data as it is."""
    suggestion: Suggestion | None
    """None where no classifier can be trained on the data as it is."""
    class_mix: MixFound | None = None
    """None where no classifier can be trained on the data as it is."""

    def __repr__(self) -> str:
        name, images = self.contents.name, len(self.contents.entries)
        return f"Inspection({name}: {images} images, {len(self.used)} classes, {len(self.problems)} problems)"

    @property
    def imbalance(self) -> float | None:
        """How many times as many labels the largest class has as the smallest."""
        counts = self.used.values()
        return max(counts) / min(counts) if counts and min(counts) else None

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        found, suggestion = self.contents, self.suggestion
        timing = suggestion.timing if suggestion else None
        return {
            "name": found.name,
            "classes": list(found.classes),
            "images": len(found.entries),
            "parts": {part: _counted(counts) for part in PARTS if any((counts := found.counts(part)).values())},
            "labels_used": self.used,
            "unlabeled": self.unlabeled,
            "imbalance": self.imbalance,
            "class_mix": self.class_mix.to_dict() if self.class_mix else None,
            "sizes": [{"height": h, "width": w, "images": count} for (h, w), count in found.sizes.items()],
            "modes": found.kinds,
            "image_shape": list(found.shape) if found.shape else None,
            "unreadable": [{"image": name, "reason": reason} for name, reason in found.unreadable],
            "duplicates": self.duplicates.to_dict(),
            "notes": list(found.notes),
            "problems": [vars(problem) for problem in self.problems],
            "recommendation": self.recommendation.to_dict() if self.recommendation else None,
            "suggestion": {**vars(suggestion), "timing": vars(timing) if timing else None} if suggestion else None,
        }


def _counted(counts: dict[str, int]) -> dict[str, Any]:
    labeled = {label: count for label, count in counts.items() if label}
    return {"labeled": sum(labeled.values()), "unlabeled": counts[""], "classes": labeled}


def inspect(
    data: str | os.PathLike[str] | ImageSet,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    timing: bool = True,
    done: Callable[[int], None] = lambda _: None,
    progress: Progress | None = None,
) -> Inspection:
    """Look at whatever `ebpl.load` takes: what it holds, what is wrong with it, and how to train on it here.

    Where images are larger than 64 pixels, a pretrained encoder is compared with learning from scratch, which encodes
    up to 300 labelled images and shows it on `progress`; with a GPU, so are sizes to learn at from scratch. With
    `timing` a few updates are trained to estimate the time of a training, which takes a few seconds. Files that cannot
    be read are listed and stop nothing.

    >>> import ebpl
    >>> found = ebpl.inspect("digits", timing=False)
    >>> found.suggestion.preset, found.contents.shape, found.duplicates.extra
    ('quick', (1, 8, 8), 0)
    """
    found = contents(data, data_dir=data_dir, image_size=image_size, done=done)
    duplicates = find_duplicates(found.entries)
    settings = default_settings()
    used, unlabeled, reason = _labels(found, settings)
    problems = list(_problems(found, duplicates, used, unlabeled, reason))
    recommended, suggestion, mix = None, None, None
    if reason is None:
        sides = np.repeat([max(size) for size in found.sizes], list(found.sizes.values()))
        kept = sides.max() <= LARGEST_KEPT  # looking at the files has decoded them already
        source = data if listing(data) and not kept else found.read()
        recommended = recommend(
            source, settings, image_size=image_size, side=float(np.median(sides)), progress=progress
        )
        if recommended.encoder:
            settings = preset(recommended.preset)
            found = _read_at(found, recommended.image_size)
        elif recommended.image_size != image_size:
            image_size = recommended.image_size
            found = contents(data, data_dir=data_dir, image_size=image_size)
        mix = _class_mix(source, used, recommended, settings, image_size, progress)
        problems += _mixed(mix, recommended)
        measured, device = None, choose_device(settings.runtime).type
        if timing:
            problems += _busy(device)
            try:
                measured = _timed(found, settings, recommended)
            except (EbplError, MemoryError, RuntimeError) as error:
                if not isinstance(error, EbplError) and not is_memory(error):
                    raise
                problems.append(Problem("timing", True, f"A few updates could not be trained: {error}"))
        places = {"--data-dir": data_dir, "--image-size": image_size}
        command = _command(data, places, settings, skip=bool(found.unreadable))
        suggestion = Suggestion(_name(settings), command, device, measured)
    return Inspection(found, duplicates, used, unlabeled, tuple(problems), recommended, suggestion, mix)


def _class_mix(
    data: Any,
    used: dict[str, int],
    recommended: Recommendation,
    settings: Settings,
    image_size: int | None,
    progress: Progress | None,
) -> MixFound:
    """The class mix of the labels, and an estimate of that of the unlabelled images from some of them."""
    labels = {name: count / sum(used.values()) for name, count in used.items()}
    encoder = load_encoder(recommended.encoder, fastest_device()) if recommended.encoder else None
    source = lazy_images(data, image_size, encoder.size if encoder else PLAIN_SIZE)
    parts, random = split_for(source.images, settings), np.random.default_rng(settings.seed)
    known = random.permutation(parts.labeled)
    one_of_each = np.unique(source.images.train.labels[known], return_index=True)[1]
    known = np.unique(np.concatenate([known[one_of_each], known[:MOST_LABELS]]))
    unknown = random.permutation(parts.unlabeled)[: MOST_UNLABELED[encoder is not None]]
    if not len(unknown):
        return MixFound(labels, None, "there are no unlabelled images")
    positions = np.concatenate([known, np.sort(unknown)])
    shown = Shown(progress or Silent(), len(positions), "images", "estimate the class mix")
    pixels, kept = source.pixels(positions, True, shown)
    given = np.where(np.isin(kept, known), source.images.train.labels[kept], UNLABELED)
    images = int((given == UNLABELED).sum())
    if len(np.unique(given[given != UNLABELED])) < len(used) or not images:
        return MixFound(labels, None, "too few images can be read")
    if encoder:
        rows = components_of(encoder, encoded_by(encoder, pixels, shown), settings, recommended.square_root)
    else:
        rows = colors_and_textures(pixels)
    mix, accuracy = quick_mix(rows, given, len(used), settings.seed)
    features = f"features of {encoder.info.name}" if encoder else "plain colours and textures"
    if accuracy is None:
        return MixFound(labels, None, "a class has a single label")
    if mix is None:
        why = f"logistic regression on {features} tells {100 * accuracy:.0f} % of the labels, too few for an estimate"
        return MixFound(labels, None, why)
    return MixFound(labels, mix, f"by {number_of(images, 'image')} and {features}")


def _mixed(found: MixFound, recommended: Recommendation) -> Iterator[Problem]:
    """What another class mix of the unlabelled images means for training."""
    if not found.differs:
        return
    if recommended.encoder:
        how = "Training estimates it from all of them, and probabilities are for it (--class-mix auto, the default)."
    else:
        how = (
            "Probabilities are for the mix of the labels, and the classes that are rarer than there are predicted too "
            "often, unless you train with --class-mix auto, which estimates the mix."
        )
    text = f"The unlabelled images seem to have another class mix than the labels. {how} If you know the mix, give it "
    yield Problem("class_mix", False, text + "with --class-mix FILE, instead of the estimate.")


def _read_at(found: Contents, size: int | None) -> Contents:
    """The contents as an encoder takes them, which reads image files at a size of its own."""
    if size is None or found.shape is None:
        return found
    same = set(found.sizes) == {(size, size)}
    resized = re.compile(r"resized to \d+ x \d+$")
    notes = [
        resized.sub(f"resized to {size} x {size}", note) for note in found.notes if not same or not resized.search(note)
    ]
    return replace(found, shape=(found.shape[0], size, size), notes=tuple(notes))


def _timed(found: Contents, settings: Settings, recommended: Recommendation) -> Timing:
    """How long a training takes; one with an encoder is timed on the images that were read for the comparison."""
    terms = get_method(settings.method).terms
    some = recommended.compared
    if some is None:
        return time_training(found.read(), settings, terms)
    assert recommended.encoder is not None
    images, training = len(found.entries), len(found.labels.train)
    updates = settings.optim.updates_per_epoch or -(-training // settings.optim.batch_size)
    timing = time_training(some, settings.changed({"optim.updates_per_epoch": updates}), terms)
    predicting = timing.seconds - timing.updates * timing.update - timing.start
    encoded = images + (VIEWS - 1) * training if settings.model.fine_tune == "end" else images
    encoding = load_encoder(recommended.encoder, fastest_device()).seconds_per_image(some.train.pixels)
    own = images * recommended.reading + encoded * encoding + predicting * training / len(some.train)
    return replace(timing, seconds=own + timing.updates * timing.update + timing.start)


def _labels(found: Contents, settings: Settings) -> tuple[dict[str, int], int, str | None]:
    """Labels of each class that training uses, images without one, and why it cannot be trained, if so."""
    labels = found.labels.train.labels
    counts = np.bincount(labels[labels >= 0], minlength=len(found.classes))
    used, unlabeled = dict(zip(found.classes, counts.tolist(), strict=True)), int((labels < 0).sum())
    try:
        check(found.labels)
        parts = split_for(found.labels, settings)
    except EbplError as error:
        return used, unlabeled, str(error)
    counts = np.bincount(labels[parts.labeled], minlength=len(found.classes))
    return dict(zip(found.classes, counts.tolist(), strict=True)), len(parts.unlabeled), None


def _problems(
    found: Contents, duplicates: Duplicates, used: dict[str, int], unlabeled: int, reason: str | None
) -> Iterator[Problem]:
    """What to look at before training, the worst first."""
    if reason is not None:
        yield Problem("not_trainable", True, reason)
    if groups := duplicates.conflicting:
        text = f"{_appear(groups)} with different labels, so one of them is wrong. Decide on one, or take them out."
        yield Problem("conflicting_labels", True, text)
    if groups := duplicates.leaking:
        text = f"{_appear(groups)} both in training and in test or validation. "
        yield Problem("leak", True, text + "What is measured there will look better than it is; keep one of each.")
    if found.unreadable:
        them = "them" if len(found.unreadable) > 1 else "it"
        text = f"{number_of(len(found.unreadable), 'image')} cannot be read, and training stops at {them}. "
        yield Problem("unreadable", True, text + f"Repair {them}, take {them} out, or add --skip-unreadable.")
    few = {label: count for label, count in used.items() if 0 < count < FEW_LABELS}
    if few and reason is None:
        text = f"Few labels: {_listed(few)}. Label at least {FEW_LABELS} of each class; once there is a run, "
        yield Problem("few_labels", False, text + "ebpl suggest says which images teach it most.")
    smallest, largest = (min(used.values()), max(used.values())) if used else (0, 0)
    if smallest and largest / smallest >= IMBALANCE:
        names = sorted(used, key=used.__getitem__)
        text = f"{names[-1]} has {largest} labels and {names[0]} {smallest}, a ratio of {largest / smallest:.3g}. "
        yield Problem(
            "imbalance", False, text + "Label more of the rare ones, and trust balanced accuracy more than accuracy."
        )
    if reason is None and not unlabeled:
        yield Problem("no_unlabeled", False, "There are no unlabelled images to learn from, which is what EBPL is for.")
    if groups := duplicates.labeled_and_unlabeled:
        text = (
            f"{_appear(groups)} among the labelled and the unlabelled training images. The copies teach nothing more."
        )
        yield Problem("labeled_and_unlabeled", False, text)
    harmful = {*duplicates.conflicting, *duplicates.leaking, *duplicates.labeled_and_unlabeled}
    if others := [group for group in duplicates.groups if group not in harmful]:
        yield Problem("duplicates", False, f"{_appear(others)} more than once, for instance {_shown(others[0])}.")
    if alike := _alike(found.classes):
        text = f"Classes whose names differ in case or spaces alone: {alike}. Are they one?"
        yield Problem("alike_classes", False, text)


def _busy(device: str) -> list[Problem]:
    """Other programs on the same cores slow training down by more than their share, and make the estimate too high."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if device != "cpu" or load < 0.75 * cores:
        return []
    text = f"Other programs keep this machine busy ({load:.1f} of {cores} cores), which may make training many times "
    return [Problem("busy", False, text + "slower than it is alone; OMP_NUM_THREADS=1 keeps to one core.")]


def _appear(groups: Sequence[Group]) -> str:
    return number_of(len(groups), "image appears", "images appear")


def _shown(group: Group, most: int = 3) -> str:
    """Where copies of an image are."""
    names = [f"{entry.name} ({entry.part}, {entry.label or 'unlabelled'})" for entry in group[:most]]
    return " and ".join(names) + (f" and {len(group) - most} more" if len(group) > most else "")


def _listed(counts: dict[str, int], most: int = 10) -> str:
    return some_of([f"{label} {count}" for label, count in counts.items()], most)


def _alike(classes: tuple[str, ...]) -> str:
    by_name: dict[str, list[str]] = {}
    for name in classes:
        by_name.setdefault("".join(name.casefold().split()), []).append(name)
    return "; ".join(" and ".join(map(repr, names)) for names in by_name.values() if len(names) > 1)


def _name(settings: Settings) -> str:
    return nearest_preset(settings)[0]


def _command(data: Any, places: dict[str, Any], settings: Settings, skip: bool) -> str:
    """What to type to train, or to write in Python where there is no file to name."""
    if isinstance(data, ImageSet):
        return f"ebpl.train(data, preset={_name(settings)!r})"
    words = ["ebpl", "train", str(data), "--preset", _name(settings)]
    for option, value in places.items():
        words += [option, str(value)] if value else []
    return shlex.join([*words, *(["--skip-unreadable"] if skip else [])])
