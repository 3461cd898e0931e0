import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ebpl.models import Architecture, GaussianHead, HybridModel
from ebpl.sampling import Langevin
from ebpl.training.losses import objective


class TinyModel(nn.Module):
    """A hybrid model on single numbers, so that its density can be normalised numerically."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.gaussian = GaussianHead(3, 2, "diagonal").double()
        self.classifier = nn.Linear(3, 2).double()
        with torch.no_grad():
            self.gaussian.means.normal_()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.features(x)
        # the quadratic term makes the density integrable over the whole line
        return self.classifier(features), self.gaussian.energy(features) + 0.5 * x[:, 0] ** 2

    def coupling(self) -> torch.Tensor:
        return self.gaussian.coupling(self.classifier.weight, self.classifier.bias)


def gradients(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def exact_samples(model: TinyModel, grid: torch.Tensor) -> torch.Tensor:
    """Samples from the model's own density by the inverse of its distribution function on a grid."""
    density = torch.softmax(-model(grid)[1].detach(), 0)
    uniform = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    return grid[torch.searchsorted(density.cumsum(0), uniform).clamp(max=len(grid) - 1)]


def langevin_samples(model: TinyModel, grid: torch.Tensor) -> torch.Tensor:
    step = 0.02
    start = torch.randn(50_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Langevin(600, step, math.sqrt(2 * step))(lambda x: model(x)[1], start, torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("samples_of", "tolerance"), [(exact_samples, 1e-2), (langevin_samples, 5e-2)])
def test_density_gradient_is_the_exact_gradient_of_the_normalised_log_likelihood(samples_of, tolerance) -> None:
    model = TinyModel()
    grid = torch.linspace(-9, 9, 6001, dtype=torch.float64)[:, None]
    data = torch.tensor([[-1.2], [0.3], [0.9], [2.0]], dtype=torch.float64)

    # exact: -log p(x) = E(x) + log Z with Z as a sum over the grid
    log_z = torch.logsumexp(-model(grid)[1], 0) + torch.log(grid[1, 0] - grid[0, 0])
    exact = gradients(model(data)[1].mean() + log_z, model)

    targets = torch.full((1, 2), 0.5, dtype=torch.float64)
    terms = objective(model, data[:1], targets, data, samples_of(model, grid), coupling_weight=0.0)
    ours = gradients(terms.loss - terms.cross_entropy, model)

    assert exact.norm() > 0.1
    assert (ours - exact).norm() / exact.norm() < tolerance


def network() -> HybridModel:
    return Architecture(10, 1, 1, 3, "diagonal").build().initialise(torch.Generator().manual_seed(0))


def test_the_loss_is_the_sum_of_its_terms() -> None:
    model = network()
    with torch.no_grad():
        model.classifier.weight.add_(0.1)
    x, y, z = (torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (4, 5, 6))
    targets = torch.softmax(torch.randn(4, 3), 1)
    terms = objective(
        model, x, targets, y, z, density_weight=0.5, coupling_weight=0.01, energy_penalty=0.1, energy_center=0.7
    )
    energies = model(y)[1], model(z)[1]
    expected = (
        F.cross_entropy(model(x)[0], targets)
        + 0.5 * (energies[0].mean() - energies[1].mean())
        + 0.01 * model.coupling()
        + 0.1 * ((energies[0] - 0.7).square().mean() + (energies[1] - 0.7).square().mean())
    )
    torch.testing.assert_close(terms.loss, expected)
    assert terms.coupling > 0


def test_soft_targets_that_are_one_hot_give_the_usual_cross_entropy() -> None:
    model = network()
    x, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 2, 1, 1, 0])
    terms = objective(model, x, F.one_hot(labels, 3).float())
    torch.testing.assert_close(terms.loss, F.cross_entropy(model(x)[0], labels))


@pytest.mark.parametrize("precision", ["identity", "diagonal", "full"])
def test_every_parameter_learns(precision: str) -> None:
    model = Architecture(10, 1, 1, 3, precision).build().initialise(torch.Generator().manual_seed(0))
    x = torch.randn(4, 1, 8, 8)
    objective(model, x, torch.full((4, 3), 1 / 3), x + 1, x - 1).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("density", [True, False])
def test_strong_views_are_asked_only_where_something_was_agreed(density: bool) -> None:
    model = network()
    x, y, z, views = (torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (4, 5, 6, 7))
    others = (y, z) if density else (None, None)
    targets = torch.softmax(torch.randn(4, 3), 1)
    agreed = torch.zeros(7, 3)
    agreed[2], agreed[5] = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.2, 0.3, 0.5])
    plain = objective(model, x, targets, *others)
    terms = objective(model, x, targets, *others, strong=views, agreed=agreed, consistency=0.5)
    log_p = torch.log_softmax(model(views)[0], 1)
    torch.testing.assert_close(terms.consistency, -(agreed * log_p).sum() / 7)
    torch.testing.assert_close(terms.loss, plain.loss + 0.5 * terms.consistency)
    torch.testing.assert_close(terms.energy_samples, plain.energy_samples)
    torch.testing.assert_close(terms.asked, torch.tensor(2 / 7))
    assert plain.consistency == plain.asked == 0
