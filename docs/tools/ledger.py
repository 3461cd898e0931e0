"""The ledger's record as Markdown: what is in it, and one of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.tools.files import described
from ebpl.config.presets import preset
from experiments.cells import Cell

RECORD = {
    "data": "the name of the data, and a fingerprint of its images, labels and classes",
    "settings": "every setting of the run",
    "environment": "what it ran on: versions, commit, device, how many runs shared it",
    "result": "the run's `test_metrics.json`, see [the run directory](run-directory.md#test_metricsjson)",
    "details": "seed 0 only: the run's `details.npz` as base64, from which images and samples are drawn",
}
LONGEST = 3


def record() -> str:
    """What a record holds."""
    return described(RECORD, "entry")


def example(root: Path) -> str:
    """A record of the ledger, with long lists cut short; nothing where the ledger has none of them."""
    cell = Cell("blood", preset("standard", seed=1))
    for path in sorted((root / "results").glob("blood-ebpl-*.json")):
        each = json.loads(path.read_text(encoding="utf-8"))
        if cell.is_in(each):
            text = json.dumps(shortened(each), indent=2, ensure_ascii=False)
            return f"This is `results/{path.name}`, with long lists cut short:\n\n```json\n{text}\n```"
    return "The ledger holds no record to show."


def shortened(value: Any) -> Any:
    """Plain values with only the first of many in a list.

    >>> shortened({"a": [1, 2, 3, 4, 5]})
    {'a': [1, 2, 3, '... and 2 more']}
    """
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        rest = [f"... and {len(value) - LONGEST} more"] if len(value) > LONGEST else []
        return [shortened(each) for each in value[:LONGEST]] + rest
    return f"{value[:40]}..." if isinstance(value, str) and len(value) > 200 else value
