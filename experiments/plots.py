"""Figures, drawn with matplotlib without a screen."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from ebpl.io import write_bytes
from ebpl.metrics.calibration import Floats, Labels, expected_calibration_error, reliability
from ebpl.metrics.classification import accuracy

ACCURACY, OVER, UNDER, IDEAL = "#3b6fb6", "#e08a94", "#9cc0ea", "#222222"


def reliability_diagram(path: Path, results: dict[str, tuple[Floats, Labels]], bins: int = 15) -> None:
    """Accuracy against confidence for each result, side by side, with the number of images in each bin below.

    `results` maps a title to probabilities and true labels. Bins without images are hatched, not drawn as zero.
    """
    figure, axes = plt.subplots(
        2, len(results), figsize=(4.4 * len(results), 5.8), squeeze=False, sharex=True, height_ratios=[3, 1]
    )
    for column, (title, (probabilities, labels)) in enumerate(results.items()):
        known = labels >= 0
        _panel(axes[0, column], axes[1, column], title, probabilities[known], labels[known], bins)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=2, fontsize=9, frameon=False)
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("images")
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    plt.close(figure)
    write_bytes(path, drawn.getbuffer())


def _panel(top: Any, bottom: Any, title: str, probabilities: Floats, labels: Labels, bins: int) -> None:
    found = reliability(probabilities, labels, bins)
    width = 1 / bins
    centers = found.edges[:-1] + width / 2
    filled = found.counts > 0
    x, right, said = centers[filled], found.accuracy[filled], found.confidence[filled]
    top.bar(centers[~filled], 1, width, facecolor="none", edgecolor="#dddddd", hatch="///", label="no images")
    top.bar(x, right, width, color=ACCURACY, edgecolor="white", label="accuracy")
    over = np.maximum(said - right, 0)
    under = np.maximum(right - said, 0)
    top.bar(x, over, width, right, color=OVER, edgecolor="white", label="missing to the confidence: over-confident")
    top.bar(x, under, width, said, color=UNDER, edgecolor="white", label="accuracy beyond it: under-confident")
    top.plot([0, 1], [0, 1], "--", color=IDEAL, linewidth=1, label="perfect")
    error = expected_calibration_error(probabilities, labels, bins)
    top.set_title(f"{title}\naccuracy {100 * accuracy(probabilities, labels):.1f} %, ECE {100 * error:.1f} %")
    top.set(xlim=(0, 1), ylim=(0, 1))
    bottom.bar(centers, found.counts, width, color="#888888", edgecolor="white")
    bottom.set(xlabel="confidence", xlim=(0, 1))
