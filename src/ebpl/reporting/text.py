"""Text that commands make: Markdown tables, the parts of a page that stand between two comments, and harmless names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ebpl.errors import DataError


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Heads and rows as a Markdown table.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *rows])


def literal(text: object) -> str:
    """Somebody's text as Markdown that shows it as it is: nothing in it is markup, and it stays on one line.

    >>> print(literal("<b>a|b_c</b>"))
    \\<b\\>a\\|b\\_c\\</b\\>
    """
    one_line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", one_line)


def between(text: str, begin: str, end: str, made: str) -> str:
    """The text with something else between two comments."""
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise DataError(f"There is no {begin} ... {end} in the README to put the tables into.")
    return pattern.sub(lambda _: f"{begin}\n{made}\n{end}", text)


_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]")


def harmless(text: str) -> str:
    """The text with control characters spelt out: names from outside must not move a terminal's cursor.

    >>> print(harmless("clear \\x1b[2J"))
    clear \\x1b[2J
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
