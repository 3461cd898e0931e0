"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ebpl.errors import WriteError


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file beside `path`, then put it in place in one step; on failure `path` stays as it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # the bytes must be on the disk before the name points to them
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise write_failed(path, error) from error


def write_failed(path: Path, error: OSError) -> WriteError:
    """The error for a file that could not be written: why, and that nothing else was harmed."""
    return WriteError(f"Could not write {path}: {error.strerror or error}. What was there before is unharmed.")


@contextlib.contextmanager
def partly_written(target: str, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write bit by bit, which appears under its name when it is whole; `-`: standard output."""
    if target == "-":
        yield sys.stdout
        return
    path = Path(target)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") if binary else part.open("w", encoding="utf-8", newline="") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise write_failed(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text file, atomically."""
    write_bytes(path, text.encode("utf-8"))


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
