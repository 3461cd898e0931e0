"""Each fast kernel against its definition in plain PyTorch, on a Hopper GPU (make test-gpu)."""

from typing import Any

import pytest
import torch

from ebpl.kernels import reference as plain

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="PyTorch sees no Hopper GPU here")]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to("cuda", dtype)


def close(found: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found.shape == expected.shape
    assert found.is_contiguous()
    scale = expected.float().abs().max()
    assert ((found.float() - expected.float()).abs().max() / scale).item() < 0.02


SHAPES = [(64, 32, 16, 160), (6, 16, 64, 64), (5, 28, 32, 32), (7, 14, 64, 128), (5, 7, 128, 128), (4, 8, 640, 640)]


@pytest.mark.parametrize(("images", "size", "inputs", "outputs"), SHAPES)
@pytest.mark.parametrize(
    "case",
    [
        {"taps": 9, "bias": True, "active": True},
        {"taps": 9, "bias": True, "residual": True, "activated": True, "raw": True, "active": True},
        {"taps": 9, "back": True, "sign": True, "residual": True, "raw": True, "sums": True},
        {"taps": 1, "bias": True, "raw": True},
        {"taps": 1, "back": True, "raw": True},
        {"taps": 9, "stride": 2, "bias": True, "active": True},
        {"taps": 1, "stride": 2, "bias": True, "raw": True},
        {"taps": 1, "stride": 2, "back": True, "raw": True},
        {"taps": 9, "stride": 2, "back": True, "sign": True, "residual": True, "raw": True, "sums": True},
    ],
)
def test_convolution_and_what_follows_it(
    images: int, size: int, inputs: int, outputs: int, case: dict[str, Any]
) -> None:
    from ebpl.kernels import hopper as convolution

    options = dict(case)
    taps, stride, back = options.pop("taps"), options.get("stride", 1), options.get("back", False)
    if stride == 2 and not back and size % 2:
        pytest.skip("odd sizes are not halved")
    x, weight = numbers(images, size, size, inputs), numbers(outputs, taps, inputs) / (inputs * taps) ** 0.5
    result = size // 2 if stride == 2 and not back else size * 2 if stride == 2 and taps == 9 else size
    residual_size = size if back else result
    if options.pop("bias", False):
        options["bias"] = numbers(outputs, dtype=torch.float32)
    if options.pop("sign", False):
        options["sign"] = numbers(images, result, result, outputs)
    if options.pop("residual", False):
        options["residual"] = numbers(images, residual_size, residual_size, outputs, seed=1)
    sums = options.pop("sums", False)
    found_sums, expected_sums = (torch.ones(outputs, device="cuda") if sums else None for _ in range(2))
    found = convolution.convolve(x, weight, sums=found_sums, **options)
    expected = plain.convolve(x.float(), weight.float(), sums=expected_sums, **options)
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    if found_sums is not None and expected_sums is not None:
        torch.testing.assert_close(found_sums, expected_sums, rtol=0.01, atol=0.02 * float(expected_sums.abs().max()))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [32, 28, 8])
def test_first_convolution_and_its_gradient(channels: int, size: int) -> None:
    from ebpl.kernels import stem_and_pool as edges

    images, weight = numbers(6, size, size, channels, dtype=torch.float32), numbers(16, 9, channels) / 3
    bias, gradient = numbers(16, dtype=torch.float32), numbers(6, size, size, 16)
    for one, other in zip(edges.stem(images, weight, bias), plain.stem(images, weight, bias), strict=True):
        close(one, other)
    close(edges.stem_back(gradient, weight), plain.stem_back(gradient, weight))


@pytest.mark.parametrize(("size", "dimension"), [(8, 128), (7, 256), (8, 640), (2, 64)])
def test_mean_over_pixels_and_its_gradient(size: int, dimension: int) -> None:
    from ebpl.kernels import stem_and_pool as edges

    active, gradient = numbers(6, size, size, dimension), numbers(6, dimension, dtype=torch.float32)
    close(edges.pool(active), plain.pool(active))
    close(edges.spread(gradient, active), plain.spread(gradient, active))


@pytest.mark.parametrize(("classes", "dimension"), [(10, 640), (8, 256), (2, 64), (100, 640)])
def test_gradient_of_the_energy_head(classes: int, dimension: int) -> None:
    from ebpl.kernels import stem_and_pool as edges

    features, weight = numbers(6, dimension, dtype=torch.float32), numbers(classes, dimension, dtype=torch.float32) / 9
    bias, precision = numbers(classes, dtype=torch.float32), numbers(dimension, dtype=torch.float32).exp()
    found = edges.head_gradient(features, weight, bias, precision)
    torch.testing.assert_close(found, plain.head_gradient(features, weight, bias, precision), rtol=1e-3, atol=1e-4)
