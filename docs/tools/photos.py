"""The table of `experiments.photos`: probes and EBPL on the features of an encoder, from `results/photos/`."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from docs.tools.results import unbroken
from docs.tools.text import mean
from ebpl.terminal import markdown_table
from experiments.photos import recorded
from experiments.table import title_of

METRICS = {"accuracy": 100, "f_score": 100, "ece": 100, "nll": 1}
"""What is shown, and the factor to its unit."""


def comparison(root: Path) -> str:
    """A row for each dataset, number of labels and way to learn: mean and standard deviation over seeds."""
    groups = recorded(root / "results/photos")
    lines = []
    for (data, labels, way), seeds in sorted(groups.items(), key=lambda group: group[0][:2]):
        numbers = [
            mean([factor * each[name] for each in seeds], 1 if factor > 1 else 2) for name, factor in METRICS.items()
        ]
        seconds = median(each["seconds"] for each in seeds)
        lines.append([data, str(labels), way, str(len(seeds)), *numbers, f"{seconds:.{1 if seconds < 10 else 0}f}"])
    heads = ["data", "labels a class", "learned by", "n", *map(title_of, METRICS), "seconds, median"]
    return unbroken(markdown_table(heads, lines))
