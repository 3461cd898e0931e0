"""Errors, each with a message that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebpl.runs import Run


class EbplError(Exception):
    """A problem the user can solve; its text says what is wrong, where, and what to do.

    The command line prints the text and exits with `exit_code`; it never shows a traceback for one of these.
    """

    exit_code = 1


class UsageError(EbplError, ValueError):
    """An option, a name or a value that does not exist or does not fit; a ValueError too, as Python calls them."""

    exit_code = 2


class DataError(EbplError, ValueError):
    """Images or labels that cannot be read or do not make a training set; a ValueError too, as Python calls them."""

    exit_code = 3


class RunError(EbplError):
    """A run directory that is missing, damaged, or in the way."""

    exit_code = 4


class SomeFailedError(RunError):
    """Some of several runs failed, after the others came to their ends.

    `runs` are all of them, `failures` holds errors by the run's path; the exit code is that of the first.
    """

    def __init__(self, runs: Sequence[Run], failures: Mapping[Path, Exception]) -> None:
        self.runs, self.failures = runs, failures
        reasons = [f"{path}: {_reason(error)}" for path, error in failures.items()]
        super().__init__("\n".join([f"{len(failures)} of {len(runs)} runs failed.", *reasons]))
        self.exit_code = getattr(next(iter(failures.values())), "exit_code", EbplError.exit_code)


def _reason(error: Exception) -> str:
    known = isinstance(error, EbplError)
    return str(error) if known else f"{type(error).__name__}: {error} (train.log has the whole trace)"


class DivergedError(EbplError):
    """Training diverged again after the last recovery that the settings allow."""

    exit_code = 5


class WriteError(EbplError):
    """A file that could not be written, for example on a full disk."""

    exit_code = 6


MEMORY_ADVICE = (
    "Lower --batch-size, --width, --image-size, consistency.batch_size or sgld.buffer_size, or close other programs."
)


def is_memory(error: BaseException | None) -> bool:
    """Whether Python, the CPU's allocator or the GPU's ran out of memory, here or in what led to this error."""
    if error is None:
        return False
    texts = ("out of memory", "not enough memory", "can't allocate memory")
    here = isinstance(error, MemoryError) or any(text in str(error).lower() for text in texts)
    return here or is_memory(error.__context__)


def number_of(count: int, one: str, many: str | None = None) -> str:
    """A number of things, in the singular or plural.

    >>> number_of(1, "image"), number_of(2, "image"), number_of(2, "image is", "images are")
    ('1 image', '2 images', '2 images are')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def some_of(items: Sequence[str], most: int, one: str = "more", many: str = "more") -> str:
    """The first of these words, and how many more there are; a single one more is named as well.

    >>> some_of(["a", "b", "c"], 2), some_of(["a", "b", "c", "d"], 2), some_of(["a"] * 4, 2, "other", "others")
    ('a, b, c', 'a, b and 2 more', 'a, a and 2 others')
    """
    if len(items) <= most + 1:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {number_of(len(items) - most, one, many)}"


def several(what: str, items: Sequence[str], shown: int = 10) -> str:
    """A text that lists the first few of what is wrong and counts the rest; a single one more is listed as well."""
    most = shown if len(items) > shown + 1 else shown + 1
    more = f"\n  ... and {len(items) - most} more" if len(items) > most else ""
    return what + ":\n  " + "\n  ".join(items[:most]) + more


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known words, or all of them when none is near."""
    known = sorted(set(known))
    near = difflib.get_close_matches(wrong, known, n=3, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Known: {', '.join(known)}."
