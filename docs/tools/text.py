"""Pieces of Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebpl.inference.model_card import markdown_table


def code(text: object) -> str:
    """Text as code.

    >>> code("a|b")
    '`a|b`'
    """
    return f"`{text}`"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose cells may hold a bar.

    >>> print(table(["a"], [["b|c"]]))
    | a |
    | --- |
    | b\\|c |
    """
    return markdown_table(heads, [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows])
