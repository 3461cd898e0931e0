"""Features that were computed before: a SQLite file, by encoder and by the content of the image.

Every batch is committed, so that a stopped process loses at most one, and several processes may use the file at once.
A row carries a check sum of its keys and its numbers; one that does not fit is computed again. The cache is never a
reason to fail: where it is damaged, full or not writable, features are computed without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float16]

FILE = "features-1.sqlite"
"""The number is of the format."""
MOST_BYTES = 2_000_000_000
"""The size above which the oldest features are deleted."""
KEPT = 0.9
"""The part of it that is kept then."""
PATIENCE = 30.0
"""Seconds that another process may take to write."""
ASKED = 500
"""Images that are looked up at once."""
TABLE = """CREATE TABLE IF NOT EXISTS features (
  id INTEGER PRIMARY KEY, encoder TEXT NOT NULL, image BLOB NOT NULL, vector BLOB NOT NULL, UNIQUE (encoder, image)
)"""


def cache_folder() -> Path:
    """Where the cache is: $EBPL_CACHE, or `ebpl` in the user's cache."""
    if own := os.environ.get("EBPL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebpl"


def image_digest(pixels: NDArray[np.uint8]) -> bytes:
    """What an image (H, W, C) is found by: its shape and its pixels."""
    found = hashlib.blake2b(str(pixels.shape).encode(), digest_size=16)
    found.update(pixels.tobytes())
    return found.digest()


class FeatureCache:
    """The features of one encoder; a context manager. `say` is told, once, when it cannot be used."""

    def __init__(self, encoder: str, dimension: int, say: Callable[[str], None], most_bytes: int | None = None) -> None:
        self._encoder, self._dimension, self._say = encoder, dimension, say
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._base: sqlite3.Connection | None = None
        self._writes = True
        self._path = Path(FILE)

    def __enter__(self) -> FeatureCache:
        try:
            self._path = cache_folder() / FILE
            self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
            self._open()
        except (OSError, RuntimeError, ValueError) as error:  # no home, or no name for a folder
            self._give_up(error)
        except sqlite3.Error as error:
            self._failed(error)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, images: Iterable[bytes]) -> Iterator[tuple[bytes, Vector]]:
        """Those of these images that have features, each once."""
        wanted = list(images)
        for start in range(0, len(wanted), ASKED):
            for image, stored in self._rows(wanted[start : start + ASKED]):
                vector = self._unpacked(image, stored)
                if vector is not None:
                    yield image, vector

    def write(self, images: Sequence[bytes], vectors: Vector) -> None:
        """Keep the features of images, and delete the oldest ones where there are too many."""
        if self._base is None or not self._writes:
            return
        rows = [(self._encoder, image, self._packed(image, row)) for image, row in zip(images, vectors, strict=True)]
        try:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.executemany("INSERT OR REPLACE INTO features (encoder, image, vector) VALUES (?, ?, ?)", rows)
            self._make_room(self._base)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._base.execute("ROLLBACK")
            self._failed(error)

    def _open(self) -> None:
        self._base = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)
        self._base.text_factory = bytes  # a damaged row may hold text that is none
        self._base.execute("PRAGMA page_size = 16384")  # of a new file: several rows fit into a page
        self._base.execute("PRAGMA synchronous = OFF")  # a power failure may damage it, which is noticed
        if not self._base.execute("SELECT 1 FROM sqlite_master WHERE name = 'features'").fetchone():
            self._base.execute("BEGIN IMMEDIATE")  # waits for others that do the same
            self._base.execute(TABLE)
            self._base.execute("COMMIT")

    def _close(self) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None

    def _rows(self, images: Sequence[bytes]) -> list[tuple[bytes, Any]]:
        if self._base is None:
            return []
        marks = ", ".join("?" * len(images))
        question = f"SELECT image, vector FROM features WHERE encoder = ? AND image IN ({marks})"
        try:
            return self._base.execute(question, (self._encoder, *images)).fetchall()
        except sqlite3.Error as error:
            self._failed(error)
            return []

    def _make_room(self, base: sqlite3.Connection) -> None:
        """Delete the oldest rows, of whichever encoder."""
        (pages,), (free,), (size,) = (
            base.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        used = (pages - free) * size
        if used <= self._most_bytes:
            return
        (rows,) = base.execute("SELECT count(*) FROM features").fetchone()
        gone = rows - int(rows * KEPT * self._most_bytes / used)
        base.execute("DELETE FROM features WHERE id IN (SELECT id FROM features ORDER BY id LIMIT ?)", (gone,))

    def _packed(self, image: bytes, vector: Vector) -> bytes:
        stored = vector.astype("<f2").tobytes()
        return stored + self._check_sum(image, stored)

    def _unpacked(self, image: bytes, stored: Any) -> Vector | None:
        """The features of a row, or None where they are not what was written."""
        import numpy as np

        if not isinstance(stored, bytes) or len(stored) != 2 * self._dimension + 4:
            return None
        vector, check_sum = stored[:-4], stored[-4:]
        return np.frombuffer(vector, "<f2") if check_sum == self._check_sum(image, vector) else None

    def _check_sum(self, image: bytes, vector: bytes) -> bytes:
        return zlib.crc32(self._encoder.encode() + image + vector).to_bytes(4, "little")

    def _failed(self, error: sqlite3.Error) -> None:
        """Begin a damaged file anew; go on without what cannot be used otherwise."""
        if not isinstance(error, sqlite3.OperationalError):  # that is the system's: locked, full, not writable
            self._close()
            try:
                for ending in ("-journal", "-wal", "-shm", ""):
                    self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
                self._open()
            except (OSError, sqlite3.Error) as again:
                self._give_up(again)
            else:
                self._tell(f"The cache of features {self._path} was damaged ({error}) and is recreated.")
        elif self._base is not None and "readonly" in str(error):  # what it holds can still be read
            self._writes = False
            self._tell(f"The cache of features {self._path} cannot be written: {error}. Nothing is added to it.")
        else:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._close()
        self._tell(
            f"The cache of features {self._path} cannot be used: {error}. Features are computed without it; "
            "EBPL_CACHE names another folder."
        )

    def _tell(self, text: str) -> None:
        said, self._say = self._say, lambda text: None
        said(text)
