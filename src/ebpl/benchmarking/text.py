"""Parts of a text that are made by a command."""

from __future__ import annotations

import re

from ebpl.errors import DataError


def between(text: str, begin: str, end: str, made: str) -> str:
    """The text with something else between two comments."""
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise DataError(f"There is no {begin} ... {end} in the README to put the tables into.")
    return pattern.sub(lambda _: f"{begin}\n{made}\n{end}", text)
