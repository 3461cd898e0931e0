"""Checkpoints: the whole state of a run in one file, whose name carries the check sum of what is in it."""

from __future__ import annotations

import contextlib
import io
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebpl.calibration import CalibrationCheck
from ebpl.config.compat import modern_checkpoint
from ebpl.errors import RunError, is_memory
from ebpl.io import is_number, is_whole, write_bytes

KEPT = 2
MOST_UPDATES = 10**9
"""Of an epoch; its settings allow no more."""
_NAME = re.compile(r"epoch-(\d{6})-([0-9a-f]{8})\.pt")


def save(folder: Path, epochs_done: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint; keep it and the one before, and none of epochs that were undone since.

    A kill at any moment leaves a good one.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    path = folder / f"epoch-{epochs_done:06d}-{zlib.crc32(content):08x}.pt"
    write_bytes(path, content)
    found = _found(folder)
    undone = [old for epochs, old in found if epochs > epochs_done]
    outdated = [old for epochs, old in found if epochs <= epochs_done][KEPT:]
    for old in undone + outdated:
        old.unlink(missing_ok=True)
    return path


def load(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; None if there is none yet; an error if there are only damaged ones."""
    found = _found(folder)
    for _, path in found:
        try:
            content = path.read_bytes()
            if f"{zlib.crc32(content):08x}" == path.stem[-8:]:
                stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                state: dict[str, Any] = modern_checkpoint(stored)
                return state
            reason = "its check sum is wrong"
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'unreadable'}"
        warn(f"checkpoint {path.name} is damaged ({reason}); trying an older one")
    if found:
        raise RunError(
            f"Every checkpoint in {folder} is damaged ({', '.join(path.name for _, path in found)}). Restore one from "
            "a backup, or remove them to begin the run again from its settings."
        )
    return None


@contextlib.contextmanager
def trusted(state: dict[str, Any], targets: Tensor, labeled: int) -> Iterator[None]:
    """Restore a state inside this: one that does not fit the run becomes an error that says so.

    The true labels, the first `labeled` rows of the targets, must be those of the state.
    """
    try:
        for part in (state, *([state["last_good"]] if "last_good" in state else [])):
            for name, rule in _RULES.items():
                if (part is state or name not in ("divergence", "seconds")) and not rule(part[name]):
                    raise ValueError(f"{name} is not what it should be")
            if part.get("check") is not None and CalibrationCheck.stored(part["check"]) is None:
                raise ValueError("check is not what it should be")
            if not 0 <= part.get("spreading", 0.0) < 1:
                raise ValueError("spreading is not what it should be")
            if part["targets"].shape != targets.shape:
                raise ValueError("it is for other images or classes")
            if not torch.equal(part["targets"][:labeled].to(targets), targets[:labeled]):
                raise ValueError("its labels are of other images")
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if is_memory(error):
            raise
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise RunError(
            f"The newest checkpoint does not fit this run ({reason}). Were its settings edited? Put them back, or "
            "restore the checkpoint from a backup, or remove the folder of checkpoints to begin the run again."
        ) from error


def _is_history(value: Any) -> bool:
    names = {"phase", "epoch", "loss", "pseudo_labels"}
    rows = isinstance(value, list) and all(isinstance(row, dict) and names <= row.keys() for row in value)
    return rows and all(is_whole(row.get("updates", 1)) and row.get("updates", 1) <= MOST_UPDATES for row in value)


def _is_positions(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) for each in value)


def _is_best(value: Any) -> bool:
    return isinstance(value, dict) and (not value or {"score", "phase", "epoch", "weights"} <= value.keys())


_RULES: dict[str, Callable[[Any], bool]] = {
    "tensors": lambda value: isinstance(value, dict),
    "ema_updates": lambda value: isinstance(value, int),
    "targets": lambda value: isinstance(value, torch.Tensor),
    "phase": lambda value: isinstance(value, int) and value >= 0,
    "epoch": lambda value: isinstance(value, int) and value >= 0,
    "selected": _is_positions,
    "rejected": _is_positions,
    "pseudo_label_accuracy": lambda value: value is None or is_number(value),
    "history": _is_history,
    "best": _is_best,
    "divergence": lambda value: all(is_number(number) for name, number in value.items() if name != "events"),
    "seconds": is_number,
}


def _found(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints with their number of epochs, newest first."""
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.glob("epoch-*.pt")]
    found = [(int(match[1]), path) for match, path in matches if match]
    return sorted(found, key=lambda pair: (pair[0], pair[1].stat().st_mtime_ns), reverse=True)
