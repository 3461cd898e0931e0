"""The definitions of the kernels against PyTorch's own layers and autograd."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ebpl.kernels import reference
from ebpl.models import GaussianHead
from ebpl.models.wide_resnet import SLOPE


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64).float()


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def kernel(weight: Tensor) -> Tensor:
    """(outputs, taps, inputs) as PyTorch has it: (outputs, inputs, rows, columns)."""
    side = round(weight.shape[1] ** 0.5)
    return weight.permute(0, 2, 1).reshape(weight.shape[0], weight.shape[2], side, side)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("taps", [1, 9])
def test_a_convolution_adds_bias_and_residual_and_gives_its_leaky_relu(taps: int, stride: int) -> None:
    x, weight, bias = numbers(2, 8, 8, 4), numbers(5, taps, 4), numbers(5)
    expected = F.conv2d(channels_first(x), kernel(weight), bias, stride=stride, padding=taps // 9)
    residual = numbers(*expected.permute(0, 2, 3, 1).shape, seed=1)
    expected = expected + channels_first(residual)
    sums = torch.ones(5)
    before = F.leaky_relu(residual, SLOPE)
    raw, active = reference.convolve(
        x, weight, stride=stride, bias=bias, residual=before, activated=True, raw=True, active=True, sums=sums
    )
    assert raw is not None
    assert active is not None
    torch.testing.assert_close(channels_first(raw), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(channels_first(active), F.leaky_relu(expected, SLOPE), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sums, 1 + expected.sum((0, 2, 3)), rtol=1e-4, atol=1e-3)
    as_it_is, nothing = reference.convolve(x, weight, stride=stride, bias=bias, residual=residual, raw=True)
    torch.testing.assert_close(as_it_is, raw, rtol=1e-4, atol=1e-4)
    assert nothing is None


@pytest.mark.parametrize(("taps", "stride"), [(9, 1), (9, 2), (1, 1), (1, 2)])
def test_backwards_it_is_the_gradient_with_respect_to_what_a_leaky_relu_was_taken_of(taps: int, stride: int) -> None:
    before, weight = numbers(2, 8, 8, 4).requires_grad_(), numbers(5, taps, 4)
    active = F.leaky_relu(before, SLOPE)
    result = F.conv2d(channels_first(active), kernel(weight), stride=stride, padding=taps // 9)
    gradient = numbers(*result.permute(0, 2, 3, 1).shape, seed=2)
    (expected,) = torch.autograd.grad(result, before, channels_first(gradient))
    sign = before.detach()
    if taps == 1 and stride == 2:  # the other pixels are zero
        assert expected[:, 1::2].abs().sum() == expected[:, :, 1::2].abs().sum() == 0
        expected, sign = expected[:, ::2, ::2], sign[:, ::2, ::2]
    raw, _ = reference.convolve(gradient, weight.permute(2, 1, 0), stride=stride, back=True, sign=sign, raw=True)
    torch.testing.assert_close(raw, expected, rtol=1e-4, atol=1e-5)


def test_a_smaller_residual_is_added_to_the_even_pixels() -> None:
    x, weight, small = numbers(2, 4, 4, 4), numbers(5, 9, 4), numbers(2, 4, 4, 5, seed=3)
    plain, _ = reference.convolve(x, weight, stride=2, back=True, raw=True)
    added, _ = reference.convolve(x, weight, stride=2, back=True, residual=small, raw=True)
    assert plain is not None
    assert added is not None
    expected = torch.zeros_like(plain)
    expected[:, ::2, ::2] = small
    torch.testing.assert_close(added - plain, expected, rtol=1e-4, atol=1e-5)


def test_the_stem_and_its_gradient_are_those_of_a_convolution() -> None:
    images, weight, bias = numbers(3, 6, 6, 3).requires_grad_(), numbers(16, 9, 3), numbers(16)
    result = F.conv2d(channels_first(images), kernel(weight), bias, padding=1)
    raw, active = reference.stem(images.detach(), weight, bias)
    torch.testing.assert_close(channels_first(raw), result, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(channels_first(active), F.leaky_relu(result, SLOPE), rtol=1e-4, atol=1e-5)
    gradient = numbers(3, 6, 6, 16, seed=4)
    (expected,) = torch.autograd.grad(result, images, channels_first(gradient))
    torch.testing.assert_close(reference.stem_back(gradient, weight), expected, rtol=1e-4, atol=1e-5)


def test_pooling_and_its_gradient_are_those_of_a_mean_of_leaky_relus() -> None:
    before = numbers(3, 4, 5, 6).requires_grad_()
    active = F.leaky_relu(before, SLOPE)
    pooled, gradient = active.mean((1, 2)), numbers(3, 6, seed=5)
    torch.testing.assert_close(reference.pool(active.detach()), pooled)
    (expected,) = torch.autograd.grad(pooled, before, gradient)
    torch.testing.assert_close(reference.spread(gradient, active.detach()), expected)


def test_the_gradient_of_the_energy_head_is_what_autograd_finds() -> None:
    head = GaussianHead(6, 4, "diagonal")
    with torch.no_grad():
        head.means.copy_(numbers(4, 6))
        head.log_precision.copy_(numbers(6, seed=6) / 3)
    features = numbers(5, 6, seed=7).requires_grad_()
    (expected,) = torch.autograd.grad(head.energy(features).sum(), features)
    precision = head.log_precision.detach().exp()
    weight, bias = (head.means * precision).detach(), (-0.5 * (head.means**2 * precision).sum(1)).detach()
    found = reference.head_gradient(features.detach(), weight, bias, precision)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
