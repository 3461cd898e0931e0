"""Which device and which numbers a run computes with."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ebpl.errors import UsageError
from ebpl.processes import own_gpu
from ebpl.settings import Settings


def choose_device(settings: Settings) -> torch.device:
    """The device asked for; `auto` takes the GPU where there is one."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda was asked for, but PyTorch sees no GPU here. Use --device cpu or auto.")
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
    own = own_gpu()
    if kind == "cuda" and own is not None and own < torch.cuda.device_count():
        torch.cuda.set_device(own)
    return torch.device(kind)


def choose_dtype(settings: Settings, device: torch.device) -> torch.dtype:
    """The network's number type; `auto` takes bfloat16 on a GPU, where it is several times faster."""
    if settings.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32


def device_and_dtype(settings: Settings) -> tuple[torch.device, torch.dtype]:
    """What to predict with here; a GPU run's weights work without a GPU too."""
    if not torch.cuda.is_available():
        settings = settings.changed(device="cpu")
    device = choose_device(settings)
    return device, choose_dtype(settings, device)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many CPU threads: another number adds in another order, and gives other last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _commit() -> str | None:
    """The commit of the code, where it runs from a checkout; EBPL_COMMIT tells it of a copy of one."""
    if told := os.environ.get("EBPL_COMMIT"):
        return told
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def describe_environment(settings: Settings) -> dict[str, Any]:
    """Software and hardware that a run with these settings uses here, for its record."""
    import numpy

    import ebpl

    device = choose_device(settings)
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else None
    return {
        "ebpl": ebpl.__version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "device": device.type,
        "dtype": str(choose_dtype(settings, device)).removeprefix("torch."),
    }
