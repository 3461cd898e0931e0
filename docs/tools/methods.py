"""The training methods, from their registry, and what others have published of them."""

from __future__ import annotations

import csv
from pathlib import Path

from docs.tools.text import code, table
from ebpl.methods import get_method, method_names


def methods() -> str:
    """Every method in a line."""
    rows = []
    for name in method_names():
        method = get_method(name)
        weights = "new ones" if method.reinitialise else "kept" if method.pseudo_labels else "no steps"
        rows.append([code(name), method.title, method.summary, "yes" if method.density else "no", weights])
    return table(["name", "in tables", "what it is", "energy model", "weights at each step"], rows)


def published(root: Path) -> str:
    """Accuracies of a public implementation, from the errors that it reports."""
    with (root / "experiments" / "published.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name != "method"]
    heads = [f"{data}, {labels} labels" for data, labels in (name.split("_") for name in names)]
    lines = [[get_method(row["method"]).title, *(_accuracy(row[name]) for name in names)] for row in rows]
    return table(["accuracy %, theirs", *heads], lines)


def _accuracy(error: str) -> str:
    mean, deviation = map(float, error.split("±"))
    return f"{100 - mean:.1f} ± {deviation:.1f}"
