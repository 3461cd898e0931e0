import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.models import GaussianHead

PRECISIONS = ["identity", "diagonal", "full"]


def random_head(precision: str, classes: int, dimension: int, seed: int) -> GaussianHead:
    torch.manual_seed(seed)
    head = GaussianHead(dimension, classes, precision).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return head


def precision_matrix(head: GaussianHead) -> np.ndarray:
    """The precision matrix written out, independently of the head's own arithmetic."""
    dimension = head.means.shape[1]
    if head.precision == "diagonal":
        return np.diag(np.exp(head.log_precision.detach().numpy()))
    if head.precision == "full":
        lower = np.tril(head.factor.detach().numpy())
        return lower @ lower.T
    return np.eye(dimension)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_class_energies_are_the_quadratic_form_written_out(precision: str) -> None:
    head = random_head(precision, 3, 5, seed=1)
    features = torch.randn(7, 5, dtype=torch.float64)
    matrix, means = precision_matrix(head), head.means.detach().numpy()
    expected = [[0.5 * (f - m) @ matrix @ (f - m) for m in means] for f in features.numpy()]
    np.testing.assert_allclose(head.class_energies(features).detach().numpy(), expected)
    total = -np.log(np.exp(-np.array(expected)).sum(1))
    np.testing.assert_allclose(head.energy(features).detach().numpy(), total)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_energy_gradient_is_what_autograd_finds(precision: str) -> None:
    head = random_head(precision, 4, 5, seed=2)
    features = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(head.energy(features).sum(), features)
    torch.testing.assert_close(head.energy_gradient()(features), expected)


@given(
    precision=st.sampled_from(PRECISIONS),
    classes=st.integers(2, 6),
    dimension=st.integers(1, 8),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_zero_coupling_makes_the_softmax_posterior_the_gaussian_posterior(
    precision: str, classes: int, dimension: int, seed: int
) -> None:
    # the identity of the paper's appendix
    head = random_head(precision, classes, dimension, seed)
    weight, bias = head.natural_weight(), head.natural_bias()
    assert head.coupling(weight, bias).item() == 0
    features = torch.randn(5, dimension, dtype=torch.float64)
    softmax = torch.softmax(features @ weight.T + bias, 1)
    torch.testing.assert_close(softmax, head.posterior(features))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_coupling_is_the_papers_third_term(precision: str) -> None:
    head = random_head(precision, 4, 3, seed=2)
    weight, bias = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    matrix, means = precision_matrix(head), head.means.detach().numpy()
    expected = sum(
        np.sum((w - matrix @ m) ** 2) + (b + 0.5 * m @ matrix @ m) ** 2
        for w, b, m in zip(weight.numpy(), bias.numpy(), means, strict=True)
    )
    assert head.coupling(weight, bias).item() == pytest.approx(expected)
    assert expected > 0


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="spherical"):
        GaussianHead(2, 2, "spherical")
