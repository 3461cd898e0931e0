"""Records of benchmarks: one JSON each, with all single times, hardware and versions."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from ebpl.config import RuntimeSettings
from ebpl.devices import describe_environment
from ebpl.errors import DataError, UsageError
from ebpl.io import write_failed, write_json

Record = dict[str, Any]
Row = dict[str, Any]
FOLDER = Path("benchmarks/records")


def describe_machine(runtime: RuntimeSettings) -> dict[str, Any]:
    """Hardware and versions that speed depends on."""
    described = describe_environment(runtime)
    described |= {"name": described["gpu"] or _processor(), "cores": os.cpu_count(), "triton": None}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        described["triton"] = importlib.metadata.version("triton")
    if described["gpu"]:
        properties = torch.cuda.get_device_properties()
        described |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "gpu_memory": properties.total_memory,
            "gpu_multiprocessors": properties.multi_processor_count,
            **_driver(),
        }
    return described


def _driver() -> dict[str, str]:
    """The driver and the highest clock, where NVIDIA's own tool is there to tell them."""
    names = ("driver_version", "clocks.max.sm")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        values = told.splitlines()[0].split(", ") if told else []
        return dict(zip(("driver", "gpu_clock"), values, strict=False))
    return {}


def _processor() -> str:
    """The processor's name as Linux tells it, or its family."""
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    import platform

    return platform.processor() or platform.machine()


def path_for(record: Record, wanted: str | None) -> Path | None:
    """Where a record is written: the .json file asked for, or a name of its own in the folder asked for.

    Without a wish it goes to the project's own records, where they are; elsewhere it is not kept.
    """
    if wanted and wanted.endswith(".json"):
        return Path(wanted)
    if not wanted and not FOLDER.is_dir():
        return None
    hardware = re.sub(r"[^a-z0-9]+", "-", record["machine"]["name"].lower()).strip("-")
    when = record["date"][:16].replace("T", "-").replace(":", "")
    return (Path(wanted) if wanted else FOLDER) / f"{hardware}-{when}.json"


def check_place(wanted: str | None) -> None:
    """Find out before anything is measured that a record cannot be written there."""
    if not wanted:
        return
    path = Path(wanted)
    if path.is_file():
        raise UsageError(f"{path} exists already, and a record overwrites nothing. Choose another place.")
    folder = path.parent if path.suffix == ".json" else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise write_failed(folder, error) from error


def save(record: Record, wanted: str | None = None) -> Path | None:
    """Write a record where `path_for` says; returns the path."""
    path = path_for(record, wanted)
    if path:
        write_json(path, record)
    return path


def load(folder: Path) -> list[Record]:
    """The newest record of each machine, those with a GPU first."""
    newest: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            name, date = record["machine"]["name"], record["date"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a record of a benchmark: {error}") from error
        if name not in newest or date > newest[name]["date"]:
            newest[name] = record
    return sorted(newest.values(), key=lambda record: (not record["machine"]["gpu"], record["machine"]["name"]))
