"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebpl.measuring.summary import NAMES, in_words


def measures_table(title: str, results: dict[str, dict[str, float]], shown: Sequence[str] = tuple(NAMES)) -> Any:
    """Measures as rows (all, or the ones named), one column a result."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    for name in results:
        table.add_column(name, justify="right")
    for key in shown:
        table.add_row(NAMES[key], *[in_words(key, result[key]) for result in results.values()])
    return table


def show(table: Any) -> None:
    """Print a table, on a terminal with lines and colours."""
    from rich.console import Console

    console = Console()
    console.print(table, highlight=False)
