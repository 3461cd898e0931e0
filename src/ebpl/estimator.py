"""A front door for people used to scikit-learn: `EBPLClassifier().fit(X, y)`."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, get_scorer
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, column_or_1d
from sklearn.utils.validation import validate_data as validated

from ebpl import api
from ebpl.calibration.conformal import calibrate, check_enough
from ebpl.config import Settings, find, presets
from ebpl.data.dataset import UNLABELED, Images, ImageSet, check
from ebpl.data.sklearn_input import ROW, Scale, is_row, missing, packed, plain, shape_for, shape_of
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, UsageError
from ebpl.inference.class_mix import used_mix
from ebpl.models import Architecture
from ebpl.models.predictions import Predictions, predict
from ebpl.models.weights import LOG_MIX, load_weights
from ebpl.runs import Run
from ebpl.runs.reader import PSEUDO_LABELS, read_table
from ebpl.terminal import Silent, terminal_progress

_NAMED = (
    *("encoder", "fine_tune", "class_mix", "pseudo_labels", "validation_fraction"),
    *("depth", "width", "epochs", "batch_size", "learning_rate", "augment"),
)
"""Settings that are parameters of the estimator, and may be left to the preset with None."""
LEAST_TO_SHIFT = 16
"""Smaller images are not shifted unless asked for: two pixels of the 8 of a digit cost a tenth of the accuracy."""


class EBPLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A classifier of images from few labels and many unlabelled images, with calibrated confidence.

    Images are (N, H, W) or (N, H, W, C) with C of 1 or 3, or rows (N, features). Rows are square gray images unless
    `image_shape` says otherwise. uint8 is used unchanged. Other numbers are scaled from the range of the training
    images to 256 levels, and values outside of it are clipped.

    Rows of floating-point numbers with the preset "features", and without an `encoder`, are features that were computed
    elsewhere: both heads learn from them in 32 bits. As an encoder's features they are brought to the same length,
    centred, and projected to their principal components. Columns of different units should be scaled first.

    The label -1 means unlabelled; so do NaN, None and an empty string, and "-1" if labels are strings.

    Parameters
    ----------
    preset : str or None
        "paper", "standard", "best", "generative", "features", "fine-tuned", "fine-tuned-end", "fixmatch" or "quick";
        by default that of `fine_tune`, "features" with an `encoder`, else "best" with a GPU and "quick" without.
    encoder : str or None
        A pretrained encoder, by its name, timm:NAME or the path of a TOML file, which turns images of any size into the
        features to learn from; `ebpl encoders` lists them. Its weights are not part of a pickle, only its name.
    fine_tune : str or None
        "all", "last" or "end" learns all of the encoder, its last third or its last block; a pickle holds it then.
    method : str
        "ebpl", "curriculum-labeling" (the baseline) or another method that `ebpl train --help` lists.
    class_mix : str, path or None
        The class mix of the unlabelled images, which the probabilities assume: "labels", "auto" (estimated),
        "balanced", or a CSV of class and share; by default "auto" with features, otherwise "labels".
    pseudo_labels : str or None
        "none", "hard" or "soft". This and the following options of `ebpl train` default to the preset's values.
    validation_fraction : float or None
        Fraction of the labels used to choose the weights.
    depth : int or None
        Depth of the network.
    width : int or None
        Width factor of the network.
    epochs : int or None
        Epochs of the initial training.
    batch_size : int or None
        Images in a batch.
    learning_rate : float or None
        Learning rate of Adam.
    augment : str or None
        Augmentation: "none", "shift", "flip" or "dihedral".
    device : str
        "auto", "cpu" or "cuda".
    settings : mapping or None
        Other settings by their full names, such as {"sgld.steps": 5}.
    image_shape : tuple, "row" or None
        Shape of rows: (H, W) or (H, W, C), or "row" for features that are not images. With the preset "features" they
        are taken as they are, with others each is scaled separately to 256 levels. An encoder takes only images.
    run : path or None
        A new run directory to keep; by default a temporary one. It is never overwritten, so do not set it where copies
        of the estimator are fitted, as in a grid search.
    random_state : int, RandomState or None
        A number is the seed of the run; a RandomState or None draws one.
    verbose : bool
        Whether to show progress.

    Attributes
    ----------
    classes_ : array
        The labels, in order.
    transduction_ : array
        A label for each training image: the given one, otherwise the predicted one.
    labeled_iter_ : array
        The curriculum step in which each training image first had a pseudo-label; 0: its label was given, -1: it never
        had one.
    class_mix_ : array
        The share of each of `classes_` in the mix that probabilities are for.
    image_shape_ : tuple
        Height, width and channels.
    n_features_in_ : int
        Numbers in an image.
    model_ : HybridModel
        The network.
    settings_ : Settings
        The settings it was trained with.

    Examples
    --------
    >>> import numpy as np
    >>> from ebpl import EBPLClassifier
    >>> X = np.random.RandomState(0).rand(40, 8, 8)
    >>> X[::2, :4] += 2
    >>> y = np.array(["top", "none"] * 4 + [""] * 32)
    >>> model = EBPLClassifier(preset="quick", epochs=20, pseudo_labels="none").fit(X, y)
    >>> str(model.transduction_[38]), str(model.transduction_[39])
    ('top', 'none')
    """

    def __init__(
        self,
        preset: str | None = None,
        *,
        encoder: str | None = None,
        fine_tune: str | None = None,
        method: str = "ebpl",
        class_mix: str | os.PathLike[str] | None = None,
        pseudo_labels: str | None = None,
        validation_fraction: float | None = None,
        depth: int | None = None,
        width: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        augment: str | None = None,
        device: str = "auto",
        settings: Mapping[str, Any] | None = None,
        image_shape: tuple[int, ...] | str | None = None,
        run: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.preset = preset
        self.encoder = encoder
        self.fine_tune = fine_tune
        self.method = method
        self.class_mix = class_mix
        self.pseudo_labels = pseudo_labels
        self.validation_fraction = validation_fraction
        self.depth = depth
        self.width = width
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.augment = augment
        self.device = device
        self.settings = settings
        self.image_shape = image_shape
        self.run = run
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> EBPLClassifier:
        """Train on images, of which those labelled -1 (or NaN, None, an empty text) are unlabelled."""
        settings = self._chosen_settings()
        rows = self._rows(X, reset=True)
        if self.scale_ is None:
            settings = settings.changed({"model.encoder": None, "model.backbone": "rows"})
        if y is None:
            raise DataError(
                "EBPLClassifier requires y to be passed, but the target y is None. Give a label an image, -1 for an "
                "unlabelled one."
            )
        known, names = _labels(y)
        check_consistent_length(rows, known)
        self.classes_, numbers = np.unique(names, return_inverse=True)
        if len(self.classes_) == 1:
            raise DataError(
                f"All labels are of one class ({self.classes_[0]}), and a classifier needs at least two. "
                "(A label of -1 means unlabelled.)"
            )
        labels = np.full(len(known), UNLABELED)
        labels[known] = numbers
        pixels = self._pixels(rows)
        augment = "shift" if min(self.image_shape_[:2]) >= LEAST_TO_SHIFT else "none"
        data = ImageSet("arrays", tuple(map(str, self.classes_)), Images(pixels, labels), augment=augment)
        check(data)
        with self._run_directory() as directory:
            progress = terminal_progress() if self.verbose else Silent()
            run = api.train(data, settings, run=directory, progress=progress, devices=1)
            self.settings_ = settings
            self.model_, _ = run.load_model()
            mix = used_mix(run.metrics(), settings.data.class_mix)
            self.class_mix_ = np.array(mix.shares if mix else [np.nan] * len(self.classes_))
            self.labeled_iter_ = np.where(known, 0, _first_steps(run, len(known)))
        labels[~known] = self._predictions(pixels[~known]).labels
        self.transduction_ = self.classes_[labels]
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each image."""
        numbers = self._predicted(X).labels
        labels: NDArray[Any] = self.classes_[numbers]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each of `classes_` for each image."""
        return self._predicted(X).probabilities

    def predict_set(
        self,
        X: Any,
        calibration: tuple[Any, Any],
        coverage: float = 0.9,
        *,
        method: str = "lac",
        by_class: bool = False,
        semi_supervised: bool = False,
    ) -> NDArray[np.bool_]:
        """Which of `classes_` are in the prediction set of each image: it holds the true one with this probability.

        `calibration` are images and labels that the model was not fitted on. The rest is as for `ebpl.predict_set`.
        """
        images, y = calibration
        known, names = _labels(y)
        if unknown := sorted({str(name) for name in names} - set(map(str, self.classes_))):
            raise DataError(f"Calibration labels are of classes the model does not know: {', '.join(unknown)}.")
        probabilities = self.predict_proba(images)
        check_consistent_length(probabilities, known)
        labels, new = np.searchsorted(self.classes_, names), self.predict_proba(X)
        unlabelled = new if semi_supervised else None
        sets = calibrate(probabilities[known], labels, coverage, method, by_class=by_class, unlabelled=unlabelled)
        if warning := check_enough(sets, list(map(str, self.classes_))):
            warnings.warn(warning, UserWarning, stacklevel=2)
        return sets.contains(new)

    def energy(self, X: Any) -> NDArray[np.float64]:
        """How little each image looks like the training images: minus the log-density, up to a constant.

        The baseline has no density; its energy is that of the classifier's scores.
        """
        return self._predicted(X).energies

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of right labels among the images that have one; unlabelled images are left out."""
        known, names = _labels(y)
        if not known.any():
            raise DataError("No image has a label to compare with.")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(names, self.predict(X)[known], sample_weight=weight))

    # --- parameters --------------------------------------------------------------------------------------------------

    def _chosen_settings(self) -> Settings:
        """The preset's settings, changed by the parameters that are given."""
        further = {find(name).name: value for name, value in (self.settings or {}).items()}
        named = {find(name).name: getattr(self, name) for name in _NAMED if getattr(self, name) is not None}
        named |= {"method": self.method, "runtime.device": self.device, "seed": self._seed()}
        if twice := sorted(
            further.keys() & {*(find(name).name for name in _NAMED), "method", "runtime.device", "seed"}
        ):
            wanted = "random_state" if twice == ["seed"] else " and ".join(name.rpartition(".")[2] for name in twice)
            raise UsageError(f"settings hold {', '.join(twice)}. Give {wanted} to EBPLClassifier by name.")
        learns = self.fine_tune not in (None, "none")
        preset = self.preset or ("features" if self.encoder or learns else None)
        preset = presets.FINE_TUNED.get(str(self.fine_tune), preset) if preset == "features" else preset
        chosen = presets.preset(preset) if preset else api.default_settings(self.device)
        chosen = chosen.changed({**further, **named})
        if (self.encoder or learns) and is_row(self.image_shape):
            raise UsageError(
                f'The encoder {chosen.model.encoder} takes images, and image_shape="row" says that these are none. For '
                'features that were computed elsewhere give preset="features" and no encoder.'
            )
        return chosen

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    @contextlib.contextmanager
    def _run_directory(self) -> Iterator[Path]:
        if self.run is not None:
            yield Path(self.run)
            return
        with tempfile.TemporaryDirectory(prefix="ebpl-") as folder:
            yield Path(folder) / "run"

    # --- images ------------------------------------------------------------------------------------------------------

    def _rows(self, X: Any, reset: bool) -> NDArray[Any]:
        """Images as rows, checked as scikit-learn does; with `reset` their shape is learned."""
        shape = shape_of(X)
        if shape is not None:
            X = np.asarray(X).reshape(len(X), -1)
        rows: NDArray[Any] = validated(self, X, reset=reset)
        if reset:
            given = self.image_shape if shape is None or self.image_shape is not None else shape
            features = self.preset == "features" and not self.encoder
            if features and given is None and rows.dtype.kind == "f":
                given = ROW
            self.image_shape_ = shape_for(rows.shape[1], given)
            as_they_are = features and is_row(given)
            self.scale_ = None if as_they_are else Scale.of(rows, self.image_shape_, by_column=is_row(given))
        if shape is not None and shape != self.image_shape_:
            wanted, found = (" x ".join(map(str, each)) for each in (self.image_shape_, shape))
            raise DataError(f"The images are {found}, but {wanted} is wanted (height x width x channels).")
        return rows

    def _predicted(self, X: Any) -> Predictions:
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        scale = self.scale_
        like_bytes = scale is not None and scale.low.shape == () and (float(scale.low), float(scale.high)) == (0, 255)
        if like_bytes and rows.dtype.kind == "f" and rows.min() >= 0 and 0 < rows.max() <= 1:
            warnings.warn(
                "The model was trained on numbers from 0 to 255, and these are from 0 to 1, which it sees as black. "
                "Give it the same kind of numbers.",
                UserWarning,
                stacklevel=3,
            )
        return self._predictions(self._pixels(rows))

    def _pixels(self, rows: NDArray[Any]) -> NDArray[np.uint8]:
        """What the model takes: images, or rows with all their digits where they are features."""
        return packed(rows) if self.scale_ is None else self.scale_.pixels(rows)

    def _predictions(self, pixels: NDArray[np.uint8]) -> Predictions:
        device, dtype = device_and_dtype(self.settings_.runtime)
        return predict(self.model_.to(device), pixels, dtype)

    # --- files -------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The network as plain arrays: they load on any machine, whatever device it was trained on."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "model_" in state:
            model = state["model_"]
            tensors = {**model.state_dict(), LOG_MIX: model.log_mix}
            weights = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
            state["model_"] = {"architecture": asdict(model.architecture), "weights": weights}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if stored := state.get("model_"):
            import torch

            model = Architecture(**stored["architecture"]).build()
            load_weights(model, {name: torch.from_numpy(array.copy()) for name, array in stored["weights"].items()})
            state = {**state, "model_": model.eval()}
        super().__setstate__(state)


def score(estimator: Any, X: Any, y: Any, metric: str = "accuracy") -> float:
    """A scorer for scikit-learn that leaves unlabelled images out, for `scoring=` of a grid search or cross-validation.

    `metric` is any name of scikit-learn's scorers: `functools.partial(score, metric="balanced_accuracy")`.
    """
    known, names = _labels(y)
    if not known.any():
        raise DataError("No image has a label to compare with.")
    images = X.iloc[np.flatnonzero(known)] if hasattr(X, "iloc") else np.asarray(X)[known]
    return float(get_scorer(metric)(estimator, images, names))


def _labels(y: Any) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Which images have a label, and these labels."""
    every = column_or_1d(y, warn=True)
    known = ~missing(every)
    names = plain(every[known])
    assert_all_finite(names, input_name="y")
    if len(names):
        check_classification_targets(names)
    return known, names


def _first_steps(run: Run, count: int) -> NDArray[np.int64]:
    """The curriculum step that first gave each of the training images a pseudo-label; -1 where none did."""
    first = np.full(count, -1)
    for step in range(run.settings.curriculum.steps, 0, -1):
        first[[int(row["image"]) for row in read_table(run.path, f"{PSEUDO_LABELS}/step-{step}.csv")]] = step
    return first
