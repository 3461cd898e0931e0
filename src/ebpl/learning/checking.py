"""Labels that wait: before they join the training, they tell how far its confidence can be believed.

They are the only honest witnesses there are without validation data, and a curriculum loses none of them: when it
begins, they are learned from like all others. What they say is of the weights before it; where steps have moved the
confidence by much since, as after an initial training that was too short, it is not believed any more. They are few, so
the confidence is left alone unless they prove it wrong; and where they would be too few to prove anything, none waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebpl.methods import METHODS
from ebpl.seeds import derived_seed
from ebpl.settings import Settings
from ebpl.stored import is_number

if TYPE_CHECKING:
    from torch import Tensor

    from ebpl.learning.trainer import Trainer

FEWEST = 100
"""Of a hundred labels the share that is right is known to three to five points. Fewer prove less, and are missed more:
on CIFAR-10 the 70 that a fifth would be cost 2.4 points of accuracy and proved nothing (docs/explanation)."""
PROOF = 2.0
"""In nats: a temperature must be seven times as likely as none to be believed."""
EXPECTED = 0.5
"""How far from 0 the logarithm of a temperature is thought to lie before any label has been looked at. A handful of
labels that are all right would otherwise make certain what was a guess."""
FAR = 0.5
"""A correction is dropped once steps have moved the mean confidence by more than this share of what it does itself."""
TEMPERATURES = np.exp(np.linspace(-1, 1, 101) * np.log(4))
"""From a quarter to four; the one in the middle is 1."""


@dataclass(frozen=True)
class Check:
    """What the labels that waited have shown."""

    images: int
    accuracy: float
    confidence: float
    proof: float
    """The logarithm of how much likelier than 1 the likeliest temperature is, after these labels."""
    temperature: float
    """By which class scores are divided in what is kept: the likeliest if that is proof enough, accuracy and
    confidence bear it out, and the steps have not moved the confidence far since; else 1."""
    at_first: float = 0.0
    """The mean confidence in images without labels when the first step began, before any correction."""
    corrected: float = 0.0
    """The same after it. Both are 0 if there was no step, or nothing to correct."""
    moved: float = 0.0
    """How far the steps had moved that confidence when they last were looked at."""

    @staticmethod
    def of(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Check:
        """Compare probabilities (N, C) with the labels of images that the model has not learned from."""
        scores = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
        losses = np.array([_loss(scores / temperature, labels) for temperature in TEMPERATURES])
        losses += (np.log(TEMPERATURES) / EXPECTED) ** 2 / 2
        proof, likeliest = float(losses[len(losses) // 2] - losses.min()), float(TEMPERATURES[losses.argmin()])
        accuracy, confidence = float((probabilities.argmax(1) == labels).mean()), float(probabilities.max(1).mean())
        # a few sure mistakes make a high temperature likely even where the confidence is too low on the whole
        proven = proof >= PROOF and (likeliest > 1) == (confidence > accuracy)
        return Check(len(labels), accuracy, confidence, proof, likeliest if proven else 1.0)

    @staticmethod
    def stored(value: Any) -> Check | None:
        """A check that was written down; None if there is none, or if it is not what it should be."""
        names = {field.name for field in fields(Check)}
        needed = {field.name for field in fields(Check) if field.default is MISSING}
        if not isinstance(value, dict) or not needed <= value.keys() <= names:
            return None
        if not all(map(is_number, value.values())):
            return None
        return Check(**value) if value["temperature"] > 0 else None

    def __str__(self) -> str:
        found = (
            f"Of {self.images} labels that were held back, {100 * self.accuracy:.1f} % were predicted right "
            f"at a mean confidence of {100 * self.confidence:.1f} %"
        )
        if self.temperature == 1 and self.corrected:
            by = 100 * self.moved
            return f"{found}. Steps have moved it by {by:+.1f} points since, so what was found then is not applied."
        if self.temperature == 1:
            return f"{found}, which proves nothing against it."
        wrong = "too sure" if self.temperature > 1 else "too unsure"
        return f"{found}: {wrong}, so class scores are divided by {self.temperature:.2f} in what is kept."


def _loss(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The negative log-likelihood of the labels, summed."""
    return float((np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(labels)), labels]).sum())


def share_to_wait(settings: Settings) -> float:
    """The share of labels that are to wait; none for a method whose steps begin with fresh weights, of which they would
    say nothing."""
    return 0.0 if METHODS[settings.method].restart else settings.held_back


def waiting_of_each(labels: Sequence[int], share: float) -> list[int]:
    """How many labels of each class wait if it has so many: this share, rounded down; none if they were too few."""
    counts = [int(share * count + 1e-9) for count in labels]
    return counts if sum(counts) >= FEWEST else [0] * len(counts)


def waiting(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Which of the labelled images wait."""
    random = np.random.RandomState(derived_seed(seed, "waiting") % 2**32)
    chosen = np.zeros(len(labels), bool)
    classes, counts = np.unique(labels, return_counts=True)
    for label, count in zip(classes, waiting_of_each(counts.tolist(), share), strict=True):
        chosen[random.permutation(np.flatnonzero(labels == label))[:count]] = True
    return chosen


def run_check(trainer: Trainer) -> None:
    """Let the labels that wait judge the weights as they are now."""
    here = slice(trainer.labeled_count - trainer.waiting, trainer.labeled_count)
    labels = trainer.pool.targets[here].argmax(1).cpu().numpy()
    trainer.check = Check.of(trainer.predict(trainer.pool.images[here]).probabilities, labels)
    trainer.say(str(trainer.check))


def look_again(trainer: Trainer, probabilities: NDArray[np.float64]) -> None:
    """Drop a correction when the steps have moved the confidence far; probabilities are of all unlabelled images."""
    from ebpl.learning.curriculum import tempered  # and with it PyTorch, which the list of cells does without

    check = trainer.check
    if check is None or check.temperature == 1 or len(probabilities) == 0:
        return
    confidence = float(probabilities.max(1).mean())
    if not check.corrected:
        corrected = float(tempered(probabilities, check.temperature).max(1).mean())
        trainer.check = replace(check, at_first=confidence, corrected=corrected)
        return
    moved, correction = confidence - check.at_first, check.corrected - check.at_first
    far = moved * correction > FAR * correction**2
    trainer.check = replace(check, moved=moved, temperature=1.0 if far else check.temperature)
    if far:
        trainer.say(str(trainer.check))


def cooled(weights: dict[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """The weights of a model whose class scores are divided by a temperature."""
    return {
        name: tensor / temperature if name.startswith("classifier.") else tensor for name, tensor in weights.items()
    }
