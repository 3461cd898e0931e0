"""The class mix: which share of the images each class has, among the labels, the unlabelled images, and where in use.

A classifier answers with the mix of its labels as its prior. Where images are drawn from another mix, its probabilities
are multiplied by the ratio of both and normalised. The mix of unlabelled images is estimated from what the classifier
says of them, by expectation-maximisation (Saerens, Latinne and Decaestecker 2002), as the most likely one. With few
labels the classifier itself is off, and so is the estimate, the more the less surely images can be told apart. Where
that may explain all of the difference to the labels' mix, or where the labels may be a random sample of the images, the
labels' mix is kept as it is.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ebpl.errors import DataError, UsageError, some_of
from ebpl.io import is_number

Floats = NDArray[np.float64]
NAMED = ("auto", "labels", "balanced")
"""Class mixes that are no file."""
ROUNDS = 1000
CONVERGED = 1e-8
PSEUDO_COUNT = 1.0
"""Images of each class that are taken to be there before any is seen, so that no share is zero."""
LABEL_VARIANCE = 1.0
"""Variance of a class's score by the choice of its labels, times their number: that of a mean, in units of the standard
deviation within classes. With ten labels a class on features of photographs, errors of the estimate were between 0.6
and 1.5 times what it lets expect in most cases, and twice with a class of one per cent and three times fewer labels."""
LEAST_VARIANCE = 0.02
"""With many labels too a classifier is not exact."""
SIGNIFICANCE = 0.2
"""Of the test that keeps the labels' mix. A wrong mix that is kept costs more than an estimate where none is needed:
of 0.05 to 0.3, this and 0.3 had the smallest errors on three datasets of photographs, with and without imbalance."""
SHOWN = 8
"""Classes of which a share is shown."""


@dataclass(frozen=True)
class ClassMix:
    """The shares of all classes in a mix (C), and the logarithms of their ratios to those of the labels."""

    shares: tuple[float, ...]
    log_ratio: tuple[float, ...]
    interval: tuple[tuple[float, float], ...] | None = None
    """95 % intervals of the shares, where they were estimated."""

    @classmethod
    def of(cls, shares: Floats, labels: NDArray[np.int64]) -> ClassMix:
        """A mix that is known, for a classifier with this number of labels of each class."""
        return cls(tuple(shares.tolist()), tuple((np.log(shares) - np.log(labels / labels.sum())).tolist()))

    @staticmethod
    def stored(value: Any) -> ClassMix | None:
        """A mix that was written down as a dictionary; None if there is none."""
        if value is None:
            return None
        interval = value["interval"] and tuple((low, high) for low, high in value["interval"])
        return ClassMix(tuple(value["shares"]), tuple(value["log_ratio"]), interval)

    @property
    def differs(self) -> bool:
        """Whether it is another than that of the labels."""
        return any(self.log_ratio)

    def in_words(self, classes: Sequence[str]) -> str:
        """What a user is told of it."""
        if not self.differs:
            return "the unlabelled images may well have the class mix of the labels, which is kept"
        how = "the unlabelled images seem to be" if self.interval else "the class mix is"
        return f"{how} {self.described(classes)}; probabilities are for that mix"

    def described(self, classes: Sequence[str]) -> str:
        """The shares in words, the largest first.

        >>> ClassMix((0.25, 0.75), (-0.7, 0.4)).described(["cat", "dog"])
        'dog 75 %, cat 25 %'
        """
        shown = []
        for i in np.argsort(-np.array(self.shares), kind="stable"):
            low, high = self.interval[i] if self.interval else (0.0, 0.0)
            between = f" ({100 * low:.0f} to {100 * high:.0f})" if self.interval else ""
            shown.append(f"{classes[i]} {100 * self.shares[i]:.0f} %{between}")
        return some_of(shown, SHOWN, many="more classes")


def mix_of(wanted: str, classes: Sequence[str], labels: NDArray[np.int64]) -> ClassMix | Literal["auto"] | None:
    """The class mix that a setting or an option stands for, for a classifier with this number of labels of each class.

    It is None for that of the labels, and "auto" if it is to be estimated.
    """
    if wanted == "labels":
        return None
    if wanted == "auto":
        return "auto"
    shares = np.full(len(classes), 1 / len(classes)) if wanted == "balanced" else read_mix(wanted, classes)
    return ClassMix.of(shares, labels)


def reweight(probabilities: Floats, log_ratio: Sequence[float] | Floats) -> Floats:
    """Probabilities (N, C) for another mix, given the logarithms of its shares' ratios to those of the mix so far."""
    ratio = np.asarray(log_ratio, np.float64)
    if not ratio.any():
        return probabilities
    weighted = probabilities * np.exp(ratio - ratio.max())
    return np.asarray(weighted / np.maximum(weighted.sum(1, keepdims=True), np.finfo(np.float64).tiny))


def most_likely_mix(probabilities: Floats, prior: Floats, pseudo_count: float = PSEUDO_COUNT) -> Floats:
    """The mix that makes images likeliest, from probabilities (N, C) by a classifier whose own mix is the prior.

    Before any image is seen there are `pseudo_count` of each class.
    """
    likelihoods = probabilities / prior
    mix = prior
    for _ in range(ROUNDS):
        posterior = likelihoods * mix
        posterior /= np.maximum(posterior.sum(1, keepdims=True), np.finfo(np.float64).tiny)
        found = posterior.sum(0) + pseudo_count
        found /= found.sum()
        if np.abs(found - mix).max() < CONVERGED:
            break
        mix = found
    return np.asarray(found)


def estimate_mix(probabilities: Floats, labels: NDArray[np.int64]) -> ClassMix:
    """The mix of images, from probabilities (N, C) by a classifier with this number of labels of each class."""
    prior = labels / labels.sum()
    if not len(probabilities) or len(labels) == 1:
        return ClassMix.of(prior, labels)
    likeliest = most_likely_mix(probabilities, prior)
    covariance = log_covariance(probabilities, likeliest, labels)
    if _may_be(prior, likeliest, covariance, labels):
        found = ClassMix(tuple(prior.tolist()), (0.0,) * len(prior))
    else:
        found = ClassMix.of(likeliest, labels)
    low, high = _interval(likeliest, covariance)
    ends = zip(np.minimum(low, found.shares).tolist(), np.maximum(high, found.shares).tolist(), strict=True)
    return replace(found, interval=tuple(ends))


def log_covariance(probabilities: Floats, mix: Floats, labels: NDArray[np.int64]) -> Floats:
    """The covariance (C, C) of the logarithms of the most likely mix, up to a constant that all share.

    Part of it is the choice of the images. The other part is the choice of the labels: it moves the classifier's score
    of each class, and the mix follows the more, the less surely images can be told apart (the delta method). Where
    every posterior is certain, nothing follows; where all are alike, the mix can be anything.
    """
    count, classes = len(probabilities), len(mix)
    posterior = reweight(probabilities, np.log(mix * labels.sum() / labels))
    images = count / (count + PSEUDO_COUNT * classes)
    within = np.diag(posterior.mean(0)) - posterior.T @ posterior / count
    information = np.diag(mix) - np.outer(mix, mix) - images * within  # none of the constant
    response = images * np.linalg.pinv(information, rcond=1e-9, hermitian=True)
    by_labels = response @ within
    scores = LABEL_VARIANCE / labels + LEAST_VARIANCE
    by_images = np.cov(posterior.T, bias=True) / count
    return np.asarray(by_labels * scores @ by_labels.T + response @ by_images @ response.T)


def _may_be(prior: Floats, mix: Floats, covariance: Floats, labels: NDArray[np.int64]) -> bool:
    """Whether the mix may well be that of the labels, by a test of their difference.

    Where classes have different numbers of labels, these may be a random sample, whose own mix is by chance.
    """
    from scipy.stats import chi2

    if labels.max() - labels.min() > 1:
        covariance = covariance + np.diag(1 / labels)
    contrasts = np.eye(len(mix))[1:] - np.eye(len(mix))[0]
    difference = contrasts @ np.log(mix / prior)
    distance = difference @ np.linalg.solve(contrasts @ covariance @ contrasts.T, difference)
    return bool(chi2.sf(distance, len(difference)) > SIGNIFICANCE)


def _interval(mix: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Both ends of 95 % intervals of the shares."""
    against = np.eye(len(mix)) - (1 - np.eye(len(mix))) * mix / (1 - mix)[:, None]  # a class and all others together
    reach = np.exp(1.96 * np.sqrt(np.einsum("ci,ij,cj->c", against, covariance, against)))
    return mix / (mix + (1 - mix) * reach), mix * reach / (mix * reach + 1 - mix)


def read_mix(path: str | Path, classes: Sequence[str]) -> Floats:
    """The shares of these classes from a file: a CSV of class and share, or TOML with a line `class = share`.

    They may be counts or per cent as well; what counts is their ratio.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"class_mix is {str(path)!r}, but must be {', '.join(NAMED)}, or an existing CSV or TOML.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = dict(_entries_of_toml(text) if path.suffix == ".toml" else _entries_of_csv(text))
    except (OSError, UnicodeDecodeError, csv.Error, tomllib.TOMLDecodeError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a class mix, a line for each class and its share: {error}."
        ) from error
    if missing := [name for name in classes if name not in found]:
        raise DataError(f"{path} has no share for {some_of(missing, 5)}. Give each class of the labels a line.")
    if unknown := [name for name in found if name not in classes]:
        raise DataError(f"{path} has a share for {some_of(unknown, 5)}, but no label is of that class.")
    shares = np.array([found[name] for name in classes], np.float64)
    if wrong := [name for name, share in zip(classes, shares, strict=True) if not 0 < share < math.inf]:
        raise DataError(f"{path}: the share of {some_of(wrong, 5)} is not above 0. A class in use has some images.")
    return np.asarray(shares / shares.sum())


def _entries_of_csv(text: str) -> Iterator[tuple[str, float]]:
    rows = [row for row in csv.reader(text.splitlines()) if any(cell.strip() for cell in row)]
    for number, row in enumerate(rows):
        if len(row) != 2:
            raise ValueError(f"line {number + 1} has {len(row)} columns, not 2")
        try:
            share = float(row[1].strip().removesuffix("%"))
        except ValueError:
            if number == 0:  # a header
                continue
            raise ValueError(f"line {number + 1} has {row[1]!r}, which is not a number") from None
        yield row[0].strip(), share


def _entries_of_toml(text: str) -> Iterator[tuple[str, float]]:
    for name, share in tomllib.loads(text).items():
        if not is_number(share):
            raise ValueError(f"{name} is {share!r}, which is not a number")
        yield name, float(share)
