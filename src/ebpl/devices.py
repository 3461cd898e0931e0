"""Which device and which numbers a run computes with."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ebpl.config import RuntimeSettings
from ebpl.errors import UsageError
from ebpl.launch import own_gpu


def choose_device(runtime: RuntimeSettings) -> torch.device:
    """The device asked for; `auto` takes the GPU where there is one."""
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda was asked for, but PyTorch sees no GPU here. Use --device cpu or auto.")
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if runtime.device == "auto" else runtime.device
    own = own_gpu()
    if kind == "cuda" and own is not None and own < torch.cuda.device_count():
        torch.cuda.set_device(own)
    return torch.device(kind)


def choose_dtype(runtime: RuntimeSettings, device: torch.device) -> torch.dtype:
    """The network's number type; `auto` takes bfloat16 on a GPU, where it is several times faster."""
    if runtime.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if runtime.dtype == "bfloat16" else torch.float32


def device_and_dtype(runtime: RuntimeSettings) -> tuple[torch.device, torch.dtype]:
    """What to predict with here; a GPU run's weights work without a GPU too."""
    if not torch.cuda.is_available():
        runtime = replace(runtime, device="cpu")
    device = choose_device(runtime)
    return device, choose_dtype(runtime, device)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this number of CPU threads: another number adds in another order, and gives other last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_threads() -> int:
    """CPU threads that others leave free, at most PyTorch's own number; that number where the user has set it."""
    usual = torch.get_num_threads()
    if any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")) or not hasattr(os, "getloadavg"):
        return usual
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usual, round(cores - os.getloadavg()[0])))


def source_digest() -> str:
    """A digest of the source files that results depend on: the package and, in a checkout, `experiments/`."""
    package = Path(__file__).parent
    experiments = package.parents[1] / "experiments"
    named = {f"ebpl/{path.relative_to(package).as_posix()}": path for path in package.rglob("*.py")}
    named |= {f"experiments/{path.name}": path for path in experiments.glob("*.py")}
    contents = [(name, hashlib.sha256(path.read_bytes()).hexdigest()) for name, path in sorted(named.items())]
    return hashlib.sha256(repr(contents).encode()).hexdigest()[:16]


@functools.cache
def _commit() -> str | None:
    """The commit of the code, where it runs from a checkout; it ends in -dirty where the code is not that commit's.

    A copy of a checkout has no git to ask. There EBPL_COMMIT says COMMIT:DIGEST (`python -m experiments.commit` prints
    it), and the digest must be that of the files here.
    """
    if given := os.environ.get("EBPL_COMMIT"):
        commit, _, digest = given.partition(":")
        return commit if digest == source_digest() else f"{commit.removesuffix('-dirty')}-dirty"
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def describe_environment(runtime: RuntimeSettings) -> dict[str, Any]:
    """Software and hardware that a run with these settings uses here, for its record."""
    import numpy

    from ebpl import __version__

    device = choose_device(runtime)
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else None
    return {
        "ebpl": __version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "device": device.type,
        "dtype": str(choose_dtype(runtime, device)).removeprefix("torch."),
        "command": _command(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _command() -> list[str] | None:
    """The words of the command, where it is the command that runs."""
    by_command = Path(sys.argv[0]).name == "ebpl" or Path(sys.argv[0]).parts[-2:] == ("ebpl", "__main__.py")
    return ["ebpl", *sys.argv[1:]] if by_command else None
