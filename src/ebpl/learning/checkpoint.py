"""Checkpoints: the whole state of a run in one file, whose name carries the check sum of what is in it."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ebpl.errors import RunError
from ebpl.files import write_bytes

KEPT = 2
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
                state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
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


def _found(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints with their number of epochs, newest first."""
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.glob("epoch-*.pt")]
    found = [(int(match[1]), path) for match, path in matches if match]
    return sorted(found, key=lambda pair: (pair[0], pair[1].stat().st_mtime_ns), reverse=True)
