"""Which class mix the probabilities of a run are for, as its report and its model card say it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ebpl.calibration.class_mix import NAMED, ClassMix
from ebpl.io import is_number

OTHER_MIX, SIGNIFICANCE = 0.1, 0.01
"""Images have another mix if the total variation is at least this, and chance makes one as large less often."""


@dataclass(frozen=True)
class UsedMix:
    """The class mix of a run: of its labels, and the one that its probabilities are for."""

    classes: tuple[str, ...]
    labels: tuple[int, ...]
    """Labels of each class."""
    shares: tuple[float, ...]
    """Of the classes in the mix that probabilities are for."""
    interval: tuple[tuple[float, float], ...] | None
    """95 % intervals of these, where they were estimated."""
    origin: Literal["labels", "kept", "estimated", "balanced", "given"]
    """`kept`: it was estimated, and may well be that of the labels."""

    @property
    def label_shares(self) -> list[float]:
        """Of the classes among the labels."""
        return [count / sum(self.labels) for count in self.labels]

    @property
    def is_of_labels(self) -> bool:
        """Whether it is the mix of the labels."""
        return self.origin in ("labels", "kept")

    def sentences(self) -> list[str]:
        """What probabilities stand for, and what to do where images have another mix."""
        what = {
            "labels": "Probabilities are for the class mix of the labels.",
            "kept": "Probabilities are for the class mix of the labels. By an estimate, the unlabelled images may well "
            "have it too.",
            "estimated": "Probabilities are for the class mix of the unlabelled images, as it was estimated in "
            "training. The labels have another one.",
            "balanced": "Probabilities are for classes that are equally frequent, as was asked for.",
            "given": "Probabilities are for a class mix that was given for the training.",
        }[self.origin]
        where = (
            "They are meant for images with these shares of the classes: there, of predictions with a confidence of "
            "80 %, 80 of 100 should be right. For images of another mix, use the option --class-mix of ebpl predict."
        )
        return [what, where]

    def differs_from(self, images: Sequence[int]) -> bool:
        """Whether so many images of each class are clearly of another mix."""
        from scipy.stats import chisquare

        counts, total = np.array(images, np.float64), sum(images)
        expected = np.maximum(np.array(self.shares), 1e-9)
        if not total or np.abs(counts / total - expected).sum() / 2 < OTHER_MIX:
            return False
        return bool(chisquare(counts, expected / expected.sum() * total).pvalue < SIGNIFICANCE)


def used_mix(result: Mapping[str, Any], setting: str | None) -> UsedMix | None:
    """The class mix of a run by its result and its setting; None where a run does not hold how many labels it had."""
    images = result.get("images")
    labelled = images.get("labelled") if isinstance(images, dict) else None
    counts = labelled if isinstance(labelled, dict) else {}
    if not counts or not all(is_number(count) and count > 0 for count in counts.values()):
        return None
    classes, labels = tuple(map(str, counts)), tuple(int(count) for count in counts.values())
    stored = result.get("class_mix")
    if stored is None:
        shares = tuple(count / sum(labels) for count in labels)
        return UsedMix(classes, labels, shares, None, "labels")
    mix = _checked(stored, len(classes))
    if mix is None:
        return None
    if mix.interval:
        return UsedMix(classes, labels, mix.shares, mix.interval, "estimated" if mix.differs else "kept")
    return UsedMix(classes, labels, mix.shares, None, "balanced" if setting == "balanced" else "given")


def _checked(stored: Any, classes: int) -> ClassMix | None:
    """A mix of so many classes that a run wrote; None where it is none."""

    def numbers(values: Any, count: int) -> bool:
        return isinstance(values, list) and len(values) == count and all(map(is_number, values))

    if not isinstance(stored, dict) or not all(numbers(stored.get(name), classes) for name in ("shares", "log_ratio")):
        return None
    ends = stored.get("interval")
    if ends is not None and not (isinstance(ends, list) and len(ends) == classes and all(numbers(e, 2) for e in ends)):
        return None
    return ClassMix.stored({**stored, "interval": ends})


def mix_name(setting: str) -> str:
    """A setting of the class mix without the folders of somebody's machine.

    >>> mix_name("balanced"), mix_name("/home/ada/clinic.csv"), mix_name(r"C:\\ada\\clinic.csv")
    ('balanced', 'clinic.csv', 'clinic.csv')
    """
    return setting if setting in NAMED else re.split(r"[/\\]", setting)[-1]
