"""The passes by hand against autograd, with the kernels' definitions in plain PyTorch."""

import pytest
import torch

from ebpl.kernels import FastNetwork, _fits, fast_network
from ebpl.models import HybridModel
from tests.helpers import architecture

SHAPES = [(10, 1, 3, 3, 8), (16, 2, 3, 1, 28), (10, 2, 3, 3, 12), (10, 2, 4, 3, 16), (10, 4, 5, 1, 32)]
"""Depth, width, stages, channels, side."""


def model(depth: int, width: int, channels: int, stages: int = 3) -> HybridModel:
    made = architecture(depth=depth, width=width, stages=stages, shape=(channels, 8, 8), classes=4)
    return made.build().initialise(torch.Generator().manual_seed(1))


def images(channels: int, size: int) -> torch.Tensor:
    return torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("depth", "width", "stages", "channels", "size"), SHAPES)
def test_features_and_all_gradients_are_those_of_the_network(
    depth: int, width: int, stages: int, channels: int, size: int
) -> None:
    network = model(depth, width, channels, stages).features
    fast = FastNetwork(network, torch.float32)
    fast.refresh()
    x = images(channels, size)
    features, trace = fast.forth(x)
    torch.testing.assert_close(features, network(x), rtol=1e-4, atol=1e-5)

    weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(3))
    by_autograd = x.clone().requires_grad_()
    expected = torch.autograd.grad((network(by_autograd) * weight).sum(), [by_autograd, *network.parameters()])
    torch.testing.assert_close(fast.images_gradient(weight, trace), expected[0], rtol=1e-4, atol=1e-6)
    found = torch.autograd.grad((fast(x) * weight).sum(), list(network.parameters()))
    for one, other in zip(found, expected[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", ["identity", "diagonal", "full"])
def test_gradient_of_the_energy_is_the_models(precision: str) -> None:
    whole = architecture(precision, shape=(3, 8, 8), classes=4).build().initialise(torch.Generator().manual_seed(1))
    assert whole.gaussian is not None
    with torch.no_grad():
        for parameter in whole.gaussian.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    fast = FastNetwork(whole.features, torch.float32)
    fast.refresh()
    x = images(3, 8).requires_grad_()
    (expected,) = torch.autograd.grad(whole(x)[1].sum(), x)
    torch.testing.assert_close(fast.energy_gradient(whole.gaussian)(x.detach()), expected, rtol=1e-4, atol=1e-6)


def test_gradient_of_the_energy_of_scores_is_the_models() -> None:
    whole = architecture(None, shape=(3, 8, 8), classes=4).build().initialise(torch.Generator().manual_seed(1))
    fast = FastNetwork(whole.features, torch.float32)
    fast.refresh()
    x = images(3, 8).requires_grad_()
    (expected,) = torch.autograd.grad(whole(x)[1].sum(), x)
    torch.testing.assert_close(fast.energy_gradient(whole.energy_head)(x.detach()), expected, rtol=1e-4, atol=1e-6)


def test_weights_are_taken_over_when_asked() -> None:
    network = model(10, 1, 3).features
    fast = FastNetwork(network, torch.float32)
    fast.refresh()
    x = images(3, 8)
    before, _ = fast.forth(x)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    fast.refresh()
    after, _ = fast.forth(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, network(x), rtol=1e-4, atol=1e-5)


def test_gradients_of_parameters_share_no_memory() -> None:
    network = model(10, 2, 3).features
    fast = FastNetwork(network, torch.float32)
    fast.refresh()
    features, trace = fast.forth(images(3, 8))
    found = fast.parameter_gradients(torch.ones_like(features), trace)
    before = [gradient.clone() for gradient in found]
    for gradient in found:  # as clipping the gradient does
        gradient.mul_(2)
    for one, other in zip(found, before, strict=True):
        torch.testing.assert_close(one, 2 * other)


def test_the_cpu_goes_the_plain_way() -> None:
    network = model(10, 1, 3).features
    assert fast_network(network, (3, 32, 32), torch.device("cpu"), torch.bfloat16) is None


@pytest.mark.parametrize(
    ("width", "stages", "size", "images", "fits"),
    [
        (4, 3, 32, 64, True),
        (4, 3, 28, 64, True),
        (4, 3, 30, 64, False),  # cannot be halved twice
        (4, 4, 64, 64, True),
        (4, 4, 60, 64, False),  # nor three times
        (4, 5, 128, 64, True),
        (1, 5, 128, 64, True),
        (10, 5, 128, 64, False),  # forty channels in the first stage
        (4, 5, 128, 2**13, False),  # 2**31 numbers
        (4, 5, 128, 2**13 - 1, True),
        (4, 3, 128, 2**11, False),
    ],
)
def test_the_kernels_take_what_they_can_count_and_halve_in_sixteens(
    width: int, stages: int, size: int, images: int, fits: bool
) -> None:
    with torch.device("meta"):
        network = model(10, width, 3, stages).features
    assert _fits(network, (3, size, size), images) == fits


def test_a_network_of_another_kind_has_no_fast_way() -> None:
    assert fast_network(torch.nn.Linear(4, 4), (4,), torch.device("cuda"), torch.bfloat16) is None
