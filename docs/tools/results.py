"""What was measured, as Markdown, from the ledger and the records of speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import record as speeds
from benchmarks.report import summary
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.reporting.model_card import markdown_table
from experiments import ablation, selection, table
from experiments import beyond as past_the_paper
from experiments.cells import PAPER_DATASETS, Cell, cells
from experiments.ledger import Record, load
from experiments.readme import SHOWN, TABLES


def of_readme(root: Path, name: str) -> str:
    """A table of the ledger, as the README has it."""
    return TABLES[name](_records(root))


def table1(root: Path) -> str:
    """The same for the paper's table, with the three measures of a cell below each other."""
    return together(of_readme(root, "table1").replace(" / ", "<br>"))


def together(table: str) -> str:
    """A table in which a mean and its deviation stay on one line."""
    return table.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def moments(root: Path) -> str:
    """What it costs to choose weights without labels."""
    rows = selection.rows(_cells(), _records(root))
    return markdown_table(rows[0], rows[1:]) if rows else "Not measured."


def distances(root: Path) -> str:
    """Our numbers minus the paper's, for the datasets that were measured."""
    measured = table.measured(_cells(), _records(root))
    datasets = [name for name in PAPER_DATASETS if any(key[-1] == name for key in measured)]
    return table.markdown(table.distances(datasets, measured))


def ablated(root: Path, settings: Settings, datasets: Sequence[str] | None = None) -> str:
    """What each part of these settings is worth."""
    chosen = cells("ablation", datasets, range(5), settings)
    return together(ablation.markdown(ablation.rows(chosen, _records(root), settings)))


def explored(root: Path, search: str) -> str:
    """What was tried on one seed while looking for improvements: the last weights' accuracy and ECE."""
    tried = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((root / "results/explored" / search).glob("*.json"))
    ]
    names = list(dict.fromkeys(name for each in tried for name in each["variants"]))
    heads = ["changed", *(f"{each['data']}, seed {each['seed']}" for each in tried)]
    lines = [
        [_changed(name, tried), *(_accuracy_and_ece(each["variants"].get(name, {})) for each in tried)]
        for name in names
    ]
    begun = f"From `{tried[0]['preset']}` with {_settings(tried[0]['base'])}, {tried[0]['updates']:,} updates:"
    return f"{begun}\n\n{markdown_table(heads, lines)}"


def _changed(name: str, tried: Sequence[dict[str, Any]]) -> str:
    variant = next(each["variants"][name] for each in tried if name in each["variants"])
    longer = f", {variant['updates']:,} updates" if "updates" in variant else ""
    return (_settings(variant["changes"]) or "nothing") + longer


def _settings(changes: dict[str, Any]) -> str:
    return ", ".join(f"`{key}` {value}" for key, value in changes.items())


def _accuracy_and_ece(variant: dict[str, Any]) -> str:
    if not variant:
        return ""
    more = [variant["on"]] if "on" in variant else []
    if "overconfidence" in variant:
        more.append("too sure" if variant["overconfidence"] > 0 else "too unsure")
    told = f" ({', '.join(more)})" if more else ""
    return f"{100 * variant['accuracy']:.1f} / {100 * variant['ece']:.1f}{told}"


def beyond(root: Path, experiment: str) -> str:
    """What an experiment past the paper has shown, without columns that are empty."""
    kept = [record for record in past_the_paper.records(root / "results") if record["experiment"] == experiment]
    if not kept:
        return "Not measured yet."
    heads, *rows = past_the_paper.compact(past_the_paper.summary(kept))
    if heads[0] == "experiment":  # the same in all rows
        heads, rows = heads[1:], [row[1:] for row in rows]
    return markdown_table(heads, rows)


def speed(root: Path) -> str:
    """How fast training is, in short."""
    return summary(speeds.load(root / "benchmarks/records"))


@cache
def _records(root: Path) -> list[Record]:
    return load(root / "results")


def _cells() -> list[Cell]:
    return cells("table1", SHOWN, range(5), preset("standard"))
