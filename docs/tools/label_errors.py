"""The tables of `experiments.label_errors`, from `results/label_errors/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from docs.tools.results import unbroken
from docs.tools.text import mean, records
from ebpl.terminal import markdown_table

FEATURES = {
    "plain": "colours and textures",
    "encoder": "these and an encoder's features",
    "network": "these and the network's",
}
"""What labels were judged by, as the table calls it; else the name of the encoder."""


def rows(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Data and measurements of all records."""
    for record in records(root, "label_errors"):
        yield from ((record["data"]["name"], row) for row in record["rows"])


def found(root: Path) -> str:
    """How many exchanged labels are in the first tenth of the list."""
    shares: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for data, row in rows(root):
        if "found" in row:
            count = str(row.get("labels_per_class", "all"))
            kinds = shares.setdefault((data, FEATURES.get(row["features"], row["features"]), count), {})
            kinds.setdefault(row["kind"], []).append(100 * row["found"] / row["exchanged"])
    lines = [
        [data, features, count, str(len(kinds["random"])), *(mean(kinds[kind]) for kind in ("random", "confusable"))]
        for (data, features, count), kinds in sorted(
            shares.items(), key=lambda each: (each[0][0], len(each[0][2]), each[0])
        )
    ]
    heads = ["data", "judged by", "labels a class", "n", "any other class %", "the class it is taken for %"]
    return unbroken(markdown_table(heads, lines))


def gains(root: Path) -> str:
    """What 50 more labels brought, and how often that was in the interval."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for data, row in rows(root):
        if "gain" in row:
            cells.setdefault((data, row["labels"]), []).append(row)
    lines = []
    for (data, labels), each in sorted(cells.items()):
        held = sum(row["interval"][0] <= row["gain"] <= row["interval"][1] for row in each)
        width = np.mean([row["interval"][1] - row["interval"][0] for row in each])
        told, brought = (mean([100 * row[name] for row in each]) for name in ("predicted", "gain"))
        lines.append([data, str(labels), told, brought, f"{100 * width:.1f}", f"{held} of {len(each)}"])
    return unbroken(
        markdown_table(["data", "labels", "predicted gain", "gain", "width of the interval", "gain in it"], lines)
    )
