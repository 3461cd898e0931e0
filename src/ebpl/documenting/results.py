"""What was measured, as Markdown, from the ledger and the records of speed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ebpl.benchmarking import record as speeds
from ebpl.benchmarking.report import summary
from ebpl.experiments import beyond as past_the_paper
from ebpl.experiments import selection, table
from ebpl.experiments.cells import PAPER_DATASETS, Cell, cells
from ebpl.experiments.ledger import Record, load
from ebpl.experiments.readme import SHOWN, TABLES
from ebpl.reporting.text import markdown_table
from ebpl.settings import preset


def of_readme(root: Path, name: str) -> str:
    """A table of the ledger, as the README has it."""
    return TABLES[name](_records(root))


def table1(root: Path) -> str:
    """The same for the paper's table, with the three measures of a cell below each other."""
    return of_readme(root, "table1").replace(" / ", "<br>").replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def moments(root: Path) -> str:
    """What it costs to choose weights without labels."""
    rows = selection.rows(_cells(), _records(root))
    return markdown_table(rows[0], rows[1:]) if rows else "Not measured."


def distances(root: Path) -> str:
    """Our numbers minus the paper's, for the datasets that were measured."""
    measured = table.measured(_cells(), _records(root))
    datasets = [name for name in PAPER_DATASETS if any(key[-1] == name for key in measured)]
    return table.markdown(table.distances(datasets, measured))


def beyond(root: Path, experiment: str) -> str:
    """What an experiment past the paper has shown, without columns that are empty."""
    kept = [record for record in past_the_paper.records(root / "results") if record["experiment"] == experiment]
    if not kept:
        return "Not measured yet."
    columns = [column for column in zip(*past_the_paper.summary(kept), strict=True) if any(column[1:])][1:]
    heads, *rows = zip(*columns, strict=True)
    return markdown_table(heads, rows)


def speed(root: Path) -> str:
    """How fast training is, in short."""
    return summary(speeds.load(root / "benchmarks/records"))


@cache
def _records(root: Path) -> list[Record]:
    return load(root / "results")


def _cells() -> list[Cell]:
    return cells("table1", SHOWN, range(5), preset("standard"))
