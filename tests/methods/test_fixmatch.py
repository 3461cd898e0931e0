import numpy as np
import pytest
import torch

from ebpl.config.presets import preset
from ebpl.methods.fixmatch import FixMatch
from ebpl.models import HybridModel
from ebpl.training.losses import Views
from ebpl.training.relabel import lr_factor
from tests.methods.steps import fake_step, outputs_of, prepared, random_scores, softmax

MODEL: HybridModel = None  # type: ignore[assignment] # the loss is one of scores alone


def test_the_loss_is_the_cross_entropy_with_confident_classes_over_the_whole_batch() -> None:
    weak, strong, term = random_scores(12), random_scores(12, seed=1), FixMatch(0.5, 0.8)
    found = term.loss(MODEL, outputs_of(strong), Views(targets=term.targets(fake_step(term), weak)))
    guessed, said = softmax(weak.numpy()), softmax(strong.numpy())
    kept = guessed.max(1) >= 0.8
    assert 0 < kept.sum() < 12
    expected = -(kept * np.log(said[np.arange(12), guessed.argmax(1)])).sum() / 12
    assert found.logs["consistency"].item() == pytest.approx(expected)
    assert found.value.item() == pytest.approx(0.5 * expected)
    assert found.logs["mask_rate"].item() == pytest.approx(kept.mean())


def test_pseudo_labels_are_of_the_current_weights_and_the_average_predicts() -> None:
    training, step = prepared("fixmatch")
    assert training.state.average is not None
    with torch.no_grad():
        for weight in training.state.average.parameters():
            weight.zero_()
    images = step.training_set.take(torch.arange(5))
    expected = training.state.model(images)[0]
    assert training.state.predictor is training.state.average
    torch.testing.assert_close(step.teacher_scores(images), expected.detach())
    assert not step.teacher_scores(images).requires_grad


def test_strong_views_learn_and_weak_views_do_not() -> None:
    _, step = prepared("fixmatch", **{"unlabeled.threshold": 0.0})
    assert step.batch_sizes == {"labeled": 8, "unlabeled": 16}
    sizes: list[tuple[int, bool]] = []
    step.state.model.features.register_forward_hook(
        lambda _, inputs, output: sizes.append((len(inputs[0]), output.requires_grad))
    )
    step()
    assert sizes == [(16, False), (8 + 16, True)]


def test_the_preset_has_the_papers_schedule() -> None:
    settings = preset("fixmatch")
    assert settings.optim.epochs * (settings.optim.updates_per_epoch or 0) == 2**20
    assert (settings.model.network, settings.optim.optimizer, settings.optim.learning_rate) == ("WRN-28-2", "sgd", 0.03)
    falls = [lr_factor(settings, at / 10, 1) for at in range(11)]
    assert falls == pytest.approx([np.cos(7 * np.pi * at / 160) for at in range(11)])
