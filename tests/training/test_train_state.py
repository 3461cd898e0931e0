import torch

from ebpl.models import Architecture
from ebpl.training.train_state import Learner, refresh, sampling_copy
from tests.helpers import quick

CPU = torch.device("cpu")


def learner(**changes: object) -> Learner:
    made = Learner(Architecture(10, 1, 1, 3, "diagonal"), (1, 8, 8), quick(**changes), CPU)
    made.initialise("start")
    made.restart_chains("start")
    return made


def one_step(made: Learner) -> None:
    loss = made.model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))[0].square().sum()
    loss.backward()
    made.optimizer.step()
    made.optimizer.zero_grad()


def test_a_restored_state_trains_on_as_if_nothing_had_happened() -> None:
    first, second = learner(), learner()
    one_step(first)
    saved = first.state()
    one_step(first)
    second.restore(saved)
    one_step(second)
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def test_a_state_is_a_copy() -> None:
    made = learner()
    saved = made.state()
    before = {name: tensor.clone() for name, tensor in saved["tensors"].items()}
    one_step(made)
    made.restart_chains("again")
    assert all(torch.equal(before[name], tensor) for name, tensor in saved["tensors"].items())
    assert not torch.equal(made.tensors()["buffer"], saved["tensors"]["buffer"])


def test_initialising_again_forgets_the_optimiser_and_the_average() -> None:
    made = learner()
    one_step(made)
    made.next_average_weight()
    made.initialise("start")
    fresh = learner()
    for name, tensor in made.tensors().items():
        assert torch.equal(tensor, fresh.tensors()[name]), name
    assert made.averaged_updates == 0


def test_the_average_follows_closely_at_first_and_slowly_later() -> None:
    made = learner(weight_average=0.99)
    weights = [made.next_average_weight() for _ in range(5000)]
    assert weights[0] > 0.8
    assert abs(weights[-1] - 0.01) < 1e-9
    assert weights == sorted(weights, reverse=True)


def test_without_an_average_the_model_itself_predicts() -> None:
    made = learner(weight_average=0.0)
    assert made.predictor is made.model
    assert not [name for name in made.tensors() if name.startswith("average")]


def test_the_sampling_copy_follows_the_model_and_takes_no_gradient() -> None:
    made = learner()
    twin = sampling_copy(made.model, torch.bfloat16)
    one_step(made)
    refresh(twin, made.model)
    assert twin.features.stem.weight.dtype == torch.bfloat16
    assert twin.classifier.weight.dtype == torch.float32
    torch.testing.assert_close(twin.features.stem.weight.float(), made.model.features.stem.weight, atol=0.01, rtol=0.01)
    assert not any(p.requires_grad for p in twin.parameters())
