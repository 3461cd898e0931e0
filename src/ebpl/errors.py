"""What can go wrong, told so that a person can act on it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EbplError(Exception):
    """A problem the user can solve; its text says what is wrong, where, and what to do.

    The command line prints the text and exits with `exit_code`; it never shows a traceback for one of these.
    """

    exit_code = 1


class UsageError(EbplError):
    """An option, a name or a value that does not exist or does not fit."""

    exit_code = 2


class DataError(EbplError):
    """Images or labels that cannot be read or do not make a training set."""

    exit_code = 3


class RunError(EbplError):
    """A run directory that is missing, damaged, or in the way."""

    exit_code = 4


class DivergedError(EbplError):
    """Training that ran away more often than the guard was allowed to heal."""

    exit_code = 5


class WriteError(EbplError):
    """A file that could not be written, for example on a full disk."""

    exit_code = 6


MEMORY_ADVICE = "Lower --batch-size, --buffer-size, --width or --image-size, or close other programs."


def is_memory(error: Exception) -> bool:
    """Whether Python, the CPU's allocator or the GPU's ran out of memory."""
    texts = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in texts)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known words, or all of them when none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(wrong, known, n=3, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Known: {', '.join(known)}."
