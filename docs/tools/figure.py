"""The figure of README.md: `python -m docs.tools.figure` draws it from the records in `results/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebpl.config.presets import preset
from ebpl.errors import DataError
from ebpl.reporting.charts import draw_reliability
from experiments.grid import Cell, found, settings_of
from experiments.results_store import Record, load

ROOT = Path(__file__).resolve().parents[2]
FIGURE = ROOT / "docs/assets/reliability.svg"
DATA, SEED = "blood", 3
"""The first seed of which there are records of all three."""
SHOWN = {
    "baseline": ("standard", "curriculum-labeling"),
    "EBPL": ("standard", "ebpl"),
    "EBPL, preset generative": ("generative", "ebpl"),
}
"""Titles, presets and methods; all with soft pseudo-labels and the same labels."""


def reliability(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """The bins of each diagram."""
    shown = {}
    for title, (name, method) in SHOWN.items():
        cell = Cell(DATA, settings_of(method, preset(name)).changed(seed=SEED, pseudo_labels="soft"))
        records_of_cell = [record for _, record in found([cell], records)]
        if not records_of_cell:
            raise DataError(f"There is no record of {cell} to draw.")
        shown[title] = records_of_cell[0]["result"]["reliability"]
    return shown


if __name__ == "__main__":
    print(draw_reliability(FIGURE, reliability(load(ROOT / "results"))))
