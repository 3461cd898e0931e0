"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebpl.measuring.summary import NAMES, as_number, in_words, spread
from ebpl.reporting.text import harmless

MOST_COLUMNS = 5
"""As many seeds as fit beside each other on a terminal of 80 columns."""


def measures_table(title: str, results: dict[str, dict[str, float]], shown: Sequence[str] = tuple(NAMES)) -> Any:
    """Measures as rows (all, or the ones named), one column a result."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(harmless(title)), title_justify="left")
    table.add_column("measure")
    for name in results:
        table.add_column(name, justify="right")
    for key in shown:
        table.add_row(NAMES[key], *[in_words(key, result[key]) for result in results.values()])
    return table


def seeds_table(title: str, results: dict[int, dict[str, float]]) -> Any:
    """Measures as rows, one column a seed (of many seeds the lowest and highest value), mean and standard deviation."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title += f", {len(results)} seed{'s' * (len(results) > 1)}"
    table = Table(
        title=Text(harmless(title)), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    many = len(results) > MOST_COLUMNS
    table.add_column("measure" if many else "measure, by seed")
    for name in ["lowest", "highest"] if many else results:
        table.add_column(str(name), justify="right")
    table.add_column("mean ± std", justify="right")
    for key, (mean, deviation) in spread(list(results.values())).items():
        values = [result[key] for result in results.values()]
        name, shown = as_number(key, *([min(values), max(values)] if many else values), mean, deviation)
        *shown, mean_text, deviation_text = shown
        table.add_row(
            name, *shown, mean_text + (f" ± {deviation_text}" if key != "images" and len(results) > 1 else "")
        )
    return table


def show(table: Any) -> None:
    """Print a table, on a terminal with lines and colours."""
    from rich.console import Console

    console = Console()
    console.print(table, highlight=False)
