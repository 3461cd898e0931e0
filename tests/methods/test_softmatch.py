import numpy as np
import pytest
import torch

from ebpl.methods.softmatch import SoftMatch
from ebpl.models import HybridModel
from ebpl.training.losses import Views
from tests.methods.steps import check_two_processes, fake_step, outputs_of, random_scores, softmax

MODEL: HybridModel = None  # type: ignore[assignment] # the loss is one of scores alone


def test_weights_are_the_papers_gaussian_of_aligned_confidences() -> None:
    term = SoftMatch(momentum=0.9)
    step = fake_step(term)
    p, mean, variance = np.full(4, 0.25), 0.25, 1.0
    for seed in range(5):
        scores = random_scores(20, seed=seed)
        targets = term.targets(step, scores).numpy()
        said = softmax(scores.numpy())
        p = 0.9 * p + 0.1 * said.mean(0)
        aligned = said * 0.25 / p
        confidence = (aligned / aligned.sum(1, keepdims=True)).max(1)
        mean = 0.9 * mean + 0.1 * confidence.mean()
        variance = 0.9 * variance + 0.1 * confidence.var(ddof=1)
        gaussian = np.exp(-((confidence - mean) ** 2) / (2 * variance / 4))
        weights = np.where(confidence < mean, gaussian, 1.0)
        np.testing.assert_allclose(targets, np.eye(4)[said.argmax(1)] * weights[:, None])
    assert step.memory["mean"].item() == pytest.approx(mean)
    assert step.memory["variance"].item() == pytest.approx(variance)


def test_the_weight_falls_with_the_confidence_and_is_whole_above_the_mean() -> None:
    term = SoftMatch(momentum=0.0)
    step = fake_step(term, classes=2)
    scores = torch.tensor([[4.0, 0.0], [0.0, 4.0], [1.0, 0.0], [0.0, 1.0], [0.2, 0.0], [0.0, 0.2]]).double()
    weights = term.targets(step, scores).sum(1).tolist()
    assert weights[:2] == [1, 1]
    assert weights == sorted(weights, reverse=True)
    assert 0 < weights[-1] < weights[2] < 1


def test_uniform_alignment_raises_the_weight_of_classes_that_are_predicted_seldom() -> None:
    term = SoftMatch(momentum=0.0)
    step = fake_step(term, classes=2)
    scores = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]]).double()
    weights = term.targets(step, scores).sum(1)
    assert weights[-1] == 1
    assert weights[0] < 1


def test_the_loss_is_the_weighted_cross_entropy_with_the_class_before_alignment() -> None:
    weak, strong, term = random_scores(12), random_scores(12, seed=1), SoftMatch(0.5, momentum=0.5)
    targets = term.targets(fake_step(term), weak)
    found = term.loss(MODEL, outputs_of(strong), Views(targets=targets))
    label, weights = weak.argmax(1).numpy(), targets.sum(1).numpy()
    expected = -(weights * np.log(softmax(strong.numpy())[np.arange(12), label])).mean()
    assert found.value.item() == pytest.approx(0.5 * expected)
    assert found.logs["mask_rate"].item() == pytest.approx(weights.mean())


def test_two_processes_have_the_weights_of_one() -> None:
    check_two_processes(SoftMatch(momentum=0.5), random_scores(20))
