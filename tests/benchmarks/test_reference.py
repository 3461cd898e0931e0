from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.reference import Reference
from ebpl.config import Settings
from ebpl.models import Architecture
from ebpl.sampling import Langevin
from ebpl.training.losses import Coupling, CrossEntropy, Density, Outputs, Views

CPU = torch.device("cpu")


def made(**changes: object) -> Reference:
    sizes = {"sgld.steps": 4, "sgld.chains": 6, "sgld.buffer_size": 40}
    settings = Settings().changed({**sizes, **changes}, depth=10, width=1, batch_size=6)
    numbers = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (30, 3, 12, 12), generator=numbers, dtype=torch.uint8)
    architecture = Architecture.of(settings.model, (3, 12, 12), 5, density=True)
    return Reference(architecture, images, torch.eye(5)[torch.arange(30) % 5], settings, CPU)


def batch(seed: int) -> torch.Tensor:
    return torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_its_loss_and_gradient_are_those_of_the_loss_terms() -> None:
    reference = made(energy__coupling_weight=0.1, energy__weight=0.7)
    model = reference.model
    assert model.gaussian is not None
    with torch.no_grad():
        model.gaussian.means.add_(0.1)  # so that the heads disagree and the coupling counts
    parts = (batch(0), torch.softmax(torch.randn(6, 5), 1), batch(1), batch(2))
    parameters = list(reference.model.parameters())
    theirs = reference.loss(*parts)
    classified, images, samples = (Outputs(*model(part)) for part in (parts[0], parts[2], parts[3]))
    terms = [
        CrossEntropy().loss(model, [classified], Views([parts[0]], parts[1])),
        Density(0.7).loss(model, [images, samples], Views()),
        Coupling(0.1).loss(model, [], Views()),
    ]
    ours = sum((term.value for term in terms), torch.zeros(()))
    torch.testing.assert_close(theirs, ours)
    for one, other in zip(torch.autograd.grad(theirs, parameters), torch.autograd.grad(ours, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_its_sampling_without_noise_ends_where_ours_does() -> None:
    reference = made(sgld__noise=0.0, sgld__step_size=0.5)
    ours = Langevin(4, 0.5, 0.0)(lambda x: reference.model(x)[1], batch(3), torch.Generator())
    theirs = reference.sample(batch(3))
    assert not torch.equal(theirs, batch(3))
    torch.testing.assert_close(theirs, ours)


class Calls(TorchDispatchMode):
    """Counts the operations that are started."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **kwargs or {})


def test_its_sampling_starts_no_more_operations_than_that_of_the_public_code() -> None:
    reference = made()
    model = reference.model

    def public(x: torch.Tensor) -> torch.Tensor:
        """A step up the class scores' logsumexp, as JEM's code takes it."""
        x = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(model.classifier(model.features(x)).logsumexp(1).sum(), [x])
        x.data += gradient + 0.01 * torch.randn_like(x)
        return x.detach()

    with Calls() as theirs:
        public(batch(3))
    with Calls() as ours:
        reference.sample(batch(3))
    assert ours.count <= 4 * theirs.count  # in four steps


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
