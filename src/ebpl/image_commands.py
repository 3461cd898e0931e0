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
    add("--output", default="-", metavar="FILE", help="the CSV to write (default: standard output)")
    add("--abstain-below", type=share, default=0.0, metavar="P", help="no label where the confidence is lower")
    add("--outlier-quantile", type=share, default=0.99, metavar="Q", help="an outlier has a higher energy than this "
        "share of the training images (default: 0.99)")  # fmt: skip


def predict(options: argparse.Namespace) -> int:
    """Label image files with a run's model."""
    from ebpl.files import partly_written
    from ebpl.predicting import csv_writer, find_images, predict_files
    from ebpl.reporting.progress import counted
    from ebpl.runs import Run

    run = Run(options.run)
    limits = {"abstain_below": options.abstain_below, "outlier_quantile": options.outlier_quantile}
    with partly_written(options.output) as file, counted("images") as done:
        summary = predict_files(run, find_images(options.images), csv_writer(file), **limits, done=done)
    told = [f"{summary.images} images, {summary.kept} labelled"]
    if summary.expected_accuracy is not None:
        told.append(f"about {100 * summary.expected_accuracy:.0f} % of them right, by their own confidence")
    told.append(f"{summary.outliers} do not look like the training images")
    if summary.unreadable:
        told.append(f"{summary.unreadable} cannot be read")
    print("; ".join(told) + ".", file=sys.stderr)
    return 0
