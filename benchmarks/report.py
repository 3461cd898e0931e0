"""What records say, as tables and a figure: `python -m benchmarks.report` writes those of `benchmarks/` anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import quality
from benchmarks.figure import SWEEPS, draw, sweep
from benchmarks.record import Record, Row, load
from ebpl.io import write_text
from ebpl.terminal import markdown_table
from experiments.readme import between

BEGIN, END = "<!-- benchmarks -->", "<!-- end: benchmarks -->"


@dataclass(frozen=True)
class Table:
    """A title, the heads of the columns, and rows of text."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def tables(record: Record) -> list[Table]:
    """Training steps, how their cost grows, and prediction; a table without rows is left out."""
    found = [_training(record), _floors(record), _scaling(record), _prediction(record)]
    return [table for table in found if table.rows]


def _training(record: Record) -> Table:
    options = record["options"]
    size = options["image_size"]
    title = f"Training step: K = {options['sgld_steps']}, batch {options['batch_size']}, {size} × {size} × 3"
    heads = ["network", "loop", "seeds", "ms a step", "speedup", "images/s", "TFLOP/s", "share", "memory"]
    rows = []
    for row in record["rows"]:
        if row["varied"] == "network":
            start = [row["network"], row["loop"], str(row["seeds"])]
            rows.append([*start, *_milliseconds(row), *_rates(row), _memory(row["peak_memory"])])
    return Table(title, heads, rows)


def _floors(record: Record) -> Table:
    """Updates beside what their operations take at the rate of a matrix product.

    For the update of `best` it is predicted that it reaches the rate of the other update of the same network.
    """
    heads = ["network", "update", "seeds", "floor, ms", "predicted, ms", "ms a step", "share"]
    rates = {(row["network"], row["seeds"]): row["tflops"] for row in _ours(record, "network")}
    rows = []
    for row in [*_ours(record, "network"), *_ours(record, "best")]:
        best, rate = row["varied"] == "best", rates.get((row["network"], row["seeds"]))
        predicted = _short(row["operations"] / rate / 1e9) if best and rate else ""
        update = f"preset best, K = {row['sgld_steps']}" if best else f"K = {row['sgld_steps']}"
        floor = _short(row["operations"] / record["matrix_rate"]["tflops"] / 1e9)
        rows.append(
            [row["network"], update, str(row["seeds"]), floor, predicted, *_milliseconds(row)[:1], _rates(row)[2]]
        )
    return Table("Updates and their floor, the time of their operations in a matrix product", heads, rows)


def _ours(record: Record, varied: str) -> list[Row]:
    return [row for row in record["rows"] if row["varied"] == varied and row["loop"] == "ebpl"]


def _milliseconds(row: Row) -> list[str]:
    if row["failed"]:
        return [row["failed"], ""]
    spread = (max(row["times"]) - min(row["times"])) / 2 / row["milliseconds"]
    speedup = f"{row['speedup']:.2f}" if row["speedup"] else ""
    return [f"{_short(row['milliseconds'])} ±{100 * spread:.0f}%", speedup]


def _rates(row: Row) -> list[str]:
    if row["failed"]:
        return ["", "", ""]
    return [f"{row['images_per_second']:,.0f}", _short(row["tflops"]), f"{100 * row['share']:.0f}%"]


def _memory(count: int | None) -> str:
    return "" if count is None else f"{count / 2**30:.1f} GiB"


def _short(number: float) -> str:
    """Three digits that count, without an exponent.

    >>> _short(1234.5), _short(12.345), _short(0.012345)
    ('1234', '12.3', '0.0123')
    """
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _scaling(record: Record) -> Table:
    heads = ["varied", "value", "reference, ms", "ebpl, ms", "speedup"]
    rows = []
    for name, title in SWEEPS.items():
        for value, theirs, ours in sweep(record, name):
            rows.append([title, f"{value:,}", _cell(theirs), _cell(ours), _milliseconds(ours)[1]])
    return Table(f"How a step's cost grows (WRN-{record['options']['scaling']}, one seed)", heads, rows)


def _cell(row: Row) -> str:
    return row["failed"] or _short(row["milliseconds"])


def _prediction(record: Record) -> Table:
    heads = ["network", "loop", "images", "images/s", "TFLOP/s", "share"]
    rows = []
    for row in record["rows"]:
        if row["varied"] == "prediction":
            rates = [row["failed"], "", ""] if row["failed"] else _rates(row)
            rows.append([row["network"], row["loop"], f"{row['images']:,}", *rates])
    return Table("Prediction", heads, rows)


def provenance(record: Record) -> str:
    """When and on what it was measured."""
    machine, rate = record["machine"], record["matrix_rate"]
    threads = "" if machine["gpu"] else f", threads: {machine['threads']}"
    parts = [f"{machine['name']}{threads}", f"{_short(rate['tflops'])} TFLOP/s in a {rate['dtype']} matrix product"]
    parts += [f"PyTorch {machine['torch']}", f"EBPL {machine['ebpl']} in {machine['dtype']}"]
    parts += [f"median of {record['options']['rounds']} rounds", record["date"][:10]]
    return "; ".join(parts) + "."


def markdown(records: Sequence[Record]) -> str:
    """All tables of all records."""
    parts = []
    for record in records:
        parts += [f"### {record['machine']['name']}", provenance(record)]
        for table in tables(record):
            parts += [f"{table.title}:", markdown_table(table.heads, table.rows)]
    return "\n\n".join(parts)


def summary(records: Sequence[Record]) -> str:
    """How many times as fast as the reference each GPU's record was, in short."""
    parts = []
    for record in records:
        if record["machine"]["gpu"]:
            rows = [row for row in record["rows"] if row["varied"] == "network" and row["speedup"]]
            heads = ["network", "seeds at once", "ms a step and seed", "times as fast as the plain loop"]
            lines = []
            for row in rows:
                faster = f"{row['speedup']:.1f}"
                lines.append([f"WRN-{row['network']}", str(row["seeds"]), _short(row["milliseconds"]), faster])
            parts += [markdown_table(heads, lines), f"({provenance(record)})"]
    return "\n\n".join(parts)


def terminal(table: Table) -> Any:
    """The same for the terminal."""
    import rich.box
    import rich.table

    made = rich.table.Table(title=table.title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False)
    made.collapse_padding = True
    for i, head in enumerate(table.heads):
        made.add_column(head, justify="left" if i < 2 else "right")
    for row in table.rows:
        made.add_row(*row)
    return made


def fill(text: str, records: Sequence[Record]) -> str:
    """The text of `benchmarks/README.md` with its tables made anew."""
    return between(text, BEGIN, END, markdown(records))


def main(root: Path) -> None:
    """Write the tables of `root/benchmarks/README.md` and the figure beside it anew."""
    readme = root / "benchmarks/README.md"
    records = load(root / "benchmarks/records")
    text = fill(readme.read_text(encoding="utf-8"), records)
    write_text(readme, quality.fill(text, root) if (root / "benchmarks/before").is_dir() else text)
    draw(root / "benchmarks/scaling.png", records)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
