import torch

from ebpl.fast.network import FastNetwork
from ebpl.learning.learner import Learner, sampling_copy
from ebpl.learning.update import TERMS, Pool, Update, runner
from ebpl.model.hybrid import Architecture
from tests.helpers import quick

CPU = torch.device("cpu")


def made(precision: str | None = "diagonal", **changes: object) -> Update:
    settings = quick(batch_size=8, chains=8, **changes)
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
