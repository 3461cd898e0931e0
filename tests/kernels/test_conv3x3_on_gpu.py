"""The convolution kernel of nine taps and stride 1 against its definition, on a Hopper GPU (make test-gpu)."""

from typing import Any

import pytest

from tests.kernels.on_gpu import NEEDS_HOPPER, check_convolution, convolutions

pytestmark = NEEDS_HOPPER


@pytest.mark.parametrize(("images", "size", "inputs", "outputs", "case"), convolutions(by_rows=True))
def test_a_convolution_and_what_follows_it_are_as_defined(
    images: int, size: int, inputs: int, outputs: int, case: dict[str, Any]
) -> None:
    check_convolution(images, size, inputs, outputs, case)
