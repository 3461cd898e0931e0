"""How the cost of a training step grows, as a figure."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import Record, Row
from ebpl.io import write_bytes

SWEEPS = {
    "sgld_steps": "SGLD steps K",
    "batch_size": "batch size",
    "image_size": "image size, pixels",
    "images": "training images",
}
OURS, REFERENCE = "#3b6fb6", "#888888"


def sweep(record: Record, name: str) -> list[tuple[int, Row, Row]]:
    """The values that were tried of one thing, in order, each with the reference's row and ours."""
    chosen = [row for row in record["rows"] if row["varied"] in (name, "base")]
    values = sorted({row[name] for row in chosen})
    rows = {(row[name], row["loop"]): row for row in chosen}
    return [(value, rows[value, "reference"], rows[value, "ebpl"]) for value in values]


def drawn(records: Sequence[Record]) -> Record | None:
    """The record that is drawn: the first that followed the cost."""
    return next((record for record in records if record["options"]["scaling"]), None)


def digest(record: Record) -> str:
    """Tells from which numbers a figure was drawn; it is kept in the figure."""
    return hashlib.sha256(json.dumps(record["rows"], sort_keys=True).encode()).hexdigest()[:16]


def draw(path: Path, records: Sequence[Record]) -> None:
    """Four panels: milliseconds a step against K, batch, image size and number of images."""
    if (record := drawn(records)) is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(13, 3.6))
    for axis, name in zip(axes, SWEEPS, strict=True):
        _panel(axis, record, name)
    axes[0].set_ylabel("milliseconds a training step")
    axes[0].legend(frameon=False)
    options = record["options"]
    figure.suptitle(
        f"WRN-{options['scaling']} on {record['machine']['name']}; where not varied K = {options['sgld_steps']}, "
        f"batch {options['batch_size']}, {options['image_size']} × {options['image_size']}, 10,000 images",
        fontsize=10,
    )
    figure.tight_layout()
    image = io.BytesIO()
    figure.savefig(image, dpi=120, format="png", metadata={"Source": digest(record)})
    plt.close(figure)
    write_bytes(path, image.getbuffer())


def _panel(axis: Any, record: Record, name: str) -> None:
    points = sweep(record, name)
    for loop, colour, rows in (
        ("reference", REFERENCE, [(value, theirs) for value, theirs, _ in points]),
        ("ebpl", OURS, [(value, ours) for value, _, ours in points]),
    ):
        measured = [(value, row) for value, row in rows if not row["failed"]]
        x = [value for value, _ in measured]
        y = [row["milliseconds"] for _, row in measured]
        least = [row["milliseconds"] - min(row["times"]) for _, row in measured]
        most = [max(row["times"]) - row["milliseconds"] for _, row in measured]
        axis.errorbar(x, y, [least, most], color=colour, marker="o", markersize=4, capsize=2, label=loop)
    axis.set_xlabel(SWEEPS[name])
    axis.set_ylim(bottom=0)
    if name == "images":
        axis.set_xscale("log")
    else:
        axis.set_xlim(left=0)
        axis.set_xticks([value for value, _, _ in points])
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
