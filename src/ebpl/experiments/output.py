"""Tables and figures of an experiment, made from the ledger alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ebpl.data.images import ImageSet
from ebpl.data.load import load
from ebpl.errors import EbplError
from ebpl.experiments import table
from ebpl.experiments.cells import Cell, found
from ebpl.experiments.ledger import Record
from ebpl.files import write_text
from ebpl.methods import METHODS
from ebpl.seeds import seeds_in_words

SELECTIONS = {
    "chosen": "Weights chosen by validation accuracy, as in the paper (30 % of the training images, with labels)",
    "last": "The last averaged weights: no label beyond the training ones was used",
}


def write(
    folder: Path, experiment: str, cells: Sequence[Cell], records: Sequence[Record], data_dir: Path | None = None
) -> list[Path]:
    """Write everything there is to an experiment into the folder; returns the paths.

    Figures that show images of a dataset are left out where it is not on this machine.
    """
    from ebpl.experiments.figures import draw

    written = []
    if experiment == "table1":
        datasets = list(dict.fromkeys(cell.data for cell in cells))
        parts = []
        for which, title in SELECTIONS.items():
            entries = table.measured(cells, records, which)
            parts.append(f"## {title}\n\n{table.markdown(table.rows(datasets, entries))}\n")
            latex = table.latex(table.rows(datasets, entries, (r"\textbf{", "}")))
            for ending, text in (("csv", table.as_csv(datasets, entries)), ("tex", latex + "\n")):
                written.append(folder / f"table1-{which}.{ending}")
                write_text(written[-1], text)
        head = "Ours: mean ± standard deviation over n seeds; in brackets the paper's, over 5. Best in bold."
        written.append(folder / "table1.md")
        write_text(written[-1], "\n\n".join(["# Table 1", head, *parts]))

    @cache
    def images(data: str) -> ImageSet | None:
        try:
            return load(data, data_dir=data_dir)
        except EbplError:
            return None

    return written + draw(folder, experiment, found(cells, records), images)


def overview(cells: Sequence[Cell], records: Sequence[Record]) -> list[list[str]]:
    """For each dataset, method and form how many seeds are there, and which are missing."""
    lines = [["data", "method", "pseudo-labels", "labels", "seeds there", "missing"]]
    groups: dict[tuple[str, str, str, str], list[Cell]] = {}
    for cell in cells:
        few = str(cell.settings.labels_per_class or "paper's")
        title = METHODS[cell.settings.method].title
        groups.setdefault((cell.data, title, cell.settings.pseudo_labels, few), []).append(cell)
    there = {cell for cell, _ in found(cells, records)}
    for key, group in groups.items():
        missing = [cell.settings.seed for cell in group if cell not in there]
        lines.append([*key, str(len(group) - len(missing)), seeds_in_words(missing).replace("_", ", ")])
    return lines
