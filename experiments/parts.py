"""What energies and pseudo-labels are worth in the preset `best`: trainings with and without each, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence

from ebpl.metrics import METRICS, spread
from ebpl.terminal import markdown_table
from experiments.grid import PARTS_METHODS, PARTS_PSEUDO_LABELS, Cell, found
from experiments.results_store import Record, recovered
from experiments.table import averaged, count, title_of

SHOWN = ("accuracy", "f_score", "ece", "nll", "brier", "aurc")
WITH, WITHOUT = PARTS_METHODS
NONE, SOFT = PARTS_PSEUDO_LABELS
ROWS = {
    (WITH, SOFT): "energies and pseudo-labels",
    (WITHOUT, SOFT): "pseudo-labels",
    (WITH, NONE): "energies",
    (WITHOUT, NONE): "neither",
}
PAIRS = {
    "energies, with pseudo-labels": ((WITH, SOFT), (WITHOUT, SOFT)),
    "energies, without pseudo-labels": ((WITH, NONE), (WITHOUT, NONE)),
    "pseudo-labels, with energies": ((WITH, SOFT), (WITH, NONE)),
    "pseudo-labels, without energies": ((WITHOUT, SOFT), (WITHOUT, NONE)),
}
Kind = tuple[str, str]
"""A method and a form of pseudo-labels."""
Measured = dict[str, dict[Kind, dict[int, Record]]]
"""Records by dataset, kind and seed."""
Rows = list[list[str]]


def measured(cells: Sequence[Cell], records: Sequence[Record]) -> Measured:
    """The records of these cells that have last weights."""
    made: Measured = {}
    for cell, record in found(cells, records):
        if record["result"].get("last"):
            kind = (cell.settings.method, cell.settings.curriculum.pseudo_labels)
            made.setdefault(cell.data, {}).setdefault(kind, {})[cell.settings.seed] = record
    return made


def rows(made: Measured) -> Rows:
    """A line for each dataset and kind: metrics of the last averaged weights over its seeds."""
    lines = [["data", "with", "n", *map(title_of, SHOWN)]]
    for data, kinds in made.items():
        for kind, name in ROWS.items():
            if own := list(kinds.get(kind, {}).values()):
                values = averaged([_metrics(record) for record in own])
                shown = [str(values[metric]) for metric in SHOWN]
                lines.append([data, name, count(len(own), sum(map(recovered, own))), *shown])
    return lines


def differences(made: Measured, parts: Sequence[str] = tuple(PAIRS), metrics: Sequence[str] = SHOWN) -> Rows:
    """A line for each dataset and part: what adding it changes, over the seeds that both trainings have.

    In brackets: in how many of them it is better.
    """
    lines = [["data", "added", "n", *map(title_of, metrics)]]
    for data, kinds in made.items():
        for name in parts:
            one, other = PAIRS[name]
            seeds = sorted(kinds.get(one, {}).keys() & kinds.get(other, {}).keys())
            pairs = [(_metrics(kinds[one][seed]), _metrics(kinds[other][seed])) for seed in seeds]
            if pairs:
                lines.append([data, name, str(len(seeds)), *(_difference(pairs, metric) for metric in metrics)])
    return lines


def _difference(pairs: Sequence[tuple[dict[str, float], dict[str, float]]], metric: str) -> str:
    changes = [one[metric] - other[metric] for one, other in pairs]
    scale, decimals = (100, 1) if METRICS[metric].percent else (1, 3)
    mean, deviation = spread([{"change": scale * change} for change in changes])["change"]
    better = sum((change < 0) if METRICS[metric].lower_is_better else (change > 0) for change in changes)
    around = f" ± {deviation:.{decimals}f}" if len(changes) > 1 else ""
    return f"{mean:+.{decimals}f}{around} ({better} of {len(changes)})"


def _metrics(record: Record) -> dict[str, float]:
    values: dict[str, float] = record["result"]["last"]["metrics"]
    return values


def markdown(cells: Sequence[Cell], records: Sequence[Record]) -> str:
    """Both tables, or that nothing was measured."""
    made = measured(cells, records)
    if not made:
        return "Not measured yet."
    first, second = (markdown_table(lines[0], lines[1:]) for lines in (rows(made), differences(made)))
    between = "What adding a part changes, paired by seed; in brackets, in how many seeds it is better:"
    return f"{first}\n\n{between}\n\n{second}"
