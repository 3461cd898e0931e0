"""Tables and figures of an experiment, made from the ledger alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from ebpl.config import Settings
from ebpl.data import load
from ebpl.data.dataset import ImageSet
from ebpl.errors import EbplError
from ebpl.io import write_text
from ebpl.methods import METHODS
from ebpl.reporting.model_card import markdown_table
from ebpl.rng import seeds_in_words
from experiments import ablation, selection, table
from experiments.cells import Cell, found
from experiments.ledger import Record

SELECTIONS = {
    "chosen": "Weights chosen by validation accuracy, as in the paper (30 % of the training images, with labels)",
    "last": "The last averaged weights: no label beyond the training ones was used",
}

SELECTING = """## What choosing without labels costs

Accuracy / ECE in per cent on the validation images, whose labels only the first column uses: the same runs, stopped at
moments that can be told without any label."""


def write(
    folder: Path,
    experiment: str,
    cells: Sequence[Cell],
    records: Sequence[Record],
    settings: Settings,
    data_dir: Path | None = None,
) -> list[Path]:
    """Write everything there is to an experiment into the folder; returns the paths.

    Figures that show images of a dataset are left out where it is not on this machine.
    """
    from experiments.figures import draw

    pages = {}
    if experiment == "table1":
        pages = tables(cells, records)
    elif experiment == "best":
        pages = {"best.md": f"# Past the paper\n\n{SELECTIONS['last']}.\n\n{past_the_paper(cells, records)}\n"}
    elif experiment == "ablation":
        lines = ablation.rows(cells, records, settings)
        pages = {"ablation.md": f"# One thing changed at a time\n\n{ablation.markdown(lines)}\n"}
    for name, text in pages.items():
        write_text(folder / name, text)

    @cache
    def images(data: str) -> ImageSet | None:
        try:
            return load(data, data_dir=data_dir)
        except EbplError:
            return None

    return [folder / name for name in pages] + draw(folder, experiment, found(cells, records), images)


def past_the_paper(cells: Sequence[Cell], records: Sequence[Record]) -> str:
    """EBPL's last weights, for which no label but the training labels was used, beside the paper's own best."""
    return table.markdown(table.against_the_paper(_datasets(cells), table.measured(cells, records, "last")))


def _datasets(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.data for cell in cells))


def tables(cells: Sequence[Cell], records: Sequence[Record]) -> dict[str, str]:
    """Table 1 in all its forms, by file name."""
    datasets = _datasets(cells)
    made, parts = {}, []
    for which, title in SELECTIONS.items():
        entries = table.measured(cells, records, which)
        parts.append(f"## {title}\n\n{table.markdown(table.rows(datasets, entries))}\n")
        made[f"table1-{which}.csv"] = table.as_csv(datasets, entries)
        made[f"table1-{which}.tex"] = table.latex(table.rows(datasets, entries, (r"\textbf{", "}"))) + "\n"
    distances = table.distances(datasets, table.measured(cells, records))
    parts.append(f"## Distance to the paper: ours minus its\n\n{table.markdown(distances)}\n")
    if moments := selection.rows(cells, records):
        parts.append(f"{SELECTING}\n\n{markdown_table(moments[0], moments[1:])}\n")
    head = "Ours: mean ± standard deviation over n seeds; in brackets the paper's, over 5. Best in bold."
    return {"table1.md": "\n\n".join(["# Table 1", head, *parts]), **made}


def overview(cells: Sequence[Cell], records: Sequence[Record]) -> list[list[str]]:
    """For each dataset, method and form how many seeds are there, and which are missing."""

    def told(cell: Cell) -> tuple[str, ...]:
        few = str(cell.settings.data.labels_per_class or "paper's")
        return cell.data, METHODS[cell.settings.method].title, cell.settings.curriculum.pseudo_labels, few

    return seeds_there(["data", "method", "pseudo-labels", "labels"], cells, records, told)


def seeds_there(
    heads: Sequence[str], cells: Sequence[Cell], records: Sequence[Record], told: Callable[[Cell], tuple[str, ...]]
) -> list[list[str]]:
    """A line for all cells that are told alike: how many of their seeds are there, and which are missing."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(told(cell), []).append(cell)
    there = {cell for cell, _ in found(cells, records)}
    lines = [[*heads, "seeds there", "missing"]]
    for key, group in groups.items():
        missing = [cell.settings.seed for cell in group if cell not in there]
        lines.append([*key, str(len(group) - len(missing)), seeds_in_words(missing).replace("_", ", ")])
    return lines
