"""Where training on features starts: logistic regression against scikit-learn's, and what cross-validation chooses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch.nn import functional as F

from ebpl.calibration.class_mix import ClassMix
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.data.sklearn_input import packed
from ebpl.models import GaussianHead
from ebpl.models.encoder import PrincipalComponents
from ebpl.training.probe import (
    AMOUNTS,
    DECAYS,
    SQUARE_ROOT_MARGIN,
    _least_nll,
    fit_probe,
    logistic_regression,
    stratified_folds,
)
from ebpl.training.trainer import Trainer
from tests.encoders.helpers import tiny
from tests.helpers import blobs, trainer_of

CLASSES = 3


def rows_of(count: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    centers = np.eye(CLASSES, 8)[labels] * 4
    return (centers + spread * random.normal(size=(count, 8))).astype(np.float32), labels


@pytest.mark.parametrize("decay", [1.0, 0.1, 0.01])
def test_logistic_regression_is_that_of_scikit_learn(decay: float) -> None:
    rows, labels = rows_of(60, 2.0)
    targets = F.one_hot(torch.from_numpy(labels), CLASSES).double()
    weight, bias = logistic_regression(torch.from_numpy(rows).double(), targets, decay, 1000)
    reference = LogisticRegression(C=1 / (decay * len(rows)), max_iter=5000, tol=1e-8).fit(rows.astype(float), labels)
    np.testing.assert_allclose(weight, reference.coef_, atol=2e-3)
    np.testing.assert_allclose(bias - bias.mean(), reference.intercept_ - reference.intercept_.mean(), atol=2e-3)


def test_soft_targets_are_learned_as_what_they_say() -> None:
    rows = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    wanted = torch.tensor([[1.0, -2.0], [0.0, 0.0]])
    weight, _ = logistic_regression(rows, F.linear(rows, wanted).softmax(1), 0.0)
    torch.testing.assert_close(weight - weight.mean(0), wanted - wanted.mean(0), atol=1e-2, rtol=0)


def test_folds_look_at_each_label_once_and_keep_every_class() -> None:
    labels = np.array([0] * 4 + [1] * 9)
    folds = stratified_folds(labels, 0)
    assert len(folds) == 4, "as many as the rarest class has labels"
    np.testing.assert_array_equal(np.sort(np.concatenate([seen for _, seen in folds])), np.arange(13))
    assert all(set(labels[learned]) == {0, 1} for learned, _ in folds)
    assert stratified_folds(np.array([0, 0, 1]), 0) == []


def test_classes_that_lie_apart_need_little_decay_and_ones_that_overlap_need_more() -> None:
    found = []
    for spread in (0.3, 6.0):
        rows, labels = rows_of(30, spread)
        found.append(fit_probe(rows, labels, rows[:0], CLASSES, None, 0).decay)
    assert found[0] < found[1]
    assert set(found) <= set(DECAYS)


def test_pseudo_labels_are_spread_where_neighbours_share_a_class_and_not_where_they_do_not() -> None:
    rows, labels = rows_of(630, 1.6)
    known, unknown = rows[:30], rows[30:]
    grouped = fit_probe(known, labels[:30], unknown, CLASSES, 6e-4, 0)
    mixed = np.random.default_rng(0).normal(size=unknown.shape).astype(np.float32)
    scattered = fit_probe(known, labels[:30], mixed, CLASSES, 6e-4, 0)
    assert grouped.spreading > scattered.spreading
    assert {grouped.spreading, scattered.spreading} <= set(AMOUNTS)


def test_cross_validation_measures_the_confidence_on_every_label() -> None:
    rows, labels = rows_of(330, 2.5)
    check = fit_probe(rows[:30], labels[:30], rows[30:], CLASSES, 6e-4, 0).check
    assert check is not None
    assert (check.images, check.folds) == (30, 5)
    assert "30 labels in 5-fold cross-validation" in str(check)


def clusters(large: float, per_class: int = 10) -> ImageSet:
    """Rows whose classes differ in small numbers; the first number is large in some of them, whatever their class."""
    random = np.random.default_rng(0)
    truth = np.arange(240) % CLASSES
    rows = np.eye(CLASSES, 12)[truth] + 0.3 * np.abs(random.normal(size=(240, 12)))
    rows[:, -3:] += large * random.random((240, 3)) ** 4
    labels = np.where(np.arange(240) < CLASSES * per_class, truth, -1)
    return from_arrays(packed(rows.astype(np.float32)), labels)


def power_for(large: float, square_root: str = "auto", per_class: int = 10) -> tuple[bool, Trainer]:
    settings = preset("features", {"model.encoder": None, "model.backbone": "rows", "model.components": 6})
    made = trainer_of(settings.changed({"model.square_root": square_root}), clusters(large, per_class))
    backbone = made.training_set.backbone
    assert isinstance(backbone, PrincipalComponents)
    return backbone.takes_square_root, made


def test_square_roots_are_taken_where_cross_validation_is_clearly_in_favour() -> None:
    assert [power_for(large)[0] for large in (0.0, 20.0)] == [False, True]
    assert [power_for(large, "always")[0] for large in (0.0, 20.0)] == [True, True]
    assert [power_for(large, "never")[0] for large in (0.0, 20.0)] == [False, False]
    assert not power_for(20.0, per_class=1)[0], "nothing to validate on"


def test_a_user_is_told_when_square_roots_are_learned_from() -> None:
    told = "the square roots of the features are learned from"
    assert [told in power_for(large)[1].introduction() for large in (0.0, 20.0)] == [False, True]


def test_the_choice_is_that_of_logistic_regression_of_scikit_learn() -> None:
    _, trainer = power_for(20.0)
    images, found = trainer.training_set, []
    backbone, folds = images.backbone, stratified_folds(images.labels, 0)
    for square_root in (False, True):
        backbone.fit(images.inputs, square_root)  # type: ignore[call-arg]
        scaled = backbone.scale(images.inputs[: images.labeled])
        rows, losses = scaled.double().numpy(), []
        for decay in DECAYS:
            said = np.zeros((len(rows), CLASSES))
            for learned, seen in folds:
                model = LogisticRegression(C=1 / (decay * len(learned)), max_iter=5000)
                said[seen] = model.fit(rows[learned], images.labels[learned]).predict_proba(rows[seen])
            losses.append(log_loss(images.labels, said))
        found.append(min(losses))
        assert _least_nll(scaled, images.labels, folds) == pytest.approx(found[-1], rel=2e-2)
    assert found[1] < (1 - SQUARE_ROOT_MARGIN) * found[0]


def test_a_class_with_one_label_leaves_nothing_to_validate_on() -> None:
    rows, labels = rows_of(100, 1.0)
    probe = fit_probe(rows[:3], labels[:3], rows[3:], CLASSES, 6e-4, 0)
    assert probe.check is None
    assert probe.weight.isfinite().all()


def test_labels_that_are_held_out_are_not_learned_from() -> None:
    changes = {"model.encoder": tiny().info.name, "curriculum.calibration_holdout": 0.5, "sgld.buffer_size": 64}
    found = []
    for shift in (0, 1):
        trainer = trainer_of(preset("features", changes), blobs(300, unlabeled=False))
        images = trainer.training_set
        assert images.held_out >= 100
        held = images.targets[images.labeled - images.held_out :]
        held.copy_(held.roll(shift, 1))
        next(trainer.work())
        found.append(trainer.state.model.classifier.weight.detach().clone())
    assert torch.equal(*found)


@pytest.mark.parametrize("precision", ["identity", "diagonal", "full"])
def test_the_gaussian_head_takes_means_and_variances(precision: str) -> None:
    head = GaussianHead(2, 2, precision)
    head.set_to(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.25, 4.0]))
    energies = head.class_energies(torch.tensor([[2.0, 2.0]]))
    variances = torch.ones(2) if precision == "identity" else torch.tensor([0.25, 4.0])
    expected = [(1 / variances[0] + 4 / variances[1]) / 2, (4 / variances[0] + 0) / 2]
    torch.testing.assert_close(energies[0], torch.stack(expected))


def imbalanced(shares: tuple[int, ...], spread: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten rows of each class with their labels, and rows without, as many of each class as asked for."""
    rows, labels = rows_of(3000, spread)
    known = np.concatenate([np.flatnonzero(labels == c)[:10] for c in range(CLASSES)])
    rest = np.concatenate([np.flatnonzero(labels == c)[10 : 10 + shares[c]] for c in range(CLASSES)])
    return rows[known], labels[known], rows[rest]


def test_the_class_mix_of_unlabelled_rows_is_estimated_where_it_is_asked_for() -> None:
    known, labels, unknown = imbalanced((400, 80, 20))
    found = fit_probe(known, labels, unknown, CLASSES, 6e-4, 0, "auto").mix
    assert found is not None
    np.testing.assert_allclose(found.shares, [0.8, 0.16, 0.04], atol=0.15)
    assert fit_probe(known, labels, unknown, CLASSES, 6e-4, 0).mix is None
    same = imbalanced((200, 200, 200))
    even = fit_probe(*same, CLASSES, 6e-4, 0, "auto").mix
    assert even is not None
    np.testing.assert_allclose(even.shares, 1 / 3, atol=0.05)


def test_a_mix_that_is_that_of_the_labels_changes_no_bit_of_the_start() -> None:
    known, labels, unknown = imbalanced((50, 50, 50))
    plain = fit_probe(known, labels, unknown, CLASSES, 6e-4, 0)
    mixed = fit_probe(known, labels, unknown, CLASSES, 6e-4, 0, ClassMix.of(np.full(3, 1 / 3), np.full(3, 10)))
    assert torch.equal(plain.weight, mixed.weight)
    assert (plain.spreading, plain.check) == (mixed.spreading, mixed.check)


def test_an_offset_is_not_learned() -> None:
    rows, labels = rows_of(600, 2.0)
    offset = torch.tensor([2.0, 0.0, -2.0])
    targets = F.one_hot(torch.from_numpy(labels), CLASSES).float()
    _, plain = logistic_regression(torch.from_numpy(rows), targets, 0.1)
    _, found = logistic_regression(torch.from_numpy(rows), targets, 0.1, offset=offset)
    torch.testing.assert_close(found + offset, plain, atol=1e-2, rtol=0)


def test_training_on_features_finds_the_class_mix_and_predicts_for_it() -> None:
    data, encoder = blobs(300), tiny().info.name
    few = np.flatnonzero((data.train.labels >= 0) | (np.arange(len(data.train)) % 3 == 0) | (np.arange(270) % 15 == 1))
    images = replace(data, train=data.train.take(few))
    settings = preset("features", {"model.encoder": encoder, "optim.epochs": 1, "curriculum.epochs": 1})
    training = trainer_of(settings, images)
    training.train()
    mix = training.state.progress.class_mix
    assert mix is not None
    assert mix.shares[0] > 0.4
    assert training.state.kept_model().log_mix[0] > 0
