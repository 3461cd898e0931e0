"""Which cells of an experiment have a record, which are missing, and what to know of those that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ebpl.methods import get_method
from ebpl.rng import seeds_in_words
from experiments.grid import Cell, found
from experiments.results_store import Record, in_doubt, recovered

Rows = list[list[str]]


def overview(cells: Sequence[Cell], records: Sequence[Record]) -> Rows:
    """For each dataset, method and form how many seeds are there, and which are missing."""

    def told(cell: Cell) -> tuple[str, ...]:
        few = str(cell.settings.data.labels_per_class or "paper's")
        return cell.data, get_method(cell.settings.method).title, cell.settings.curriculum.pseudo_labels, few

    return seeds_there(["data", "method", "pseudo-labels", "labels"], cells, records, told)


def seeds_there(
    heads: Sequence[str], cells: Sequence[Cell], records: Sequence[Record], told: Callable[[Cell], tuple[str, ...]]
) -> Rows:
    """A line for all cells that are told alike: how many of their seeds are there, and which are missing.

    Runs that recovered from a divergence, and those of which it is not certain which code they come from, are named in
    a last column, which is left out where there are none.
    """
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(told(cell), []).append(cell)
    there = dict(found(cells, records))
    lines = [[*heads, "seeds there", "missing", "remarks"]]
    for key, group in groups.items():
        missing = [cell.settings.seed for cell in group if cell not in there]
        own = {cell.settings.seed: there[cell] for cell in group if cell in there}
        lines.append([*key, str(len(own)), _words(missing), _remarks(own)])
    return lines if any(line[-1] for line in lines[1:]) else [line[:-1] for line in lines]


def _remarks(records: dict[int, Record]) -> str:
    """What to know of some records, by seed."""
    remarks: dict[str, list[int]] = {}
    for seed, record in records.items():
        for remark in (in_doubt(record), "recovered from divergence" if recovered(record) else None):
            if remark:
                remarks.setdefault(remark, []).append(seed)
    return "; ".join(f"{remark}: {_words(seeds)}" for remark, seeds in remarks.items())


def _words(seeds: Sequence[int]) -> str:
    return seeds_in_words(seeds).replace("_", ", ")
