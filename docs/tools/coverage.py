"""The tables of `experiments.coverage` and `experiments.ensemble`, from `results/coverage/` and `results/ensemble/`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from docs.tools.results import unbroken
from docs.tools.run_files import described
from docs.tools.text import mean, records
from ebpl.calibration.conformal import METHODS
from ebpl.terminal import markdown_table
from experiments.table import title_of

Draws = dict[tuple[str, str, int], dict[str, list[float]]]
"""By data, way and number of labels: coverage and size of each draw of each seed."""
SHOWN = ("lac", "lac, semi-supervised")
FEW = 50
"""Labels at which the sizes of all ways are compared."""


def methods() -> str:
    """The scores that sets can be made by."""
    return described(METHODS, "`--set-method`")


def draws(root: Path) -> Draws:
    """What was measured, over all seeds."""
    found: Draws = {}
    for record in records(root, "coverage"):
        for way, counts in record["ways"].items():
            for count, rows in counts.items():
                kept = found.setdefault((record["data"]["name"], way, int(count)), {"coverage": [], "size": []})
                for name, values in rows.items():
                    kept[name] += values
    return found


def gaps(root: Path) -> str:
    """Coverage of draws of few labels, for the default and for its semi-supervised form."""
    found, wanted = draws(root), _wanted(root)
    lines = []
    for data, count in sorted({(data, count) for data, _, count in found}):
        for way in SHOWN:
            rows = found[data, way, count]
            coverage = 100 * np.array(rows["coverage"])
            gap = np.abs(coverage - wanted).mean()
            spread = f"{coverage.mean():.1f} ± {coverage.std(ddof=1):.1f}"
            size = f"{np.mean(rows['size']):.2f}"
            lines.append([data, str(count), way, str(len(coverage)), spread, f"{gap:.1f}", size])
    return unbroken(
        markdown_table(["data", "labels", "method", "draws", "coverage %", "mean distance, points", "mean size"], lines)
    )


def sizes(root: Path) -> str:
    """Mean size of the sets of every way, and their coverage."""
    found = draws(root)
    names = sorted({data for data, _, _ in found})
    lines = []
    for way in dict.fromkeys(way for _, way, _ in found):
        cells = [found.get((data, way, FEW)) for data in names]
        if not any(cells):
            continue
        shown = [f"{np.mean(c['size']):.2f} ({100 * np.mean(c['coverage']):.1f} %)" if c else "" for c in cells]
        lines.append([way, *shown])
    return unbroken(markdown_table(["method", *names], lines))


def farthest(root: Path) -> str:
    """How far the mean coverage over draws is from the promise at most, for each number of labels."""
    found, wanted = draws(root), _wanted(root)
    counts = sorted({count for _, _, count in found})
    lines = []
    for way in SHOWN:
        means = {(data, count): np.mean(rows["coverage"]) for (data, each, count), rows in found.items() if each == way}
        far = [max(abs(100 * mean - wanted) for (_, each), mean in means.items() if each == count) for count in counts]
        lines.append([way, *(f"{each:.1f}" for each in far)])
    return unbroken(markdown_table(["method", *(f"{count} labels" for count in counts)], lines))


def ensembles(root: Path) -> str:
    """Seeds on the same labels, each alone and together, from `results/ensemble/`."""
    metrics = {"accuracy": 100, "ece": 100, "overconfidence": 100, "nll": 1}
    lines = []
    for record in records(root, "ensemble"):
        members = list(record["members"].values())
        digits = {name: 1 if factor > 1 else 3 for name, factor in metrics.items()}
        alone = [mean([factor * each[name] for each in members], digits[name]) for name, factor in metrics.items()]
        together = [f"{factor * record['ensemble'][name]:.{digits[name]}f}" for name, factor in metrics.items()]
        lines.append([record["data"]["name"], f"each of {len(members)} seeds", *alone])
        lines.append([record["data"]["name"], "together", *together])
    return unbroken(markdown_table(["data", "model", *map(title_of, metrics)], lines))


def _wanted(root: Path) -> float:
    """The coverage that was promised, in percent."""
    (wanted,) = {record["coverage"] for record in records(root, "coverage")}
    return 100 * float(wanted)
