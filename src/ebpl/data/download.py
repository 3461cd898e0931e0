"""Downloading an official file: resumed where it stopped, checked against its published check sum."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ebpl.errors import DataError, EbplError
from ebpl.files import write_failed

BLOCK = 1 << 18
TIMEOUT = 60


@dataclass(frozen=True)
class RemoteFile:
    """A file of an official source and its published MD5."""

    name: str
    url: str
    md5: str


def fetch(remote: RemoteFile, folder: Path, failed: Callable[[str], EbplError]) -> Path:
    """The file in `folder`, downloaded if it is not there yet.

    What has arrived waits in a `.part` file, from which the next try goes on. `failed` makes the error for a source
    that cannot be reached out of the reason.
    """
    path = folder / remote.name
    if path.is_file():
        return path
    part = path.with_name(path.name + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for fresh in (False, True):
            if fresh:
                part.unlink(missing_ok=True)
            _receive(remote, part)
            if _md5(part) == remote.md5:
                part.replace(path)
                return path
            # a part left over from another version of the file: once more from the start
    except urllib.error.HTTPError as error:
        raise failed(f"and the source answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        kept = f"; {part.stat().st_size:,} bytes are kept for the next try" if part.is_file() else ""
        raise failed(f"and the source cannot be reached ({reason}{kept})") from error
    except OSError as error:
        raise write_failed(part, error) from error
    part.unlink(missing_ok=True)
    raise DataError(
        f"{remote.url} gave a file whose MD5 is not the published {remote.md5}. It was thrown away; try again later."
    )


def _receive(remote: RemoteFile, part: Path) -> None:
    """Append what is missing of the file to `part`."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing any more
            return
        raise
    with answer:
        resumed = answer.status == 206
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file, _bar(remote.name, total, have) as advance:
            _copy(answer, file, advance)
    if total is not None and part.stat().st_size < total:
        raise ConnectionError(f"the connection broke after {part.stat().st_size:,} of {total:,} bytes")


def _copy(source: Any, target: IO[bytes], advance: Callable[[int], None]) -> None:
    while block := source.read(BLOCK):
        target.write(block)
        advance(len(block))


def _bar(name: str, total: int | None, done: int) -> Any:
    from ebpl.reporting.progress import transfer_bar

    return transfer_bar(name, total, done)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
