"""A temperature from held-out labels, without validation data.

Some labels are held out until the first curriculum step and then rejoin training. Until then they are the only unbiased
calibration data. They show how well the weights before the curriculum are calibrated; where its steps have moved the
confidence far since, as after an initial training that was too short, their temperature is dropped. They are few, so
the confidence is left unchanged unless they give clear evidence; where they would be too few for that, none is held
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration.histogram_binning import Bins, apply_bins, fit_bins
from ebpl.errors import some_of
from ebpl.io import is_number
from ebpl.rng import derived_seed

if TYPE_CHECKING:
    from torch import Tensor

MIN_HOLDOUT = 100
"""With a hundred labels accuracy is known to three to five points. Fewer are weaker evidence, and are missed more: on
CIFAR-10 the 70 that a fifth would be cost 2.4 points of accuracy and proved nothing (docs/explanation)."""
EVIDENCE = 2.0
"""In nats: a temperature must be seven times as likely as none to be applied."""
PRIOR_SCALE = 0.5
"""Standard deviation of the log-temperature before any label is seen. A handful of labels that are all right would
otherwise make certain what was a guess."""
EXPECTED_SCALE = 0.2
"""The same where a temperature is expected: what was measured around it on photographs (training/probe.py)."""
MAX_DRIFT = 0.5
"""A temperature is dropped once steps have moved the mean confidence by more than this fraction of its own effect."""
TEMPERATURES = np.exp(np.linspace(-1, 1, 101) * np.log(4))
"""From a quarter to four; the one in the middle is 1."""


@dataclass(frozen=True)
class CalibrationCheck:
    """What the held-out labels have shown."""

    images: int
    accuracy: float
    confidence: float
    proof: float
    """Log-odds of the most likely temperature against 1, after these labels."""
    temperature: float
    """By which class scores are divided in what is kept: the most likely one if the evidence is enough, accuracy and
    confidence agree with it, and the steps have not moved the confidence far since; else 1."""
    at_first: float = 0.0
    """Mean confidence in unlabelled images when the first step began, before any temperature."""
    corrected: float = 0.0
    """The same with the temperature. Both are 0 if there was no step, or no temperature."""
    moved: float = 0.0
    """How far the steps had moved that confidence when it was last checked."""
    folds: int = 0
    """Of the cross-validation that it comes from, in which the steps were taken too; 0: the labels were held out."""
    bins: Bins = ()
    """Of histogram binning, where the labels were held out: for comparison, not in what is kept."""

    @staticmethod
    def of(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> CalibrationCheck:
        """Compare probabilities (N, C) with the labels of images that the model has not learned from."""
        accuracy, confidence, proof, likeliest = _compared(probabilities, labels, 1.0, PRIOR_SCALE)
        # a few confident errors make a high temperature likely even where the model is under-confident on the whole
        clear = proof >= EVIDENCE and (likeliest > 1) == (confidence > accuracy)
        temperature, bins = likeliest if clear else 1.0, fit_bins(probabilities, labels)
        return CalibrationCheck(len(labels), accuracy, confidence, proof, temperature, bins=bins)

    @staticmethod
    def cross_validated(
        probabilities: NDArray[np.float64], labels: NDArray[np.int64], folds: int, expected: float
    ) -> CalibrationCheck:
        """The same from cross-validation, in which every label had its turn; a temperature is `expected`."""
        found = _compared(probabilities, labels, expected, EXPECTED_SCALE)
        return CalibrationCheck(len(labels), *found, folds=folds)

    @staticmethod
    def stored(value: Any) -> CalibrationCheck | None:
        """A check that was written down; None if there is none, or if it is not what it should be."""
        names = {field.name for field in fields(CalibrationCheck)}
        needed = {field.name for field in fields(CalibrationCheck) if field.default is MISSING}
        if not isinstance(value, dict) or not needed <= value.keys() <= names:
            return None
        numbers, bins = {name: each for name, each in value.items() if name != "bins"}, value.get("bins", ())
        if not all(map(is_number, numbers.values())) or not value["temperature"] > 0:
            return None
        if not isinstance(bins, (list, tuple)) or not all(map(_is_bin, bins)):
            return None
        return CalibrationCheck(**numbers, bins=tuple((begin, confidence) for begin, confidence in bins))

    def __str__(self) -> str:
        how = f"labels in {self.folds}-fold cross-validation" if self.folds else "held-out labels"
        found = (
            f"Accuracy on {self.images} {how} is {100 * self.accuracy:.1f} % "
            f"at a mean confidence of {100 * self.confidence:.1f} %"
        )
        if self.temperature == 1 and self.corrected:
            by = 100 * self.moved
            return f"{found}. The steps have moved it by {by:+.1f} points since, so the temperature is not applied."
        if self.temperature == 1:
            return f"{found}: no evidence against the calibration."
        wrong = "over-confident" if self.temperature > 1 else "under-confident"
        return f"{found}: {wrong}, so class scores are divided by a temperature of {self.temperature:.2f}."


def _is_bin(value: Any) -> bool:
    """Whether this was written down as the begin and the confidence of a bin."""
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(is_number(x) and 0 <= x <= 1 for x in value)


def before_and_after(probabilities: NDArray[np.float64], check: CalibrationCheck) -> dict[str, NDArray[np.float64]]:
    """Probabilities (N, C), which have the temperature, before any calibration, with it, and with histogram binning."""
    before = apply_temperature(probabilities, 1 / check.temperature)
    return {"none": before, "temperature": probabilities, "histogram binning": apply_bins(before, check.bins)}


def _compared(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], expected: float, scale: float
) -> tuple[float, float, float, float]:
    """Accuracy, mean confidence, log-odds of the likeliest temperature against 1, and that temperature.

    Before any label is seen, the log-temperature is normal around that of the expected one, with this deviation.
    """
    scores = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    losses = np.array([_nll(scores / temperature, labels) for temperature in TEMPERATURES])
    losses += (np.log(TEMPERATURES / expected) / scale) ** 2 / 2
    proof, likeliest = float(losses[len(losses) // 2] - losses.min()), float(TEMPERATURES[losses.argmin()])
    return float((probabilities.argmax(1) == labels).mean()), float(probabilities.max(1).mean()), proof, likeliest


def likeliest_temperature(probabilities: NDArray[np.float64], labels: NDArray[np.int64], scale: float) -> float:
    """The temperature that labels of images make likeliest; before any, its logarithm is normal around 0."""
    return _compared(probabilities, labels, 1.0, scale)[3]


def _nll(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The negative log-likelihood of the labels, summed."""
    return float((np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(labels)), labels]).sum())


def holdout_counts(labels: Sequence[int], fraction: float) -> list[int]:
    """How many labels of each class are held out: this fraction, rounded down; none if they are too few in all."""
    counts = [int(fraction * count + 1e-9) for count in labels]
    return counts if sum(counts) >= MIN_HOLDOUT else [0] * len(counts)


def holdout_mask(labels: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which of the labelled images are held out."""
    random = np.random.RandomState(derived_seed(seed, "waiting") % 2**32)
    chosen = np.zeros(len(labels), bool)
    classes, counts = np.unique(labels, return_counts=True)
    for label, count in zip(classes, holdout_counts(counts.tolist(), fraction), strict=True):
        chosen[random.permutation(np.flatnonzero(labels == label))[:count]] = True
    return chosen


def revalidate_temperature(check: CalibrationCheck, probabilities: NDArray[np.float64]) -> CalibrationCheck:
    """Drop a temperature when the steps have moved the confidence far; probabilities are of all unlabelled images."""
    if check.temperature == 1 or len(probabilities) == 0 or check.folds:
        return check
    confidence = float(probabilities.max(1).mean())
    if not check.corrected:
        corrected = float(apply_temperature(probabilities, check.temperature).max(1).mean())
        return replace(check, at_first=confidence, corrected=corrected)
    moved, correction = confidence - check.at_first, check.corrected - check.at_first
    far = moved * correction > MAX_DRIFT * correction**2
    return replace(check, moved=moved, temperature=1.0 if far else check.temperature)


def apply_temperature(probabilities: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Probabilities (N, C) as they are when the scores behind them are divided by a temperature."""
    if temperature == 1:
        return probabilities
    powers = (probabilities / probabilities.max(1, keepdims=True)) ** (1 / temperature)
    return np.asarray(powers / powers.sum(1, keepdims=True))


def scale_classifier(weights: dict[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """The weights of a model whose class scores are divided by a temperature."""
    return {
        name: tensor / temperature if name.startswith("classifier.") else tensor for name, tensor in weights.items()
    }


FAR = 0.1
"""Confidence and accuracy that are further apart are a warning, if that is beyond chance."""


def updates_of(result: Mapping[str, Any]) -> tuple[float, float]:
    """How many updates a finished run has made, and how many its settings ask for; 0 and 0 where that is not known."""
    found = result.get("updates")
    made, full = (_number(found.get(name)) for name in ("made", "of")) if isinstance(found, dict) else (None, None)
    return (0.0, 0.0) if made is None or full is None else (made, full)


SHORT = 0.5
"""A training with a smaller share of its updates is said to be short."""


def warnings_of(result: Mapping[str, Any], measured: str = "test image") -> list[str]:
    """What a user should know of a finished run before its model is used, from its test_metrics.json.

    `measured` is what an image that it was measured on is called.
    """
    events, images = result.get("healed_divergences"), result.get("images")
    sizes = images if isinstance(images, dict) else {}
    found = []
    if isinstance(events, list) and events:
        times = "once" if len(events) == 1 else f"{len(events)} times"
        found.append(f"Training diverged and recovered {times}, with a lower learning rate; train.log has the reasons.")
    made, full = updates_of(result)
    if made < SHORT * full:
        found.append(f"The time limit left {100 * made / full:.0f} % of the updates of the settings: allow more time.")
    for of, images_of, right, confidence in _measured(result, sizes, measured):
        gap = confidence - right
        chance = max(right * (1 - right), confidence * (1 - confidence))  # few images may all be right by chance
        if abs(gap) > FAR and abs(gap) > 2 * math.sqrt(max(chance, 0.0) / images_of):
            wrong = "over-confident" if gap > 0 else "under-confident"
            found.append(
                f"The model is {wrong}: its mean confidence on {of} is {100 * confidence:.0f} %, its accuracy "
                f"{100 * right:.0f} %. Do not rely on its confidence."
            )
            break
    measures, share, test = result.get("metrics"), _number(result.get("majority_share")), _number(sizes.get("test"))
    accuracy = _number(measures.get("accuracy")) if isinstance(measures, dict) else None
    if accuracy is not None and share is not None and (test or 0) >= 1 and 0 <= share < 1:
        noise = 2 * math.sqrt(share * (1 - share) / (test or 1))
        if accuracy - share <= noise:
            how = "below that of" if accuracy < share else "not clearly better than"
            found.append(
                f"An accuracy of {100 * accuracy:.1f} % is {how} always naming the largest class, which has "
                f"{100 * share:.1f} % of the {measured}s."
            )
    never = result.get("never_predicted")
    if isinstance(never, list) and never:
        found.append(f"Never predicted for any {measured}: {some_of([str(name) for name in never], 10)}.")
    return found


def _measured(
    result: Mapping[str, Any], sizes: Mapping[str, Any], measured: str
) -> Iterator[tuple[str, float, float, float]]:
    """Labels that training did not learn from: what they are, how many, accuracy and mean confidence on them."""

    def entries(name: str) -> dict[str, Any]:
        value = result.get(name)
        return value if isinstance(value, dict) else {}

    measures, curves, check = entries("metrics"), entries("curves"), entries("check")
    accuracy, over = _number(measures.get("accuracy")), _number(measures.get("overconfidence"))
    found: list[tuple[str, Any, float | None, float | None]] = []
    if accuracy is not None and over is not None:
        found.append((f"the {measured}s", sizes.get("test"), accuracy, accuracy + over))
    right, confidence = (curves.get(f"validation_{name}") for name in ("accuracy", "confidence"))
    if isinstance(right, list) and isinstance(confidence, list) and right and len(right) == len(confidence):
        best = max(range(len(right)), key=lambda i: _number(right[i]) or 0.0)  # the first: those weights are kept
        found.append(
            ("the validation images", sizes.get("validation"), _number(right[best]), _number(confidence[best]))
        )
    if _number(check.get("temperature")) == 1:
        found.append(
            ("held-out labels", check.get("images"), _number(check.get("accuracy")), _number(check.get("confidence")))
        )
    for of, count, share, mean in found:
        number = _number(count)
        if number and number >= 1 and share is not None and mean is not None and 0 <= share <= 1:
            yield of, number, share, mean


def _number(value: Any) -> float | None:
    """A number from a file that may be foreign; None if it is none."""
    try:
        return float(value) if is_number(value) else None
    except OverflowError:
        return None
