from dataclasses import replace

import pytest
import torch

from ebpl.kernels import FastNetwork
from ebpl.models import Architecture
from ebpl.training.train_state import Learner, sampling_copy
from ebpl.training.train_step import TERMS, Update, runner
from ebpl.training.training_set import Pool
from tests.helpers import quick

CPU = torch.device("cpu")


def made(precision: str | None = "diagonal", **changes: object) -> Update:
    settings = quick(batch_size=8, sgld__chains=8, **changes)
    learner = Learner(Architecture(10, 1, 1, 3, precision), (1, 8, 8), settings, CPU)
    learner.initialise("start")
    learner.restart_chains("start")
    numbers = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 8, 8), generator=numbers, dtype=torch.uint8)
    targets = torch.eye(3)[torch.arange(40) % 3]
    update = Update(learner, Pool(images, targets), settings, "none", torch.float32)
    update.generator.manual_seed(1)
    update.classified.copy_(torch.arange(8))
    update.everything.copy_(torch.arange(20, 28))
    return update


def test_an_update_changes_the_weights_the_average_and_some_chains() -> None:
    update = made()
    before = update.learner.state()["tensors"]
    update.average_weight.fill_(0.5)
    update()
    after = update.learner.tensors()
    assert not torch.equal(before["model.features.stem.weight"], after["model.features.stem.weight"])
    middle = (before["model.features.stem.weight"] + after["model.features.stem.weight"]) / 2
    torch.testing.assert_close(after["average.features.stem.weight"], middle)
    changed = (before["buffer"] != after["buffer"]).flatten(1).any(1).sum()
    assert changed == 8


def test_the_same_random_numbers_give_the_same_update() -> None:
    first, second = made(), made()
    for update in (first, second):
        runner(update)()
    for name, tensor in first.learner.tensors().items():
        assert torch.equal(tensor, second.learner.tensors()[name]), name


def distance(one: Update, other: Update) -> float:
    """How far apart the first moments, which are sums of gradients, of two trainings are."""
    first, second = (
        torch.cat([tensor.flatten() for name, tensor in update.learner.tensors().items() if name.endswith("exp_avg")])
        for update in (one, other)
    )
    return float((first - second).norm() / second.norm())


def test_the_passes_by_hand_give_the_updates_numbers() -> None:
    plain, fast = made(), made()
    fast.fast = FastNetwork(fast.learner.model.features, torch.float32)
    for update in (plain, fast):
        for _ in range(3):
            update()
    torch.testing.assert_close(fast.sums, plain.sums, rtol=1e-3, atol=1e-4)
    assert distance(fast, plain) < 0.01


def test_the_passes_by_hand_are_as_exact_in_bfloat16_as_autograd() -> None:
    exact, plain, fast = made(), made(), made()
    for update in (plain, fast):
        update.dtype = torch.bfloat16
        update.sampler = sampling_copy(update.learner.model, torch.bfloat16)
    fast.fast = FastNetwork(fast.learner.model.features, torch.bfloat16)
    for update in (exact, plain, fast):
        for _ in range(3):
            update()
    torch.testing.assert_close(fast.sums, exact.sums, rtol=2e-2, atol=2e-2)
    assert 0 < distance(fast, exact) < 1.5 * distance(plain, exact)


def test_the_judge_of_views_goes_by_hand_too() -> None:
    settings = {"consistency": 3.0, "consistency_batch": 16, "consistency_sharpening": 1.0, "gate": 0.0}
    plain, fast = made(**settings), made(**settings)
    assert fast.learner.average is not None
    fast.fast = FastNetwork(fast.learner.model.features, torch.float32)
    fast.fast_judge = FastNetwork(fast.learner.average.features, torch.float32)
    for update in (plain, fast):
        update.compared.copy_(torch.arange(24, 40))
        for _ in range(3):
            update.average_weight.fill_(0.3)
            update()
    torch.testing.assert_close(fast.sums, plain.sums, rtol=1e-3, atol=1e-4)
    assert distance(fast, plain) < 0.01


def test_a_classifier_alone_is_trained_by_hand_too() -> None:
    plain, fast = made(precision=None), made(precision=None)
    fast.fast = FastNetwork(fast.learner.model.features, torch.float32)
    for update in (plain, fast):
        update()
    torch.testing.assert_close(fast.sums, plain.sums)
    assert distance(fast, plain) < 1e-3


def test_repeated_updates_learn_the_classes() -> None:
    update = made(precision=None, learning_rate=1e-2)
    update()
    first = update.sums[TERMS.index("cross_entropy")].item()
    for _ in range(60):
        update.clear_sums()
        update()
    assert update.sums[TERMS.index("cross_entropy")] < first / 5


def test_the_sums_hold_the_widest_gap_and_keep_nan() -> None:
    update = made()
    update()
    energies = update.sums[TERMS.index("energy_images")] - update.sums[TERMS.index("energy_samples")]
    torch.testing.assert_close(update.widest_gap, energies.abs())
    with torch.no_grad():
        update.learner.model.features.stem.weight.fill_(float("nan"))
    update()
    assert update.widest_gap.isnan()
    update.clear_sums()
    assert update.widest_gap == 0


def test_a_classifier_alone_is_trained_without_sampling() -> None:
    update = made(precision=None)
    update()
    assert update.learner.buffer is None
    assert update.sums[TERMS.index("energy_samples")] == 0
    assert update.sums[TERMS.index("loss")] == update.sums[TERMS.index("cross_entropy")]


def test_strong_views_must_agree_with_confident_predictions_alone() -> None:
    def asked(**changes: object) -> Update:
        update = made(consistency=1.0, consistency_batch=16, **changes)
        update.compared.copy_(torch.arange(24, 40))
        update()
        return update

    everyone, nobody = asked(gate=0.0), asked(gate=1.0)
    assert everyone.sums[TERMS.index("asked")] == 1
    assert everyone.sums[TERMS.index("consistency")] > 0
    assert nobody.sums[TERMS.index("asked")] == nobody.sums[TERMS.index("consistency")] == 0
    _, agreed = everyone._compared()
    assert agreed.max(1).values.tolist() == agreed.sum(1).tolist() == [1.0] * 16
    assert agreed.argmax(1).tolist() == averaged_posterior(everyone).argmax(1).tolist()


def averaged_posterior(update: Update) -> torch.Tensor:
    """What the averaged weights say of the compared images, whose weak views are the images themselves here."""
    assert update.learner.average is not None
    with torch.no_grad():
        return update.learner.average(update.pool.take(update.compared))[0].softmax(1)


def test_strong_views_may_be_asked_for_the_averaged_posterior_at_a_temperature() -> None:
    update = made(consistency=1.0, consistency_batch=16, gate=0.0, consistency_sharpening=1.0)
    update.compared.copy_(torch.arange(24, 40))
    for _ in range(3):
        update()  # so that weights and their average are not the same
    _, agreed = update._compared()
    posterior = averaged_posterior(update)
    torch.testing.assert_close(agreed, posterior)
    assert not torch.allclose(agreed, update.learner.model(update.pool.take(update.compared))[0].softmax(1))

    update.settings = update.settings.changed(consistency__temperature=0.5)
    _, sharper = update._compared()
    torch.testing.assert_close(sharper, posterior.square() / posterior.square().sum(1, keepdim=True))

    middle = posterior.max(1).values.median().item()
    update.settings = update.settings.changed(consistency__confidence_threshold=middle)
    _, some = update._compared()
    assert some.sum(1).bool().tolist() == (posterior.max(1).values >= middle).tolist()


def test_agreement_teaches_in_bfloat16_too() -> None:
    """Weights that were cast while no gradient was wanted must not be reused where one is."""
    update = made(consistency=1.0, consistency_batch=16, gate=0.0)
    update.compared.copy_(torch.arange(24, 40))
    update.dtype = torch.bfloat16
    update.sampler = sampling_copy(update.learner.model, torch.bfloat16)
    update()
    assert all(parameter.grad is not None for parameter in update.learner.model.parameters())


def test_mixed_images_have_the_mixed_labels_of_the_same_two() -> None:
    update = made(mix=1.0)
    plain, targets = update.pool.take(update.classified), update.pool.targets[update.classified]
    views, mixed = update._classified()
    for i, (view, target) in enumerate(zip(views, mixed, strict=True)):
        other = 7 - i
        between = (plain[other] - plain[i]).flatten()
        share = ((view - plain[i]).flatten() @ between / between.square().sum()).item()
        assert 0 < share < 0.5  # more of the image itself
        torch.testing.assert_close(view, torch.lerp(plain[i], plain[other], share))
        torch.testing.assert_close(target, torch.lerp(targets[i], targets[other], share))


def test_images_with_pseudo_labels_may_be_left_unmixed() -> None:
    update = made(mix=1.0, mixed="labeled")
    update.pool = replace(update.pool, labeled=5)
    plain, targets = update.pool.take(update.classified), update.pool.targets[update.classified]
    views, mixed = update._classified()
    assert (views != plain).flatten(1).any(1).tolist() == [True] * 5 + [False] * 3
    torch.testing.assert_close(mixed[5:], targets[5:], rtol=0, atol=0)


def test_a_share_of_the_batch_is_mixed_or_seen_strongly() -> None:
    for setting in ("mix", "strong"):
        changed = [0.0, 0.0]
        for i, share in enumerate((0.25, 0.75)):
            update = made(**{setting: share})
            plain = update.pool.take(update.classified)
            for _ in range(100):
                views, _ = update._classified()
                changed[i] += (views != plain).flatten(1).any(1).float().mean().item() / 100
        assert changed == pytest.approx([0.25, 0.75], abs=0.06), setting
