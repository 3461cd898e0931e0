import numpy as np
import pytest
import torch

from ebpl.methods.pseudo_label import PseudoLabel
from ebpl.models import HybridModel
from ebpl.training.losses import Views
from tests.methods.steps import outputs_of, prepared, random_scores, softmax

MODEL: HybridModel = None  # type: ignore[assignment] # the loss is one of scores alone


def test_the_loss_is_minus_the_log_probability_of_the_predicted_class() -> None:
    scores = random_scores(9)
    found = PseudoLabel().loss(MODEL, outputs_of(scores), Views(more={"weight": torch.tensor(1.5)}))
    expected = -np.log(softmax(scores.numpy()).max(1)).mean()
    assert found.logs["unlabeled_loss"].item() == pytest.approx(expected)
    assert found.value.item() == pytest.approx(1.5 * expected)


def test_the_predicted_class_is_a_target_and_not_learned_through() -> None:
    scores = random_scores(5).requires_grad_()
    found = PseudoLabel().loss(MODEL, outputs_of(scores), Views(more={"weight": torch.tensor(1.0)}))
    (gradient,) = torch.autograd.grad(found.value, scores)
    values = scores.detach().numpy()
    expected = (softmax(values) - np.eye(4)[values.argmax(1)]) / 5
    torch.testing.assert_close(gradient, torch.from_numpy(expected))


def test_the_weight_is_zero_at_first_rises_in_a_line_and_stays() -> None:
    _, step = prepared("pseudo-label")
    (term,) = (term for term in step.terms if isinstance(term, PseudoLabel))
    weights = []
    for fraction in (0.0, 0.1, 0.35, 0.6, 1.0):
        step.prepare(0.1, fraction)
        weights.append(term.views(step).more["weight"].item())
    assert weights == pytest.approx([0, 0, 1.5, 3, 3], abs=1e-6)


def test_it_draws_unlabelled_images_at_its_ratio_and_learns_from_them_once_the_weight_rises() -> None:
    def changed(fraction: float) -> torch.Tensor:
        training, step = prepared("pseudo-label")
        assert step.batch_sizes == {"labeled": 8, "unlabeled": 16}
        step.prepare(0.1, fraction)
        training.state.set_learning_rate(0.01)
        step()
        return training.state.model.classifier.weight.detach().clone()

    assert torch.equal(changed(0.0), changed(0.1))
    assert not torch.equal(changed(0.0), changed(0.5))
