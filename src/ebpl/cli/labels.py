"""The command `ebpl inspect RUN`: which labels of a run may be wrong."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

from ebpl.errors import number_of
from ebpl.io import check_output, check_table_name, csv_writer, finite, partly_written
from ebpl.terminal import harmless, show

if TYPE_CHECKING:
    from ebpl.labeling.label_errors import LabelCheck

SHOWN = 20
"""So many are shown; the CSV and JSON have all of them."""


def inspect_run(options: argparse.Namespace) -> int:
    """List the labels of a run that may be wrong."""
    from ebpl.labeling.label_errors import label_errors
    from ebpl.runs import Run

    run = Run(options.data)
    if options.output:
        check_table_name(options.output, parquet=False)
        check_output(options.output, options.force, run.path)
    found = label_errors(run, data_dir=options.data_dir)
    if options.output:
        with partly_written(options.output) as file:
            write = csv_writer(file)
            file.write("" if found.errors else "rank,image,label\n")
            for rank, error in enumerate(found.errors, start=1):
                write(error.row(rank))
    if options.json:
        print(json.dumps(finite(found.to_dict()), indent=2, ensure_ascii=False))
        return 0
    to_file = options.output != "-"
    if found.errors and to_file:
        show(doubtful(found))
    told = advice(found, options.data, options.output, run.source.get("path") or "DATA")
    for line in [*told, found.more_labels]:
        print(one_line(line), file=sys.stdout if to_file else sys.stderr)
    return 0


def doubtful(found: LabelCheck) -> Any:
    """The first of the doubtful labels, as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Labels that may be wrong", title_justify="left")
    for name in ("image", "label", "suggested"):
        table.add_column(name, overflow="fold")
    for error in found.errors[:SHOWN]:
        image = f"{error.image} (copy of {error.copy})" if error.copy else error.image
        label, other = f"{error.given} {_percent(error.p_given)}", f"{error.suggested} {_percent(error.p_suggested)}"
        table.add_row(*(Text(one_line(cell)) for cell in (image, label, other)))
    return table


def advice(found: LabelCheck, run: str, output: str | None, data: str) -> list[str]:
    """What was found, what it was found by, and what to do about it."""
    if not found.labels and not found.errors:
        return ["There are too few labels to judge them by each other."]
    lines = [
        f"{len(found.errors)} of {number_of(found.labels, 'label')} are doubtful. "
        f"Judged by {found.features}, with a classifier that had not seen the label: it agrees with "
        f"{_percent(found.accuracy)} of them. Some of the others are its own errors."
    ]
    if output and output != "-":
        lines.append(f"Open {output}, and fill in its column label where a label is wrong. Then:")
        lines.append(f"  ebpl add-labels {shlex.quote(data)} {shlex.quote(output)} --output corrected.csv")
    elif not output and found.errors:
        run = shlex.quote(run)
        lines.append(f"ebpl inspect {run} --output doubtful.csv lists all; ebpl report {run} shows them as pictures.")
    return lines


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value == value else ""


def one_line(text: str) -> str:
    """Somebody's text on one line: no name in it can make another that looks like ours."""
    return harmless(text).replace("\n", r"\n")
