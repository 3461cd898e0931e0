"""Where training on the features of an encoder starts: both heads fitted to the labels, without gradient descent.

The classifier is logistic regression, the Gaussian head has the means and the common variances that it implies. How
strongly it is regularised, whether it learns from the features or from their square roots, and how far pseudo-labels
are spread among neighbours, is chosen by cross-validation on the labels; so is what is known of the confidence before
training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ebpl.calibration import PRIOR_SCALE, CalibrationCheck, likeliest_temperature
from ebpl.calibration.class_mix import ClassMix, estimate_mix
from ebpl.models import HybridModel
from ebpl.training.neighbors import Graph

if TYPE_CHECKING:
    from ebpl.config import Settings
    from ebpl.training.train_state import TrainState
    from ebpl.training.training_set import TrainingSet

Folds = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Positions to learn from and to look at."""
FOLDS = 5
DECAYS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Weight decays of logistic regression to choose from."""
AMOUNTS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)
"""How far pseudo-labels are spread, to choose from."""
FLATTENED = 0.32
"""Spreading flattens pseudo-labels, and what learns them is under-confident by a temperature that is a power of what is
left of each. It was much the same on three datasets of photographs with 5, 10 and 25 labels a class, so that it is
known better than a few labels could tell: the logarithm had a standard deviation of 0.05 to 0.28 around it."""
MOST_UNLABELED = 3000
"""Unlabelled images that take part in cross-validation."""
SQUARE_ROOT_MARGIN = 0.05
"""The square roots of features must lower the cross-validated negative log-likelihood by this share to be taken. With 5
to 25 labels a class it was 7 to 16 % on blood cells, where they gain five points of accuracy, and -2 to 7 % on
photographs of waste, where they change little."""
LEAST_VARIANCE = 0.1
"""Of a feature within classes: about what the noise of training leaves, and enough for the steps of the chains."""


@dataclass(frozen=True)
class Probe:
    """Logistic regression, and what cross-validation has shown."""

    weight: Tensor
    bias: Tensor
    decay: float
    spreading: float
    check: CalibrationCheck | None
    """Of the confidence after pseudo-labels were learned from; None with too few labels to leave some out."""
    mix: ClassMix | None = None
    """Of the unlabelled images, where it was given or estimated."""


def logistic_regression(
    rows: Tensor, targets: Tensor, decay: float, updates: int = 100, offset: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Weight and bias that minimise the mean cross-entropy plus decay / 2 times the squared weights.

    The offset is added to the scores before their softmax, and is not learned.
    """
    weight = torch.zeros(targets.shape[1], rows.shape[1], dtype=rows.dtype, requires_grad=True)
    bias = torch.zeros(targets.shape[1], dtype=rows.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=updates, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        scores = F.linear(rows, weight, bias) + offset
        value = F.cross_entropy(scores, targets) + decay / 2 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def fit_probe(
    labeled: NDArray[np.float32],
    labels: NDArray[np.int64],
    unlabeled: NDArray[np.float32],
    classes: int,
    student_decay: float | None,
    seed: int,
    mix: ClassMix | Literal["auto"] | None = None,
) -> Probe:
    """The start of training; `student_decay` is the weight decay of what learns pseudo-labels, None if nothing does.

    `mix` is the class mix of the unlabelled images; "auto" estimates it, and None is that of the labels.
    """
    known, targets = torch.from_numpy(labeled), F.one_hot(torch.from_numpy(labels), classes).float()
    folds = stratified_folds(labels, seed)
    decays = {decay: _cross_validated(known, targets, folds, decay) for decay in DECAYS} if folds else {}
    decay = min(decays, key=lambda each: _nll(decays[each], labels)) if decays else DECAYS[len(DECAYS) // 2]
    weight, bias = logistic_regression(known, targets, decay)
    scores, spreading = decays.get(decay), 0.0
    if mix == "auto":
        temperature = 1.0 if scores is None else likeliest_temperature(_softmax(scores), labels, PRIOR_SCALE)
        said = _softmax(F.linear(torch.from_numpy(unlabeled), weight, bias) / temperature)
        mix = estimate_mix(said, np.bincount(labels, minlength=classes))
    if student_decay is not None and len(unlabeled):
        random = np.random.default_rng(seed)
        some = torch.from_numpy(unlabeled[random.permutation(len(unlabeled))[:MOST_UNLABELED]])
        if folds:
            graph = Graph.of(torch.cat([known, some]).numpy())
            ratio = torch.tensor(mix.log_ratio) if mix and mix.differs else torch.zeros(classes)
            found = _students(known, targets, some, graph, folds, decay, student_decay, ratio)
            spreading = min(found, key=lambda amount: _nll(_tempered(found[amount], labels), labels))
            scores = found[spreading]
        else:
            spreading = AMOUNTS[len(AMOUNTS) // 2]
    check = None
    if scores is not None:
        expected = (1 - spreading) ** FLATTENED
        check = CalibrationCheck.cross_validated(_softmax(scores), labels, len(folds), expected)
    return Probe(weight, bias, decay, spreading, check, mix)


def fit_backbone(images: TrainingSet, settings: Settings) -> None:
    """Fit the backbone to all training images; to square roots of features where the settings or the labels say so."""
    backbone, learned = images.backbone.to(images.inputs.device), images.labeled - images.held_out
    fit = backbone.fitting(images.inputs)

    def fitted(square_root: bool) -> Tensor:
        fit(square_root)
        return backbone.points(images.inputs[:learned]).cpu()

    choice = settings.model.square_root if backbone.may_take_square_root else "never"
    if choice == "auto" and square_roots_suit(fitted, images.labels[:learned], settings.seed):
        return  # they were fitted last
    fit(choice == "always")


def square_roots_suit(fitted: Callable[[bool], Tensor], labels: NDArray[np.int64], seed: int) -> bool:
    """Whether square roots of features tell these labels clearly better than the features, by cross-validation.

    `fitted` gives the principal components of labelled images, those of the square roots where it is told so. With 5,
    10 and 25 labels a class they did on blood cells for each of three seeds, and on photographs of waste for none.
    """
    folds = stratified_folds(labels, seed)
    if not folds:
        return False
    plain, root = (_least_nll(fitted(square_root), labels, folds) for square_root in (False, True))
    return root <= (1 - SQUARE_ROOT_MARGIN) * plain


def _least_nll(rows: Tensor, labels: NDArray[np.int64], folds: Folds) -> float:
    """Cross-validated negative log-likelihood at the weight decay that suits these rows best."""
    targets = F.one_hot(torch.from_numpy(labels)).float()
    return min(_nll(_cross_validated(rows, targets, folds, decay), labels) for decay in DECAYS)


def stratified_folds(labels: NDArray[np.int64], seed: int) -> Folds:
    """Positions to learn from and to look at, each class in every part; none where a class has a single label."""
    from sklearn.model_selection import StratifiedKFold

    least = int(np.unique(labels, return_counts=True)[1].min())
    if least < 2:
        return []
    return list(StratifiedKFold(min(FOLDS, least), shuffle=True, random_state=seed).split(labels, labels))


def _cross_validated(rows: Tensor, targets: Tensor, folds: Folds, decay: float) -> Tensor:
    scores = torch.zeros_like(targets)
    for learned, seen in folds:
        weight, bias = logistic_regression(rows[learned], targets[learned], decay)
        scores[seen] = F.linear(rows[seen], weight, bias)
    return scores


def _students(
    rows: Tensor,
    targets: Tensor,
    others: Tensor,
    graph: Graph,
    folds: Folds,
    decay: float,
    student_decay: float,
    ratio: Tensor,
) -> dict[float, Tensor]:
    """For each of `AMOUNTS`, cross-validated scores of what is learned from pseudo-labels that were spread so far.

    `ratio` is that of the class mix of the other images, which is learned with, to that of the labels, which the scores
    are for; both as in training.
    """
    scores, every = {amount: torch.zeros_like(targets) for amount in AMOUNTS}, torch.cat([rows, others])
    for learned, seen in folds:
        weight, bias = logistic_regression(rows[learned], targets[learned], decay)
        posterior = (F.linear(every, weight, bias) + ratio).softmax(1)
        posterior[learned] = targets[learned] * ratio.exp()
        offset = ratio.repeat(len(every), 1)
        offset[learned] = 0
        for amount in AMOUNTS:
            spread = torch.from_numpy(graph.spread(posterior.double().numpy(), amount)).float()
            spread[learned] = targets[learned]
            weight, bias = logistic_regression(every, spread, student_decay, 40, offset)
            scores[amount][seen] = F.linear(rows[seen], weight, bias)
    return scores


def _softmax(scores: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = scores.double().softmax(1).numpy()
    return found


def _nll(scores: Tensor, labels: NDArray[np.int64]) -> float:
    return float(F.cross_entropy(scores, torch.from_numpy(labels)))


def _tempered(scores: Tensor, labels: NDArray[np.int64]) -> Tensor:
    """Scores at the temperature that suits them best: it is fitted in any case, so it must not decide."""
    tempered: list[Tensor] = [scores / float(t) for t in np.exp(np.linspace(-1.5, 1.5, 31))]
    return min(tempered, key=lambda each: _nll(each, labels))


def start(
    state: TrainState,
    images: TrainingSet,
    settings: Settings,
    known: NDArray[Any],
    unknown: NDArray[Any],
    mix: ClassMix | Literal["auto"] | None = None,
) -> None:
    """Fit both heads to the features of the labelled images that are not held out."""
    learned = images.labeled - images.held_out
    fixed = images.backbone.fixed  # else what learns is another network than cross-validation can tell of
    spreads = (fixed or images.backbone.keeps_views) and settings.curriculum.pseudo_labels != "none"
    decay = settings.optim.weight_decay if spreads else None
    features = (known[:learned].astype(np.float32), images.labels[:learned], unknown.astype(np.float32))
    probe = fit_probe(*features, len(images.data.classes), decay, settings.seed, mix)
    state.set_class_mix(probe.mix)
    start_from(state.model, probe, images.backbone.points(images.inputs), images.targets, learned)
    if state.average is not None:
        state.average.load_state_dict(state.model.state_dict())
    state.progress.spreading, state.progress.check = probe.spreading, probe.check if fixed else None


@torch.no_grad()
def start_from(model: HybridModel, probe: Probe, rows: Tensor, targets: Tensor, labeled: int) -> None:
    """Put the probe into both heads; `rows` are all training images, of which the first have these targets."""
    model.classifier.weight.copy_(probe.weight)
    model.classifier.bias.copy_(probe.bias)
    if model.gaussian is None:
        return
    posterior = (model.classifier(rows) + model.log_mix).softmax(1)
    posterior[:labeled] = targets[:labeled]
    means = posterior.T @ rows / posterior.sum(0)[:, None]
    within = (rows.square().sum(0) - (posterior.sum(0)[:, None] * means.square()).sum(0)) / len(rows)
    model.gaussian.set_to(means, within.clamp(min=LEAST_VARIANCE))
