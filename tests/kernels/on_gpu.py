"""What tests of the kernels on a Hopper GPU share (make test-gpu)."""

from typing import Any

import pytest
import torch

from ebpl.kernels import reference
from ebpl.kernels.tiles import Rows, choose

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
NEEDS_HOPPER = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="PyTorch sees no Hopper GPU here")]

SHAPES = [(64, 32, 16, 160), (6, 16, 64, 64), (5, 28, 32, 32), (7, 14, 64, 128), (5, 7, 128, 128), (4, 8, 640, 640)]
SHAPES += [(3, 128, 16, 16), (3, 64, 16, 32), (3, 64, 32, 32), (2, 96, 32, 64)]
"""Images, side, inputs, outputs."""
CASES: list[dict[str, Any]] = [
    {"taps": 9, "bias": True, "active": True},
    {"taps": 9, "bias": True, "residual": True, "activated": True, "raw": True, "active": True},
    {"taps": 9, "back": True, "sign": True, "residual": True, "raw": True, "sums": True},
    {"taps": 1, "bias": True, "raw": True},
    {"taps": 1, "back": True, "raw": True},
    {"taps": 9, "stride": 2, "bias": True, "active": True},
    {"taps": 1, "stride": 2, "bias": True, "raw": True},
    {"taps": 1, "stride": 2, "back": True, "raw": True},
    {"taps": 9, "stride": 2, "back": True, "sign": True, "residual": True, "raw": True, "sums": True},
]


def convolutions(by_rows: bool) -> list[tuple[int, int, int, int, dict[str, Any]]]:
    """Shapes and cases that conv3x3 (by rows) or conv_general is chosen for."""
    found = []
    for case in CASES:
        for images, size, inputs, outputs in SHAPES:
            if case.get("stride") == 2 and not case.get("back") and size % 2:
                continue  # odd sizes are not halved
            simple = case["taps"] == 9 and case.get("stride", 1) == 1
            is_rows = simple and isinstance(choose((images, size, size), inputs, outputs, True), Rows)
            if is_rows == by_rows:
                found.append((images, size, inputs, outputs, case))
    return found


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


def check_convolution(images: int, size: int, inputs: int, outputs: int, case: dict[str, Any]) -> None:
    """The kernel's results and sums are those of the definition in plain PyTorch."""
    from ebpl.kernels import hopper

    options = dict(case)
    taps, stride, back = options.pop("taps"), options.get("stride", 1), options.get("back", False)
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
    found = hopper.convolve(x, weight, sums=found_sums, **options)
    expected = reference.convolve(x.float(), weight.float(), sums=expected_sums, **options)
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    if found_sums is not None and expected_sums is not None:
        torch.testing.assert_close(found_sums, expected_sums, rtol=0.01, atol=0.02 * float(expected_sums.abs().max()))
