"""The command `ebpl predict`."""

from __future__ import annotations

import argparse
import sys

from ebpl.cli.options import Parser, share


def add_predict_options(parser: Parser) -> None:
    """The options of `ebpl predict`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory")
    add("images", metavar="IMAGES", nargs="+", help="image files, or folders: all images in them and below")
    add("--output", default="-", metavar="FILE", help="the file to write: Parquet if it ends in .parquet, else CSV "
        "(default: a CSV to standard output)")  # fmt: skip
    add("--abstain-below", type=share, default=0.0, metavar="P", help="no label where the confidence is lower")
    add("--outlier-quantile", type=share, default=0.99, metavar="Q", help="an outlier has a higher energy than this "
        "share of the training images (default: 0.99)")  # fmt: skip


def predict(options: argparse.Namespace) -> int:
    """Label image files with a run's model."""
    from ebpl.errors import DataError
    from ebpl.inference.predict import Summary, measured_accuracy, predict
    from ebpl.runs import Run
    from ebpl.terminal import counted

    run = Run(options.run)
    limits = {"abstain_below": options.abstain_below, "outlier_quantile": options.outlier_quantile}
    with counted("images") as done:
        summary = predict(run, options.images, options.output, **limits, done=done)
    assert isinstance(summary, Summary)
    parts = [f"{summary.images} images, {summary.kept} labelled"]
    if summary.coverage is not None and options.abstain_below:
        parts[0] += f" (coverage {100 * summary.coverage:.0f} %)"
    if summary.expected_accuracy is not None and summary.coverage is not None:
        parts.append(f"about {100 * summary.expected_accuracy:.0f} % of them right, by their own confidence")
        if measured := measured_accuracy(run, summary.coverage):
            there = " at that coverage" if options.abstain_below else ""
            parts.append(f"measured on the run's {measured[1]} test images{there}: {100 * measured[0]:.0f} % right")
    if summary.outliers is not None:
        parts.append(f"{summary.outliers} are outliers, unlike the training images")
    if summary.frames:
        parts.append(f"of {summary.frames} with several frames the first was taken")
    if summary.unreadable:
        parts.append(f"{summary.unreadable} cannot be read")
    print("; ".join(parts) + ".", file=sys.stderr)
    if summary.unreadable == summary.images:
        where = "" if options.output == "-" else f" in {options.output}"
        raise DataError(f"None of the images can be read: the column 'problem'{where} says why.")
    return 0
