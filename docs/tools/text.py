"""Pieces of Markdown for the documentation, and the records that its tables are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ebpl.metrics import spread
from ebpl.terminal import markdown_table
from experiments.table import Entry


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


def records(root: Path, folder: str) -> list[dict[str, Any]]:
    """All records of a folder of `results`, in the order of their file names."""
    return [json.loads(path.read_text("utf-8")) for path in sorted((root / "results" / folder).glob("*.json"))]


def mean(values: Sequence[float], decimals: int = 1) -> str:
    """Mean and standard deviation of a sample; no deviation where there is none.

    >>> mean([1.0, 2.0]), mean([3.0])
    ('1.5 ± 0.7', '3.0')
    """
    middle, deviation = spread([{"value": value} for value in values])["value"]
    return str(Entry(middle, deviation, len(values), decimals=decimals))


def _escaped(cell: str) -> str:
    parts = cell.split("`")  # every second one is code
    return "`".join(part if place % 2 else part.replace("|", "\\|") for place, part in enumerate(parts))
