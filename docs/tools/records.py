"""Result records: what a record holds, and one of ours as an example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.tools.run_files import described
from ebpl.config.presets import preset
from experiments.grid import Cell
from experiments.results_store import modern_record

RECORD = {
    "data": "name of the data, and a fingerprint of its images, labels and classes",
    "settings": "every setting of the run",
    "environment": "versions, commit, device, and how many runs shared the device",
    "result": "the run's `test_metrics.json`, see [the run directory](run-directory.md#test_metricsjson)",
    "details": "seed 0 only: the run's `details.npz` as base64, which figures of single images are drawn from",
}
LONGEST = 3


def record() -> str:
    """The entries of a record."""
    return described(RECORD, "entry")


def example(root: Path) -> str:
    """A record of this repository, with long lists cut short."""
    cell = Cell("blood", preset("standard", seed=3))
    for path in sorted((root / "results").glob("blood-ebpl-*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if cell.is_in(modern_record(stored)):
            text = json.dumps(shortened(stored), indent=2, ensure_ascii=False)
            return f"This is `results/{path.name}`, with long lists cut short:\n\n```json\n{text}\n```"
    return "There is no record to show."


def shortened(value: Any) -> Any:
    """Plain values with only the first entries of long lists.

    >>> shortened({"a": [1, 2, 3, 4, 5]})
    {'a': [1, 2, 3, '... and 2 more']}
    """
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        rest = [f"... and {len(value) - LONGEST} more"] if len(value) > LONGEST else []
        return [shortened(each) for each in value[:LONGEST]] + rest
    return f"{value[:40]}..." if isinstance(value, str) and len(value) > 200 else value
