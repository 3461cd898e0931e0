"""The paper's figures from the ledger, as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from ebpl.experiments.cells import FEW_LABELS, PSEUDO_LABELS, Cell
from ebpl.experiments.ledger import Record
from ebpl.files import write_bytes
from ebpl.measuring.summary import spread
from ebpl.methods import METHODS

COLORS = {"curriculum-labeling": "#c2693c", "ebpl": "#3b6fb6"}
LINES = {"none": ":", "hard": "--", "soft": "-"}
Found = list[tuple[Cell, Record]]


def _style(method: str, kind: str) -> dict[str, Any]:
    return {"color": COLORS[method], "linestyle": LINES[kind], "marker": "o", "capsize": 3}


def found(cells: Sequence[Cell], records: Sequence[Record]) -> Found:
    """The cells that have a record, with it."""
    pairs = ((cell, next((record for record in records if cell.is_in(record)), None)) for cell in cells)
    return [(cell, record) for cell, record in pairs if record is not None]


def labels_curve(data: str, pairs: Found) -> Any:
    """Accuracy and ECE against the number of labels a class; a line for each method and form of pseudo-labels."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8))
    for method in reversed(METHODS):
        for kind in PSEUDO_LABELS:
            points = []
            for few in FEW_LABELS:
                metrics = [
                    record["result"]["metrics"]
                    for cell, record in pairs
                    if (cell.data, cell.settings.method, cell.settings.pseudo_labels) == (data, method, kind)
                    and cell.settings.labels_per_class == few
                ]
                if metrics:
                    points.append((few, spread(metrics)))
            for axis, name in zip(axes, ("accuracy", "ece"), strict=True):
                if points:
                    x = [few for few, _ in points]
                    y, deviation = ([100 * values[name][i] for _, values in points] for i in (0, 1))
                    label = f"{METHODS[method].title}, {kind}"
                    axis.errorbar(x, y, deviation, label=label, **_style(method, kind))
    for axis, title in zip(axes, ("accuracy %", "ECE %"), strict=True):
        axis.set(xlabel="labels a class", ylabel=title, xticks=FEW_LABELS)
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(data)
    return figure


def reliability(data: str, pairs: Found) -> Any:
    """Accuracy in each bin of confidence for each method and form, over the images of all seeds together."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 6.4), sharex=True, sharey=True)
    for line, method in zip(axes, reversed(METHODS), strict=True):
        for axis, kind in zip(line, PSEUDO_LABELS, strict=True):
            chosen = [
                record["result"]
                for cell, record in pairs
                if (cell.data, cell.settings.method, cell.settings.pseudo_labels) == (data, method, kind)
            ]
            _bins(axis, chosen)
            title = f"{METHODS[method].title}, {kind}"
            if chosen:
                ece = spread([result["metrics"] for result in chosen])["ece"][0]
                title += f"\nECE {100 * ece:.1f} % (n = {len(chosen)})"
            axis.set_title(title, fontsize=10)
            axis.plot([0, 1], [0, 1], "--", color="#222222", linewidth=1)
            axis.set(xlim=(0, 1), ylim=(0, 1))
    for axis in axes[1]:
        axis.set_xlabel("confidence")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy")
    figure.suptitle(data)
    return figure


def _bins(axis: Any, results: Sequence[dict[str, Any]]) -> None:
    """Bars of accuracy, the gap to the mean confidence above or below, and bins without images hatched."""
    if not results:
        axis.text(0.5, 0.5, "not measured", ha="center", va="center", color="#888888")
        return
    for bins in zip(*(result["reliability"] for result in results), strict=True):
        low, high = bins[0]["above"], bins[0]["up_to"]
        place = {"x": (low + high) / 2, "width": high - low, "edgecolor": "white"}
        images = sum(each["images"] for each in bins)
        if not images:
            axis.bar(**{**place, "edgecolor": "#dddddd"}, height=1, facecolor="none", hatch="///")
            continue
        right, said = (
            sum(each["images"] * (each[name] or 0) for each in bins) / images for name in ("accuracy", "confidence")
        )
        axis.bar(**place, height=right, color="#3b6fb6")
        axis.bar(**place, height=said - right, bottom=right, color="#e08a94" if said > right else "#9cc0ea")


def pseudo_label_accuracy(data: str, pairs: Found) -> Any:
    """The share of right pseudo-labels at each step, for each method and form."""
    figure, axis = plt.subplots(figsize=(5, 3.8))
    for method in reversed(METHODS):
        for kind in ("hard", "soft"):
            chosen = [
                record["result"].get("pseudo_labels") or []
                for cell, record in pairs
                if (cell.data, cell.settings.method, cell.settings.pseudo_labels) == (data, method, kind)
            ]
            by_step = [
                {str(step["step"]): step["accuracy"] for step in steps if step["accuracy"] is not None}
                for steps in chosen
                if steps
            ]
            if by_step and all(each.keys() == by_step[0].keys() for each in by_step):
                values = spread(by_step)
                y, deviation = ([100 * value[i] for value in values.values()] for i in (0, 1))
                label = f"{METHODS[method].title}, {kind}"
                axis.errorbar([int(step) for step in values], y, deviation, label=label, **_style(method, kind))
    axis.set(xlabel="step", ylabel="right pseudo-labels %", title=data)
    if axis.has_data():
        axis.legend(fontsize=8, frameon=False)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


FIGURES: dict[str, dict[str, Callable[[str, Found], Any]]] = {
    "table1": {"reliability": reliability, "pseudo-labels": pseudo_label_accuracy},
    "labels": {"labels": labels_curve},
}


def draw(folder: Path, experiment: str, pairs: Found) -> list[Path]:
    """All figures of an experiment, for each dataset with a record."""
    written = []
    for data in dict.fromkeys(cell.data for cell, _ in pairs):
        for name, make in FIGURES[experiment].items():
            figure = make(data, pairs)
            figure.tight_layout()
            for kind in ("png", "svg"):
                drawn = io.BytesIO()
                figure.savefig(drawn, dpi=120, format=kind)
                written.append(folder / f"{experiment}-{name}-{data}.{kind}")
                write_bytes(written[-1], drawn.getbuffer())
            plt.close(figure)
    return written
