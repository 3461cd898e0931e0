"""The commands `ebpl inspect` and `ebpl predict`. Heavy imports happen inside, so that the help answers at once."""

from __future__ import annotations

import argparse
import sys

from ebpl.options import Parser, add_data, share


def add_inspect(parser: Parser) -> None:
    """The options of `ebpl inspect`."""
    add_data(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, for programs")
    parser.add_argument("--no-timing", action="store_true", help="do not train a few updates to tell the time it takes")


def inspect(options: argparse.Namespace) -> int:
    """Say what is in the data, what is wrong with it, and how to train on it."""
    import json

    from ebpl.files import finite
    from ebpl.inspecting import inspect
    from ebpl.reporting.inspection import show_inspection
    from ebpl.reporting.progress import counted

    places = {"data_dir": options.data_dir, "image_size": options.image_size}
    with counted("images opened") as done:
        found = inspect(options.data, **places, timing=not options.no_timing, done=done)
    if options.json:
        print(json.dumps(finite(found.to_dict()), indent=2, ensure_ascii=False))
    else:
        show_inspection(found, options.data)
    return 0


def add_predict(parser: Parser) -> None:
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
    from ebpl.predicting import find_images, measured_accuracy, predict_files
    from ebpl.reporting.progress import counted
    from ebpl.runs import Run
    from ebpl.writing import rows_into

    run = Run(options.run)
    limits = {"abstain_below": options.abstain_below, "outlier_quantile": options.outlier_quantile}
    images = find_images(options.images)
    with rows_into(options.output) as write, counted("images") as done:
        summary = predict_files(run, images, write, **limits, done=done)
        if not summary.images:
            raise DataError(f"There is no image in {' or '.join(options.images)}.")
    told = [f"{summary.images} images, {summary.kept} labelled"]
    if summary.coverage is not None and options.abstain_below:
        told[0] += f" (coverage {100 * summary.coverage:.0f} %)"
    if summary.expected_accuracy is not None and summary.coverage is not None:
        told.append(f"about {100 * summary.expected_accuracy:.0f} % of them right, by their own confidence")
        if measured := measured_accuracy(run, summary.coverage):
            there = " at that coverage" if options.abstain_below else ""
            told.append(f"measured on the run's {measured[1]} test images{there}: {100 * measured[0]:.0f} % right")
    if summary.outliers is not None:
        told.append(f"{summary.outliers} do not look like the training images")
    if summary.frames:
        told.append(f"of {summary.frames} with several frames the first was taken")
    if summary.unreadable:
        told.append(f"{summary.unreadable} cannot be read")
    print("; ".join(told) + ".", file=sys.stderr)
    if summary.unreadable == summary.images:
        where = "" if options.output == "-" else f" in {options.output}"
        raise DataError(f"None of the images can be read: the column 'problem'{where} says why.")
    return 0
