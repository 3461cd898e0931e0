"""Timing: warm up, then let all loops take turns, round after round, so that what disturbs one disturbs all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

WARM_UP = 2
BLOCK = 0.25
"""Each loop runs for about so many seconds a round."""

Loop = Callable[[], object]


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given, on every stream."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(loop: Loop, calls: int, device: torch.device) -> float:
    """Seconds a call, of so many one after the other."""
    wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        loop()
    wait(device)
    return (time.perf_counter() - start) / calls


def warm_up(loop: Loop, device: torch.device) -> None:
    """The first calls choose kernels and reserve memory; they do not count."""
    seconds_of(loop, WARM_UP, device)


def in_turns(
    loops: dict[str, Loop], device: torch.device, rounds: int, deadline: float = float("inf")
) -> dict[str, list[float]]:
    """Seconds a call of each loop in each round; after the deadline (by the monotonic clock) no round begins."""
    calls = {name: max(1, round(BLOCK / seconds_of(loop, 1, device))) for name, loop in loops.items()}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for finished in range(rounds):
        if finished and time.monotonic() > deadline:
            break
        for name, loop in loops.items():
            times[name].append(seconds_of(loop, calls[name], device))
    return times


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """A list that afterwards holds how many bytes were needed at most, beyond those in use before; a CPU tells none."""
    found: list[int] = []
    if device.type != "cuda":
        yield found
        return
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    yield found
    wait(device)
    found.append(torch.cuda.max_memory_allocated(device) - before)


class MatrixProduct:
    """What the device can do: the best rate in a large matrix product, tried again between the other measurements."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.size, self.dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
        self.factors = [torch.randn(self.size, self.size, device=device).to(self.dtype) for _ in range(2)]
        self.out = torch.empty_like(self.factors[0])
        self.seconds: list[float] = []
        warm_up(self, device)

    def __call__(self) -> None:
        """One product."""
        torch.mm(*self.factors, out=self.out)

    def measure(self) -> None:
        """One more block of them."""
        self.seconds += in_turns({"product": self}, self.device, 1)["product"]

    def described(self) -> dict[str, Any]:
        """The rate so far, for the record."""
        rate = 2 * self.size**3 / min(self.seconds) / 1e12
        dtype = str(self.dtype).removeprefix("torch.")
        return {"size": self.size, "dtype": dtype, "seconds": self.seconds, "tflops": rate}
