"""A small benchmark on a GPU (make test-gpu)."""

import gc

import pytest
import torch

from benchmarks import measure, run
from benchmarks.run import benchmark

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
]


def test_a_gpu_is_measured_with_several_seeds_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK", 0.01)
    monkeypatch.setattr(run, "PREDICTED", {"cuda": 600})
    precision = torch.get_float32_matmul_precision()
    record = benchmark("cuda", networks=["10-1"], seeds=[1, 2], sgld_steps=2, batch_size=8, image_size=16, rounds=2)
    assert [(row["loop"], row["seeds"]) for row in record["rows"]] == [
        ("reference", 1),
        ("ebpl", 1),
        ("ebpl", 2),
        ("prediction from device", 1),
        ("prediction from host", 1),
    ]
    for row in record["rows"]:
        assert row["failed"] is None
        assert 0 < row["share"] < 1
        assert row["peak_memory"] > 0
    assert record["machine"]["cudnn"]
    assert torch.get_float32_matmul_precision() == precision


def test_want_of_memory_is_a_row_and_the_rest_goes_on() -> None:
    with_too_many = {"networks": ["28-10", "10-1"], "seeds": [1], "sgld_steps": 1, "image_size": 16, "rounds": 1}
    gc.collect()  # what tests before this one left behind would count as used
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 2 * 2**30
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties().total_memory)
    try:
        record = benchmark("cuda", batch_size=256, **with_too_many)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    failed = {row["network"] for row in record["rows"] if row["failed"]}
    assert failed == {"28-10"}
    assert any("out of memory" in (row["failed"] or "") for row in record["rows"])
