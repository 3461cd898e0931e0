"""The kernels of stem, pooling and energy head against their definition, on a Hopper GPU (make test-gpu)."""

import pytest
import torch

from ebpl.kernels import reference
from tests.kernels.on_gpu import NEEDS_HOPPER, close, numbers

pytestmark = NEEDS_HOPPER


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [32, 28, 8])
def test_first_convolution_and_its_gradient(channels: int, size: int) -> None:
    from ebpl.kernels import stem_and_pool

    images, weight = numbers(6, size, size, channels, dtype=torch.float32), numbers(16, 9, channels) / 3
    bias, gradient = numbers(16, dtype=torch.float32), numbers(6, size, size, 16)
    for one, other in zip(stem_and_pool.stem(images, weight, bias), reference.stem(images, weight, bias), strict=True):
        close(one, other)
    close(stem_and_pool.stem_back(gradient, weight), reference.stem_back(gradient, weight))


@pytest.mark.parametrize(("size", "dimension"), [(8, 128), (7, 256), (8, 640), (2, 64)])
def test_mean_over_pixels_and_its_gradient(size: int, dimension: int) -> None:
    from ebpl.kernels import stem_and_pool

    active, gradient = numbers(6, size, size, dimension), numbers(6, dimension, dtype=torch.float32)
    close(stem_and_pool.pool(active), reference.pool(active))
    close(stem_and_pool.spread(gradient, active), reference.spread(gradient, active))


@pytest.mark.parametrize(("classes", "dimension"), [(10, 640), (8, 256), (2, 64), (100, 640)])
def test_gradient_of_the_energy_head(classes: int, dimension: int) -> None:
    from ebpl.kernels import stem_and_pool

    features, weight = numbers(6, dimension, dtype=torch.float32), numbers(classes, dimension, dtype=torch.float32) / 9
    bias, precision = numbers(classes, dtype=torch.float32), numbers(dimension, dtype=torch.float32).exp()
    found = stem_and_pool.head_gradient(features, weight, bias, precision)
    torch.testing.assert_close(found, reference.head_gradient(features, weight, bias, precision), rtol=1e-3, atol=1e-4)
