"""What it costs to choose weights without validation labels: the same runs, stopped at moments that need none."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ebpl.config import Settings
from ebpl.config.compat import RETIRED
from ebpl.methods import get_method
from experiments.grid import PSEUDO_LABELS, Cell, found, methods_of
from experiments.results_store import Record, recovered
from experiments.table import count

BY_LABELS = "best validation accuracy"


def moments(record: Record) -> dict[str, int]:
    """Epochs, counted from 0, at which the weights may be taken; only the first one needs labels to be found."""
    stored = {name: value for name, value in record["settings"].items() if name not in RETIRED}
    settings = Settings().changed(stored)
    accuracy = record["result"]["curves"]["validation_accuracy"]
    ends = {"end of the initial training": settings.optim.epochs - 1}
    if settings.curriculum.pseudo_labels != "none":
        for step in range(1, settings.curriculum.steps + 1):
            ends[f"end of step {step}"] = settings.optim.epochs + step * settings.curriculum.epochs - 1
    return {BY_LABELS: accuracy.index(max(accuracy)), **ends}


def rows(cells: Sequence[Cell], records: Sequence[Record]) -> list[list[str]]:
    """Validation accuracy and ECE at each moment, mean over seeds, for each dataset, method and form."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for cell, record in found(cells, records):
        if "validation_accuracy" in record["result"].get("curves", {}):
            key = (cell.data, cell.settings.method, cell.settings.curriculum.pseudo_labels)
            groups.setdefault(key, []).append(record)
    lines = []
    for data in dict.fromkeys(key[0] for key in groups):
        for method in methods_of(cells):
            for kind in PSEUDO_LABELS[1:]:
                if group := groups.get((data, method, kind)):
                    means = {name: _mean(group, name) for name in moments(group[0])}
                    seeds = count(len(group), sum(map(recovered, group)))
                    lines.append([data, get_method(method).title, kind, seeds, *means.values()])
                    heads = ["data", "method", "pseudo-labels", "n", *means]
    return [heads, *lines] if lines else []


def _mean(group: Sequence[Record], moment: str) -> str:
    """Accuracy / ECE in per cent."""
    values = []
    for name in ("validation_accuracy", "validation_ece"):
        values.append(fmean(record["result"]["curves"][name][moments(record)[moment]] for record in group))
    return " / ".join(f"{100 * value:.1f}" for value in values)
