import torch

from benchmarks.reference import Reference
from ebpl.config import Settings
from ebpl.models import Architecture
from ebpl.sampling import Langevin
from ebpl.training.losses import objective

CPU = torch.device("cpu")


def made(**changes: object) -> Reference:
    settings: Settings = Settings(sgld__steps=4, batch_size=6, sgld__chains=6, sgld__buffer_size=40, **changes)
    numbers = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (30, 3, 12, 12), generator=numbers, dtype=torch.uint8)
    return Reference(Architecture(10, 1, 3, 5, "diagonal"), images, torch.eye(5)[torch.arange(30) % 5], settings, CPU)


def batch(seed: int) -> torch.Tensor:
    return torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_its_loss_and_gradient_are_those_of_the_objective() -> None:
    reference = made(coupling_weight=0.1, density_weight=0.7)
    with torch.no_grad():
        reference.model.gaussian.means.add_(0.1)  # so that the heads disagree and the coupling counts
    parts = (batch(0), torch.softmax(torch.randn(6, 5), 1), batch(1), batch(2))
    parameters = list(reference.model.parameters())
    theirs = reference.loss(*parts)
    ours = objective(reference.model, *parts, coupling_weight=0.1, density_weight=0.7).loss
    torch.testing.assert_close(theirs, ours)
    for one, other in zip(torch.autograd.grad(theirs, parameters), torch.autograd.grad(ours, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_its_sampling_without_noise_ends_where_ours_does() -> None:
    reference = made(sgld_noise=0.0, sgld_step_size=0.5)
    ours = Langevin(4, 0.5, 0.0)(lambda x: reference.model(x)[1], batch(3), torch.Generator())
    theirs = reference.sample(batch(3))
    assert not torch.equal(theirs, batch(3))
    torch.testing.assert_close(theirs, ours)


def test_a_step_changes_weights_and_buffer_and_tells_the_loss() -> None:
    reference = made()
    weight, buffer = reference.model.features.stem.weight.detach().clone(), reference.buffer.clone()
    loss = reference()
    assert isinstance(loss, float)
    assert not torch.equal(weight, reference.model.features.stem.weight)
    assert 1 <= (buffer != reference.buffer).flatten(1).any(1).sum() <= 6


def test_the_step_leaves_no_gradient_of_the_sampling_in_the_weights() -> None:
    reference = made()
    reference.sample(batch(4))
    assert all(parameter.grad is None for parameter in reference.model.parameters())
