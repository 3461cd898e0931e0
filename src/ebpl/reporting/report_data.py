"""What the run's model says of images: of those that its answers can be checked on, and of those it is used for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.data.dataset import UNLABELED, Images, ImageSet, in_training
from ebpl.data.split import Split, split_for
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, EbplError, RunError
from ebpl.inference.sources import Data, as_trained, check_own, images_now, load_for, renumbered, trained_on
from ebpl.labeling.label_errors import Labelled, labelled
from ebpl.methods import get_method
from ebpl.models import HybridModel
from ebpl.models.outliers import SCORES, OutlierLimit, outlier_limit
from ebpl.models.predictions import Predictions, predict_with_features
from ebpl.runs import Run
from ebpl.runs.reader import WEIGHTS, Stored, finite, leads_out

MOST_PROBABILITIES = 5_000_000
"""So many are held at once; of more images times classes, every second, third ... image is looked at."""
MOST_TRAINING = 2000
MOST_POOL = 5000
"""Unlabelled images among which those to label next are looked for."""
MOST_KNOWN, MOST_LABELLED = 400, 2000
"""Labelled images on the map of features, and those whose labels are checked."""
UNLABELED_POOL, TRAINING = "unlabelled images", "training images"
OUTLIER_QUANTILE = 0.99
IMBALANCED = 3
"""From this ratio of the largest to the smallest class on, results by class come first."""
CHUNK = 2048

Done = Callable[[int], None]


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent; a dash where there is none.

    >>> percent(0.254), percent(None)
    ('25.4\xa0%', '–')
    """
    return "–" if value is None or not np.isfinite(value) else f"{100 * value:.{digits}f}\u00a0%"


def count(value: float) -> str:
    """A number of things, with a thin gap between thousands.

    >>> count(12345)
    '12\u202f345'
    """
    return f"{value:,.0f}".replace(",", "\u202f")


def things(value: int, one: str, many: str | None = None) -> str:
    """A number of things, in the singular or plural.

    >>> things(1, "image"), things(2, "class", "classes")
    ('1 image', '2 classes')
    """
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def points(value: float) -> str:
    """A difference of percentages."""
    return f"{abs(100 * value):.1f} percentage points"


def interval(ends: Sequence[float]) -> str:
    """The ends of an interval in percent."""
    return f"{100 * ends[0]:.0f} to {percent(ends[1], 0)}"


@dataclass(frozen=True)
class Seen:
    """Some images and what the model says of them."""

    what: str
    """What they are called on the page: 'test images' ..."""
    images: Images
    predictions: Predictions
    positions: NDArray[np.int64]
    """Which of the test images, of the training images ... they are."""
    total: int
    """How many there are; more than `images` where not all were looked at."""
    caveat: str = ""
    """What to keep in mind about measures on these."""
    features: NDArray[np.float32] | None = None
    """What the heads of the model saw of each image."""

    @property
    def truth(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Probabilities and true labels of those whose true label is known."""
        known = self.images.labeled
        return self.predictions.probabilities[known], self.images.labels[known]


@dataclass(frozen=True)
class Sight:
    """All that the page knows from looking at images."""

    classes: tuple[str, ...]
    model: dict[str, Any]
    """How the weights were chosen."""
    parameters: int
    density: bool
    """Whether the model has an energy; the baseline has none."""
    measured: Seen | None
    """Images with known labels."""
    looked: Seen | None
    """Images to find uncertain ones and outliers among; may be the same."""
    pool: Seen | None
    """Unlabelled training images of the run, which could be labelled next."""
    training_energies: NDArray[np.float64] | None
    counts: list[tuple[str, int]]
    """How many images are labelled, unlabelled, for validation, for testing."""
    notes: tuple[str, ...]
    """What could not be looked at, or is not as it was in training."""
    known: Seen | None = None
    """Training images of the run with the labels that it was given, or some of many."""
    labelled: Labelled | None = None
    """Images whose labels the run uses, or some of many."""


@dataclass(frozen=True)
class Context:
    """What sections are made from: the files of a run, what its model says of images, whether it has a density."""

    stored: Stored
    sight: Sight | None
    density: bool
    class_mix: str | None = None
    """The setting of the class mix."""

    @property
    def measured(self) -> Seen | None:
        """Images with known labels."""
        return self.sight.measured if self.sight else None

    @property
    def looked(self) -> Seen | None:
        """Images to find uncertain ones and outliers among."""
        return self.sight.looked if self.sight else None

    @property
    def pool(self) -> Seen | None:
        """Unlabelled training images, which could be labelled next."""
        return self.sight.pool if self.sight else None

    @property
    def training_scores(self) -> dict[str, NDArray[np.float64]]:
        """Quantiles of the scores of training images by which outliers can be judged, the best score first."""
        found = {score: self.stored.training_scores(score) for score in SCORES}
        found["energies"] = self.training_energies if self.density else None
        return {score: values for score, values in found.items() if values is not None}

    @property
    def outlier_limit(self) -> OutlierLimit | None:
        """What an outlier is above."""
        known = {f"training_{score}": values.tolist() for score, values in self.training_scores.items()}
        return outlier_limit(known, OUTLIER_QUANTILE)

    @property
    def imbalanced(self) -> bool:
        """Whether some class has several times the images of another, among the labels or those measured on."""
        images = self.stored.result.get("images")
        labelled = images.get("labelled") if isinstance(images, dict) else None
        sizes = [[finite(size) or 0.0 for size in labelled.values()]] if isinstance(labelled, dict) else []
        if self.measured:
            sizes.append(np.bincount(self.measured.truth[1], minlength=len(self.classes)).astype(float).tolist())
        return any(max(each, default=0.0) >= IMBALANCED * max(1.0, min(each, default=1.0)) for each in sizes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.sight.classes if self.sight else ()

    @property
    def training_energies(self) -> NDArray[np.float64] | None:
        """Quantiles of the energies of training images."""
        if self.stored.energies is None and self.sight:
            return self.sight.training_energies
        return self.stored.energies


def look(
    run: Run, data: Data | None, data_dir: Any, need_energies: bool, done: Done, skip_unreadable: bool = False
) -> Sight:
    """Load weights and images and look at them; the run's own images may be gone, given ones may not.

    Of the run's own images all may have changed but the test images, which show that the others are still its data.
    `need_energies`: the run directory does not hold the energies of its training images.
    """
    model, description = _model(run)
    classes, chosen = tuple(description["classes"]), description["chosen"]
    density = get_method(run.settings.method).density
    empty = Sight(classes, chosen, model.parameter_count(), density, None, None, None, None, [], ())
    test = None
    try:
        if data is None:
            place = data_dir or None
            images, own = images_now(run, description, data_dir=place, skip_unreadable=skip_unreadable)
            test = None if own else _same_test(run, images, description)
        else:
            images = load_for(description, data, data_dir, skip_unreadable)
            own = images.fingerprint() == run.source.get("fingerprint")
    except EbplError as error:
        if data is not None:
            raise
        note = f"The images of {run.data_name} could not be looked at, so there are no pictures. {error}"
        return replace(empty, notes=(f"{note} (If they have moved, give their place with --data.)",))
    device, dtype = device_and_dtype(run.settings.runtime)
    model = model.to(device)

    def seen(what: str, part: Images, caveat: str = "", positions: NDArray[np.int64] | None = None) -> Seen:
        at = np.arange(len(part)) if positions is None else positions
        every = -(-len(part) // max(1, MOST_PROBABILITIES // len(classes)))
        shown = part.take(np.arange(0, len(part), every)) if every > 1 else part
        predictions, features = _predictions(model, shown, dtype, done)
        return Seen(what, shown, predictions, at[:: max(1, every)], len(part), caveat, features)

    if test is not None:
        return _changed(run, images, test, empty, seen)
    if not own:
        given = _others(run, images, description, seen)
        return replace(empty, measured=given if given.images.labeled.any() else None, looked=given)
    check_own(run, images, description)
    parts = split_for(images, run.settings)
    energies = None
    if need_energies and density:
        some = images.train.take(np.arange(0, len(images.train), max(1, len(images.train) // MOST_TRAINING)))
        energies = np.sort(_predictions(model, some, dtype, done)[0].energies)
    measured, looked = _parts(images, parts, seen)
    pool = looked if looked.what == UNLABELED_POOL else _pool(images.train, parts.unlabeled, seen)
    at = parts.labeled[:: max(1, -(-len(parts.labeled) // MOST_KNOWN))]
    known = seen("labelled images", images.train.take(at), positions=at) if len(at) else None
    found = replace(empty, measured=measured, looked=looked, pool=pool, training_energies=energies, known=known)
    return replace(found, counts=_counts(images, parts), labelled=labelled(run, model, images, MOST_LABELLED))


def _others(run: Run, images: ImageSet, description: dict[str, Any], seen: Callable[..., Seen]) -> Seen:
    """Look at data that the run was not trained on."""
    part = images.test if images.test is not None and images.test.labeled.any() else images.train
    if len(part) == 0:
        raise DataError(f"{images.name} holds no images.")
    part = as_trained(description, images, part)
    told = trained_on(run, part) if part.labeled.any() else []
    if not told and images.name == run.data_name:
        told = [
            "The data has changed since training. Some of these images may have been trained on, and results on those "
            "prove nothing"
        ]
    return seen(f"images of {images.name}", part, "".join(f"{line}." for line in told))


def _same_test(run: Run, images: ImageSet, description: dict[str, Any]) -> Images:
    """The test images of a run whose other images have changed; an error where they have changed too."""
    test = renumbered(description, images, images.test) if images.test is not None else None
    same = test and test.fingerprint(tuple(description["classes"])) == run.source.get("test_fingerprint")
    if test is None or not same:
        raise DataError("The images or labels are not those that the run was trained on any more.")
    return test


def _changed(run: Run, images: ImageSet, test: Images, empty: Sight, seen: Callable[..., Seen]) -> Sight:
    """Look at the run's own test images, and at the unlabelled images as they are now."""
    counts = run.metrics().get("images") if run.finished else None
    both = finite(counts.get("test_in_training")) if isinstance(counts, dict) else None
    labeled = int(test.labeled.sum())
    told = in_training(int(both or 0), labeled, f"the {labeled} test images")
    looked = seen("test images", test, "".join(f"{line}." for line in told))
    pool = _pool(images.train.with_channels(test.pixels.shape[3]), np.flatnonzero(~images.train.labeled), seen)
    note = (
        f"Images or labels of {run.data_name} have changed since training. Its test images are the same; the "
        "unlabelled images are the current ones. How many it was trained on is not shown."
    )
    return replace(empty, measured=looked if labeled else None, looked=looked, pool=pool, notes=(note,))


def _pool(train: Images, unlabeled: NDArray[np.int64], seen: Callable[..., Seen]) -> Seen | None:
    """Look at unlabelled training images, or at some of many."""
    if not len(unlabeled):
        return None
    at = unlabeled[:: -(-len(unlabeled) // MOST_POOL)]
    return replace(seen(UNLABELED_POOL, train.take(at), positions=at), total=len(unlabeled))


def _parts(images: ImageSet, parts: Split, seen: Callable[..., Seen]) -> tuple[Seen | None, Seen]:
    """Choose among the run's own images the most honest ones to measure on, and those that a user asks about."""
    train, test, validation = images.train, images.test, images.validation
    if test is not None and test.labeled.any():
        labeled = int(test.labeled.sum())
        told = in_training(images.test_in_training, labeled, f"the {labeled} test images")
        both = seen("test images", test, "".join(f"{line}." for line in told))
        return both, both
    chosen_by = parts.validation
    held_out = train.take(chosen_by)
    if len(held_out) == 0 and validation is not None:
        chosen_by = np.flatnonzero(validation.labeled)
        held_out = validation.take(chosen_by)
    unlabeled = train.take(parts.unlabeled)
    measured: Seen | None = None
    if len(held_out):
        caveat = "The weights were chosen on these images, so the result is slightly optimistic."
        measured = seen("validation images", held_out, caveat, chosen_by)
    if test is not None and len(test):
        return measured, seen("test images", test)
    if len(unlabeled):
        looked = seen(UNLABELED_POOL, unlabeled, positions=parts.unlabeled)
        if measured is None and unlabeled.labeled.any():
            caveat = "The model was trained on these images, though without their labels."
            measured = replace(looked, caveat=caveat)
        return measured, looked
    # labels that the model was trained on say nothing about it
    hidden = Images(train.pixels, np.full(len(train), UNLABELED), train.paths)
    return measured, seen(TRAINING, hidden)


def _counts(images: ImageSet, parts: Split) -> list[tuple[str, int]]:
    validation = len(parts.validation) or (len(images.validation) if images.validation else 0)
    test = len(images.test) if images.test else 0
    found = {"labelled": len(parts.labeled), "unlabelled": len(parts.unlabeled), "validation": validation}
    return [(name, count) for name, count in {**found, "test": test}.items() if count]


def _model(run: Run) -> tuple[HybridModel, dict[str, Any]]:
    """The run's model and its description."""
    if leads_out(run.path, WEIGHTS):
        raise RunError(f"{WEIGHTS} is a link that leads out of the run directory, so it was not read.")
    model, description = run.load_model()
    return model, description


def _predictions(model: HybridModel, images: Images, dtype: Any, done: Done) -> tuple[Predictions, NDArray[np.float32]]:
    """Predictions and features in pieces, so that progress can be shown."""
    found, features = [], []
    for start in range(0, max(1, len(images)), CHUNK):
        predicted, seen = predict_with_features(model, images.pixels[start : start + CHUNK], dtype)
        found.append(predicted)
        features.append(seen)
        done(len(seen))
    probabilities = np.concatenate([part.probabilities for part in found])
    errors = [part.reconstruction_errors for part in found if part.reconstruction_errors is not None]
    energies = np.concatenate([part.energies for part in found])
    return Predictions(probabilities, energies, np.concatenate(errors) if errors else None), np.concatenate(features)


def outlier_scores(seen: Seen, limit: OutlierLimit | None) -> NDArray[np.float64]:
    """What outliers among images are judged by: high is unlike the training images."""
    found: NDArray[np.float64] = getattr(seen.predictions, limit.score if limit else "energies")
    return np.nan_to_num(found, nan=np.inf)


def score_name(limit: OutlierLimit | None) -> str:
    """What that is called."""
    return "reconstruction error" if limit and limit.score == "reconstruction_errors" else "energy"


LIKE_IMAGES = 0.25
"""Of the spread of their energies: images and samples that are further apart are told apart by the energy."""


def energy_gap(stored: Stored) -> str:
    """How far apart the energies of images and samples were in the last epoch, compared with their spread."""
    last = stored.history[-1] if stored.history else {}
    gap = finite(last.get("energy_gap"))
    if gap is None or stored.energies is None or not (spread := float(stored.energies.std())):
        return ""
    if abs(gap) <= LIKE_IMAGES * spread:
        verdict = "Samples have the energies of images, as those of a likelihood do."
    elif gap < 0:
        verdict = "The energy separates images from samples; it is no likelihood."
    else:
        verdict = "Samples have lower energies than images, as early in the training of a likelihood."
    return (
        f"In the last epoch the mean energy of images was {abs(gap):.2f} {'below' if gap < 0 else 'above'} that of "
        f"samples, {percent(abs(gap) / spread, 0)} of the spread of energies over images. {verdict}"
    )
