import pytest
import torch

from tests.methods.steps import prepared


def test_it_learns_from_labelled_images_alone() -> None:
    (_, step), (_, other) = prepared("supervised"), prepared("supervised")
    assert step.batch_sizes == {"labeled": 8}
    assert step.names == ("loss", "cross_entropy")
    other.training_set.inputs[other.training_set.labeled :] = 0
    for each in (step, other):
        each.state.set_learning_rate(0.1)
        each()
    assert torch.equal(step.state.model.classifier.weight, other.state.model.classifier.weight)


def test_label_smoothing_spreads_a_share_of_each_target_over_all_classes() -> None:
    _, step = prepared("supervised", **{"optim.label_smoothing": 0.3})
    views = step.terms[0].finish(step, step.terms[0].views(step))
    with torch.no_grad():
        scores = step.state.model(views.inputs[0])[0]
    assert views.targets is not None
    targets = 0.7 * views.targets + 0.3 / 3
    expected = -(targets * scores.log_softmax(1)).sum(1).mean()
    step.generator.manual_seed(3)
    step()
    assert step.sums[1].item() == pytest.approx(expected.item(), rel=1e-4)


def test_sgd_has_nesterov_momentum() -> None:
    training, step = prepared("supervised", **{"optim.optimizer": "sgd", "optim.gradient_clip": 0.0})
    bias = training.state.model.classifier.bias
    training.state.set_learning_rate(0.1)
    moment, expected = torch.zeros(3), bias.detach().clone()
    for _ in range(3):
        step()
        assert bias.grad is not None
        moment = 0.9 * moment + bias.grad
        expected -= 0.1 * (bias.grad + 0.9 * moment)
        torch.testing.assert_close(bias.detach(), expected)


def test_squared_weights_of_the_network_decay_and_its_biases_do_not() -> None:
    decay = {"optim.weight_decay": 0.2, "optim.network_decay": 0.5}
    (_, without), (_, step) = prepared("supervised"), prepared("supervised", **decay)
    classifier = 0.1 * step.state.model.classifier.weight.square().sum()
    weights = [p for name, p in step.state.model.features.named_parameters() if name.endswith("weight")]
    added = classifier + sum(0.25 * weight.square().sum() for weight in weights)
    without()
    step()
    assert (step.sums[0] - without.sums[0]).item() == pytest.approx(added.item(), rel=1e-4)
