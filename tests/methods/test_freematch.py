import numpy as np
import pytest
import torch

from ebpl.methods.freematch import FreeMatch, fairness
from ebpl.models import HybridModel
from ebpl.training.losses import Views
from tests.methods.steps import check_two_processes, fake_step, outputs_of, prepared, random_scores, softmax

MODEL: HybridModel = None  # type: ignore[assignment] # the loss is one of scores alone


def test_running_statistics_and_thresholds_are_those_of_the_paper() -> None:
    term = FreeMatch(momentum=0.9)
    step = fake_step(term)
    tau, p, h = 0.25, np.full(4, 0.25), np.full(4, 0.25)
    for seed in range(5):
        scores = random_scores(20, seed=seed)
        targets = term.targets(step, scores).numpy()
        said = softmax(scores.numpy())
        confidence, label = said.max(1), said.argmax(1)
        tau = 0.9 * tau + 0.1 * confidence.mean()
        p = 0.9 * p + 0.1 * said.mean(0)
        h = 0.9 * h + 0.1 * np.bincount(label, minlength=4) / 20
        expected = np.eye(4)[label] * (confidence >= tau * (p / p.max())[label])[:, None]
        np.testing.assert_array_equal(targets, expected)
    np.testing.assert_allclose(step.memory["tau"], tau)
    np.testing.assert_allclose(step.memory["p"], p)
    np.testing.assert_allclose(step.memory["h"], h)


def test_thresholds_rise_as_the_network_becomes_confident_and_are_lower_for_rare_classes() -> None:
    term = FreeMatch(momentum=0.5)
    step = fake_step(term, classes=2)
    scores = torch.tensor([[3.0, 0.0]] * 9 + [[0.0, 0.5]], dtype=torch.float64)
    seen = [step.memory["tau"].item()]
    for _ in range(6):
        targets = term.targets(step, scores)
        seen.append(step.memory["tau"].item())
    assert seen == sorted(seen)
    assert seen[0] == pytest.approx(0.5)
    assert seen[-1] > 0.85
    assert targets[-1].tolist() == [0, 1], "0.62 is above the threshold of the rare class"
    likely = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    assert term.targets(step, likely).sum() == 0, "and below that of the frequent one"


def test_fairness_is_minus_the_cross_entropy_of_balanced_means() -> None:
    scores = random_scores(30, seed=2)
    mask = (torch.arange(30) % 3 > 0).double()
    expected = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    said = softmax(scores.numpy())[mask.numpy() > 0]
    often = np.bincount(said.argmax(1), minlength=4) / len(said)
    assert (often > 0).all()
    balanced = said.mean(0) / often
    wanted = (expected.numpy() * np.log(balanced / balanced.sum())).sum()
    assert fairness(scores.softmax(1), mask, expected).item() == pytest.approx(wanted)


def test_fairness_without_images_above_the_threshold_is_zero_and_has_no_gradient() -> None:
    scores = random_scores(6).requires_grad_()
    value = fairness(scores.softmax(1), torch.zeros(6), torch.full((4,), 0.25))
    (gradient,) = torch.autograd.grad(value, scores)
    assert value == 0
    assert (gradient == 0).all()


def test_a_class_that_is_never_predicted_leaves_fairness_and_its_gradient_finite() -> None:
    scores = torch.tensor([[4.0, 0.0, -40.0]] * 4, requires_grad=True)
    value = fairness(scores.softmax(1), torch.ones(4), torch.full((3,), 1 / 3))
    (gradient,) = torch.autograd.grad(value, scores)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_the_loss_has_fairness_at_the_papers_weight() -> None:
    term, strong = FreeMatch(), random_scores(10, seed=4)
    targets = torch.eye(4, dtype=torch.float64)[torch.arange(10) % 4]
    expected = torch.full((4,), 0.25, dtype=torch.float64)
    views = Views(targets=targets, more={"expected": expected, "threshold": torch.tensor(0.5)})
    found = term.loss(MODEL, outputs_of(strong), views)
    total = found.logs["consistency"] + 0.01 * fairness(strong.softmax(1), torch.ones(10), expected)
    torch.testing.assert_close(found.value, total)


def test_two_processes_have_the_thresholds_of_one() -> None:
    check_two_processes(FreeMatch(momentum=0.5), random_scores(20))


def test_a_step_changes_the_memory_in_place() -> None:
    training, step = prepared("freematch")
    tau = training.state.memory["tau"]
    before = tau.item()
    step()
    assert training.state.tensors()["memory.tau"] is tau
    assert tau.item() != before
    assert step.sums[step.names.index("threshold")].item() == pytest.approx(tau.item())
