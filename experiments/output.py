"""Tables and figures of an experiment, made from the records alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ebpl.config import Settings
from ebpl.data import load
from ebpl.data.dataset import ImageSet
from ebpl.errors import EbplError
from ebpl.io import write_text
from ebpl.terminal import markdown_table
from experiments import ablation, parts, selection, table
from experiments.grid import LEAST_SEEDS, Cell, found, methods_of
from experiments.overview import reported, unseen
from experiments.results_store import Record

SELECTIONS = {
    "chosen": "Weights chosen by validation accuracy, as in the paper (30 % of the training images, with labels)",
    "last": "The last averaged weights: no label beyond the training ones was used",
}

LENGTH_OF_STEPS = (
    "The baseline begins every curriculum step with fresh weights, so its steps are as long as its initial training; "
    "EBPL keeps its weights and its steps are those of the preset."
)
SEEDS = (
    "Seeds are 3 to 7, which no choice of settings has seen, wherever both methods share three of them or more in "
    "every form."
)
SELECTING = """## What choosing without labels costs

Accuracy / ECE in per cent on the validation images, whose labels only the first column uses: the same runs, stopped at
moments that need no label."""


def write(
    folder: Path,
    experiment: str,
    cells: Sequence[Cell],
    records: Sequence[Record],
    settings: Settings,
    data_dir: Path | None = None,
    metrics: Sequence[str] = table.PAPER_METRICS,
) -> list[Path]:
    """Write everything there is to an experiment into the folder; returns the paths.

    Figures that show images of a dataset are left out where it is not on this machine, and all where matplotlib is not.
    """
    made = pages(experiment, cells, records, settings, metrics)
    for name, text in made.items():
        write_text(folder / name, text)
    written = [folder / name for name in made]
    try:
        from experiments.figures import draw
    except ImportError:
        print("No figures are drawn: they need matplotlib (pip install 'ebpl[experiments]').", file=sys.stderr)
        return written

    @cache
    def images(data: str) -> ImageSet | None:
        try:
            return load(data, data_dir=data_dir, download=False)
        except EbplError:
            return None

    return written + draw(folder, experiment, found(cells, records), images)


def pages(
    experiment: str,
    cells: Sequence[Cell],
    records: Sequence[Record],
    settings: Settings,
    metrics: Sequence[str] = table.PAPER_METRICS,
) -> dict[str, str]:
    """The text of everything that is written about an experiment, by file name."""
    if experiment == "table1":
        return tables(cells, records, metrics)
    if experiment == "best":
        return {"best.md": f"# Past the paper\n\n{SELECTIONS['last']}.\n\n{past_the_paper(cells, records)}\n"}
    if experiment == "parts":
        text = parts.markdown(cells, records)
        return {"parts.md": f"# What the parts of best are worth\n\n{SELECTIONS['last']}.\n\n{text}\n"}
    if experiment == "labels":
        text = table.markdown(table.few_labels(cells, records))
        about = f"{SELECTIONS['chosen']}; at the end, the last averaged weights. {LENGTH_OF_STEPS}"
        return {"labels.md": f"# One to five labels per class\n\n{about}\n\n{text}\n"}
    if experiment == "ablation":
        lines = ablation.rows(cells, records, settings)
        return {"ablation.md": f"# One thing changed at a time\n\n{ablation.markdown(lines)}\n"}
    return {}


def past_the_paper(cells: Sequence[Cell], records: Sequence[Record]) -> str:
    """EBPL's last weights, for which no label but the training labels was used, beside the paper's own best.

    Of seeds that no choice has seen, where there are enough of them.

    Where labels were held out to fit a temperature, a second line is of trainings without it.
    """
    shown: table.Rows = []
    for data in _datasets(cells):
        own = [cell for cell in cells if cell.data == data]
        fitted = [cell for cell in own if cell.settings.curriculum.calibration_holdout]
        plain = [Cell(data, cell.settings.changed(calibration_holdout=0.0)) for cell in fitted]
        for name, some in ((f"{data}, with a temperature" if fitted else data, own), (f"{data}, without", plain)):
            if some:
                chosen, seeds = unseen(some, records)
                head, line = table.against_the_paper([data], table.measured(chosen, records, "last"))
                shown = shown or [[head[0], "seeds", *head[1:]]]
                shown.append([name, seeds, *line[1:]])
    return table.markdown(shown)


def _datasets(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.data for cell in cells))


def tables(
    cells: Sequence[Cell], records: Sequence[Record], metrics: Sequence[str] = table.PAPER_METRICS
) -> dict[str, str]:
    """Table 1 in all its forms, by file name."""
    cells = reported(cells, records)
    datasets, methods = _datasets(cells), methods_of(cells)
    shown: dict[str, Any] = {"methods": methods, "metrics": metrics}
    made, parts = {}, []
    for which, title in SELECTIONS.items():
        entries = table.measured(cells, records, which)
        parts.append(f"## {title}\n\n{table.markdown(table.rows(datasets, entries, **shown))}\n")
        made[f"table1-{which}.csv"] = table.as_csv(datasets, entries, **shown)
        made[f"table1-{which}.tex"] = table.latex(table.rows(datasets, entries, (r"\textbf{", "}"), **shown)) + "\n"
    distances = table.distances(datasets, table.measured(cells, records), **shown)
    parts.append(f"## Distance to the paper: ours minus its\n\n{table.markdown(distances)}\n")
    if moments := selection.rows(cells, records):
        parts.append(f"{SELECTING}\n\n{markdown_table(moments[0], moments[1:])}\n")
    head = (
        "Ours: mean ± standard deviation over n seeds; in brackets the paper's, over 5. "
        f"Best in bold, where n is at least {LEAST_SEEDS}.\n\n{LENGTH_OF_STEPS} {SEEDS}"
    )
    return {"table1.md": "\n\n".join(["# Table 1", head, *parts]), **made}
