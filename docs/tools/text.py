"""Pieces of Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebpl.terminal import markdown_table


def code(text: object) -> str:
    """Text as code.

    >>> code("a|b")
    '`a|b`'
    """
    return f"`{text}`"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose cells may hold a bar; in code it needs no escape.

    >>> print(table(["a"], [["b|c `d|e`"]]))
    | a |
    | --- |
    | b\\|c `d|e` |
    """
    return markdown_table(heads, [[_escaped(cell.replace("\n", " ")) for cell in row] for row in rows])


def _escaped(cell: str) -> str:
    parts = cell.split("`")  # every second one is code
    return "`".join(part if place % 2 else part.replace("|", "\\|") for place, part in enumerate(parts))
