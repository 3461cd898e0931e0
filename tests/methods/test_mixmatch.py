import numpy as np
import pytest
import torch
from scipy import stats

from ebpl.methods.mixmatch import Guesses, MixedLabels, mixing_shares
from ebpl.models import HybridModel
from ebpl.training.losses import Views
from tests.methods.steps import outputs_of, prepared, random_scores, softmax

MODEL: HybridModel = None  # type: ignore[assignment] # the loss is one of scores alone


def test_the_loss_is_the_mean_squared_distance_of_probabilities() -> None:
    scores, targets = random_scores(7), random_scores(7, seed=1).softmax(1)
    views = Views(targets=targets, more={"weight": torch.tensor(75.0)})
    found = Guesses().loss(MODEL, outputs_of(scores), views)
    expected = ((softmax(scores.numpy()) - targets.numpy()) ** 2).sum() / (7 * 4)
    assert found.logs["unlabeled_loss"].item() == pytest.approx(expected)
    assert found.value.item() == pytest.approx(75 * expected)


def test_a_guess_is_the_sharpened_mean_over_two_views_and_shared_by_them() -> None:
    _, step = prepared("mixmatch", **{"data.augment": "shift"})
    (term,) = (term for term in step.terms if isinstance(term, Guesses))
    views, targets = term.guessed(step)
    assert len(views) == len(targets) == 32
    assert not torch.equal(views[:16], views[16:])
    said = [softmax(step.teacher_scores(part).double().numpy()) for part in (views[:16], views[16:])]
    mean = (said[0] + said[1]) / 2
    expected = mean**2 / (mean**2).sum(1, keepdims=True)
    np.testing.assert_allclose(targets, np.concatenate([expected, expected]), rtol=1e-4)


def test_shares_are_those_of_a_beta_distribution_and_never_more_than_a_half() -> None:
    _, step = prepared("mixmatch")
    shares = mixing_shares(20_000, step).numpy()
    assert 0 <= shares.min() <= shares.max() <= 0.5
    assert stats.kstest(shares, lambda x: 2 * stats.beta(0.75, 0.75).cdf(x)).pvalue > 0.01


def test_images_and_targets_are_mixed_alike_over_labelled_and_unlabelled_ones() -> None:
    _, step = prepared("mixmatch", **{"data.augment": "none"})
    mixed, guesses = step.terms[0], step.terms[-1]
    assert isinstance(mixed, MixedLabels)
    assert isinstance(guesses, Guesses)
    state = step.generator.get_state()
    labeled, unlabeled = mixed.views(step), guesses.views(step)
    assert labeled.targets is not None
    assert unlabeled.targets is not None
    step.generator.set_state(state)
    others, guessed = guesses.guessed(step)
    index = step.positions["labeled"]
    images = torch.cat([step.training_set.take(index), others])
    targets = torch.cat([step.training_set.targets[index], guessed])
    share, order = mixing_shares(40, step), step.random(40).argsort()
    torch.testing.assert_close(
        torch.cat([labeled.inputs[0], unlabeled.inputs[0]]).flatten(1),
        (1 - share)[:, None] * images.flatten(1) + share[:, None] * images[order].flatten(1),
    )
    torch.testing.assert_close(
        torch.cat([labeled.targets, unlabeled.targets]),
        (1 - share)[:, None] * targets + share[:, None] * targets[order],
    )


def test_the_weight_rises_over_the_first_sixty_fourth_of_training() -> None:
    _, step = prepared("mixmatch")
    mixed, guesses = step.terms[0], step.terms[-1]
    weights = []
    for fraction in (0.0, 1 / 128, 1 / 64, 1.0):
        step.prepare(0.1, fraction)
        mixed.views(step)
        weights.append(guesses.finish(step, guesses.views(step)).more["weight"].item())
    assert weights == pytest.approx([0, 37.5, 75, 75])


def test_the_class_mix_is_mixed_like_the_images_and_taken_from_the_scores() -> None:
    _, step = prepared("mixmatch")
    step.state.model.set_mix([1.0, 0.0, -1.0])
    mixed, guesses = step.terms[0], step.terms[-1]
    labeled, unlabeled = mixed.views(step), guesses.finish(step, guesses.views(step))
    assert labeled.log_mix is not None
    assert unlabeled.log_mix is not None
    assert unlabeled.targets is not None
    mix = step.state.model.log_mix
    for views, own in ((labeled, 1.0), (unlabeled, 0.0)):
        assert views.log_mix is not None
        share = views.log_mix[:, 0]
        torch.testing.assert_close(views.log_mix, share[:, None] * mix)
        assert ((share - own).abs() <= 0.5).all()
        assert (share != own).any()
    scores = random_scores(len(unlabeled.targets), 3).float()
    found = guesses.loss(MODEL, outputs_of(scores), unlabeled).logs["unlabeled_loss"]
    expected = ((scores - unlabeled.log_mix).softmax(1) - unlabeled.targets).square().mean()
    torch.testing.assert_close(found, expected)
