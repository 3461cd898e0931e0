import time

import pytest
import torch

from benchmarks import measure
from benchmarks.measure import MatrixProduct, in_turns, peak_memory, seconds_of

CPU = torch.device("cpu")


def test_a_call_takes_as_long_as_it_takes() -> None:
    assert 0.01 <= seconds_of(lambda: time.sleep(0.01), 3, CPU) < 0.05


def test_loops_take_turns_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK", 1e-9)  # one call a block
    calls: list[str] = []
    times = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, rounds=3)
    assert "".join(calls) == "ab" + "ababab"  # once to learn how long a call takes
    assert [len(each) for each in times.values()] == [3, 3]


def test_after_the_deadline_no_second_round_begins() -> None:
    times = in_turns({"a": lambda: time.sleep(0.01)}, CPU, rounds=50, deadline=time.monotonic())
    assert len(times["a"]) == 1


def test_a_cpu_tells_no_peak_of_memory() -> None:
    with peak_memory(CPU) as peak:
        torch.zeros(1000)
    assert peak == []


def test_the_matrix_rate_is_that_of_the_best_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK", 0.01)
    product = MatrixProduct(CPU)
    product.measure()
    product.measure()
    described = product.described()
    assert described["dtype"] == "float32"
    assert described["tflops"] == pytest.approx(2 * 1024**3 / min(described["seconds"]) / 1e12)
