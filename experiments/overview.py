"""Which cells of an experiment have a record, which are missing, and what to know of those that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ebpl.methods import get_method
from ebpl.rng import seeds_in_words
from experiments.grid import LEAST_SEEDS, PAPER_METHODS, UNSEEN_SEEDS, Cell, found
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
        lines.append([*key, str(len(own)), listed_seeds(missing), _remarks(own)])
    return lines if any(line[-1] for line in lines[1:]) else [line[:-1] for line in lines]


def unseen(cells: Sequence[Cell], records: Sequence[Record]) -> tuple[list[Cell], str]:
    """The cells whose seeds no choice has seen, or all where too few of those are measured; and which seeds."""
    there = [cell for cell, record in found(cells, records) if record["result"].get("last")]
    new = [cell for cell in there if cell.settings.seed in UNSEEN_SEEDS]
    chosen = new if len(new) >= LEAST_SEEDS else there
    return chosen, listed_seeds(cell.settings.seed for cell in chosen)


def reported(cells: Sequence[Cell], records: Sequence[Record]) -> list[Cell]:
    """What is reported of several methods: the seeds that the paper's methods share and that no choice has seen.

    All cells of a dataset where there are too few of those. Without the paper's methods, those that all others share.
    """
    there: dict[str, dict[tuple[str, str], set[int]]] = {}
    for cell, _ in found(cells, records):
        group = cell.settings.method, cell.settings.curriculum.pseudo_labels
        there.setdefault(cell.data, {}).setdefault(group, set()).add(cell.settings.seed)
    shared = {}
    for data, groups in there.items():
        of_paper = [seeds for (method, _), seeds in groups.items() if method in PAPER_METHODS]
        shared[data] = set(UNSEEN_SEEDS).intersection(*(of_paper or groups.values()))
    enough = {data: seeds for data, seeds in shared.items() if len(seeds) >= LEAST_SEEDS}
    return [cell for cell in cells if cell.settings.seed in enough.get(cell.data, {cell.settings.seed})]


def _remarks(records: dict[int, Record]) -> str:
    """What to know of some records, by seed."""
    remarks: dict[str, list[int]] = {}
    for seed, record in records.items():
        for remark in (in_doubt(record), "recovered from divergence" if recovered(record) else None):
            if remark:
                remarks.setdefault(remark, []).append(seed)
    return "; ".join(f"{remark}: {listed_seeds(seeds)}" for remark, seeds in remarks.items())


def listed_seeds(seeds: Iterable[int]) -> str:
    """Seeds as people write them.

    >>> listed_seeds([3, 4, 5, 7])
    '3-5, 7'
    """
    return seeds_in_words(seeds).replace("_", ", ")
