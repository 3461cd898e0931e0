"""The kernels for Hopper GPUs as a whole (make test-gpu)."""

import inspect

import pytest
import torch

from ebpl.kernels import reference
from tests.kernels.on_gpu import NEEDS_HOPPER, close, convolutions, numbers

pytestmark = NEEDS_HOPPER


def test_each_kernel_takes_what_its_definition_takes() -> None:
    from ebpl.kernels import hopper

    assert hopper.supported()
    for name in ("convolve", "stem", "stem_back", "pool", "spread", "head_gradient"):
        ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (hopper, reference))
        assert [each for each in ours if each != "tile"] == list(theirs), name


def test_both_convolution_kernels_are_chosen_from() -> None:
    assert len(convolutions(by_rows=True)) > 5
    assert len(convolutions(by_rows=False)) > 20


@pytest.mark.parametrize("raw", [True, False])
def test_only_what_is_asked_for_is_computed(raw: bool) -> None:
    from ebpl.kernels import hopper

    x, weight = numbers(6, 16, 16, 64), numbers(64, 9, 64) / 24
    found = hopper.convolve(x, weight, raw=raw, active=not raw)
    expected = reference.convolve(x.float(), weight.float(), raw=raw, active=not raw)
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    assert found[0 if raw else 1].dtype == torch.bfloat16
