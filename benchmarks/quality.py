"""Results before and after work on speed, side by side: faster must not mean worse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebpl.metrics import spread
from ebpl.terminal import markdown_table
from experiments.readme import between
from experiments.results_store import DIVERGENCE, Record, identity, load, recovered
from experiments.table import PAPER_METRICS, title_of

BEGIN, END = "<!-- quality -->", "<!-- end: quality -->"


def fill(text: str, root: Path) -> str:
    """The text with the table between the two comments made anew from `benchmarks/before` and `results`."""
    table = comparison(load(root / "benchmarks/before"), load(root / "results"))
    return between(text, BEGIN, END, table)


def comparison(before: Sequence[Record], now: Sequence[Record]) -> str:
    """The seeds of both folders for each experiment that was measured before, with mean and standard deviation."""
    lines = []
    experiments = {json.dumps(_experiment(record), sort_keys=True): _experiment(record) for record in before}
    for _, (data, settings) in sorted(experiments.items()):
        for when, records in (("before", before), ("now", now)):
            chosen = sorted(
                (r for r in records if _experiment(r) == (data, settings)), key=lambda r: int(r["settings"]["seed"])
            )
            start = [data, settings["curriculum.pseudo_labels"], when]
            for record in chosen:
                metrics = record["result"]["metrics"]
                seed = f"{record['settings']['seed']}{' (recovered)' if recovered(record) else ''}"
                lines.append([*start, seed, *(f"{100 * metrics[name]:.1f}" for name in PAPER_METRICS)])
            if len(chosen) > 1:
                found = spread([record["result"]["metrics"] for record in chosen])
                numbers = [f"{100 * found[name][0]:.1f} ± {100 * found[name][1]:.1f}" for name in PAPER_METRICS]
                lines.append([*start, "mean ± std", *numbers])
    return markdown_table(["data", "pseudo-labels", "when", "seed", *map(title_of, PAPER_METRICS)], lines)


def _experiment(record: Record) -> tuple[str, dict[str, Any]]:
    """The dataset, and all that was set but the seed."""
    settings = identity(record["settings"]).items()
    return record["data"]["name"], {name: value for name, value in settings if name not in {"seed", *DIVERGENCE}}
