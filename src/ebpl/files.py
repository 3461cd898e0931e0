"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebpl.errors import WriteError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one step; on failure `path` stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            _flush(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # torch and safetensors raise RuntimeError where a write fails
        if isinstance(error, RuntimeError) and "write" not in str(error).lower():
            raise
        raise write_failed(path, error) from error


def write_failed(path: Path, error: Exception) -> WriteError:
    """The error for a file that could not be written: why, and that nothing else was harmed."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
    return WriteError(f"Could not write {path}: {reason}. The file that was there before is unharmed.")


def _flush(path: Path) -> None:
    """Make sure the bytes are on the disk before the name points to them."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """A text file, atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8") and None)


def write_json(path: Path, value: Any) -> None:
    """A JSON file, atomically; numbers that are not finite become null, since JSON has none."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same value with None for every number that is not finite, as JSON needs it."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
