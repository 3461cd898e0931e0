"""The commands that use a run: `ebpl evaluate`, `ebpl predict`, `ebpl report` and `ebpl export`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.cli.options import Parser, add_data_dir, add_skip_unreadable, share
from ebpl.cli.train import tell_lost
from ebpl.errors import number_of
from ebpl.terminal import harmless

if TYPE_CHECKING:
    from ebpl.inference.predict import Measured, Summary
    from ebpl.runs import Run

CALIBRATED = ("accuracy", "ece", "adaptive_ece", "overconfidence", "nll", "brier", "aurc")
"""What is shown before and after calibration."""
UNLIKE, ENOUGH = 0.2, 20
"""Coverages of test images and of so many new ones that differ by more show that these are different images."""


def add_evaluate_options(parser: Parser) -> None:
    """The options of `ebpl evaluate`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory, or the folder of several seeds: all of them")
    add("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own test images)")
    add_data_dir(parser)
    add("--json", metavar="FILE", help="also write metrics and reliability bins to FILE (-: print them)")
    _add_sets(parser, "also measure prediction sets of this coverage: see ebpl predict")
    _add_class_mix(parser)
    add("--force", action="store_true", help="replace the file that --json names if it exists")
    add_skip_unreadable(parser)


def evaluate(options: argparse.Namespace) -> int:
    """Show the metrics of a run, or of all seeds in a folder."""
    import json

    from ebpl.inference.evaluate import evaluation, evaluation_of_seeds
    from ebpl.io import check_output, finite, write_json
    from ebpl.runs import Run, seed_folders
    from ebpl.terminal import classes_table, measures_table, seeds_table, show

    def title(run: Run) -> str:
        return str(options.data or f"{run.data_name}, test images")

    folder = Path(options.run)
    if options.json:
        check_output(options.json, options.force, inside=folder)
    asked = ("data_dir", "skip_unreadable", "coverage", "set_method", "by_class", "class_mix")
    how: dict[str, Any] = {name: getattr(options, name) for name in asked}
    if seed_folders(folder):
        result = evaluation_of_seeds(folder, options.data, **how)
        run = Run(folder / f"seed-{next(iter(result['seeds']))}")
        of_seeds = {seed: each["metrics"] for seed, each in result["seeds"].items()}
        table = seeds_table(title(run), of_seeds, result.get("ensemble", {}).get("metrics"))
    else:
        run = Run(folder)
        result = evaluation(run, options.data, **how)
        method = run.settings.method
        told: dict[str, Any] = {"bins": {method: result["reliability"]}, "intervals": result["intervals"]}
        table = measures_table(title(run), {method: result["metrics"]}, **told)
    if options.json == "-":
        print(json.dumps(finite(result), indent=2))
        return 0
    if options.json:
        write_json(Path(options.json), result)
    show(table)
    if rows := result.get("ensemble", result).get("by_class"):
        show(classes_table(rows))
    if found := result.get("calibrations"):
        show(measures_table("before and after calibration with held-out labels", found, CALIBRATED))
    if found := result.get("ensemble", result).get("prediction_sets"):
        print(_measured_sets(found))
    every = result.get("seeds", {"": result})
    for note in dict.fromkeys(note for each in every.values() for note in each["notes"]):
        print(harmless(note))
    for seed, each in every.items():
        for warning in each["warnings"]:
            print(harmless(f"Warning{f' for seed {seed}' if seed != '' else ''}: {warning}"))
    if result.get("not_finished"):
        print(f"Not finished, and left out: seed {', '.join(map(str, result['not_finished']))}")
    for seed, reason in result.get("broken", {}).items():
        print(f"Seed {seed} is left out: {reason}")
    tell_lost(folder)
    return 0


def _add_sets(parser: Parser, coverage: str) -> None:
    """The options of prediction sets."""
    from ebpl.calibration.conformal import METHODS

    add = parser.add_argument
    add("--coverage", type=share, metavar="P", help=coverage)
    add("--set-method", default="lac", metavar="NAME", help=f"their score: {', '.join(METHODS)} (default: lac)")
    add("--by-class", action="store_true", help="this coverage within each class, which needs more labels")


def _add_class_mix(parser: Parser) -> None:
    parser.add_argument("--class-mix", metavar="MIX", help="class mix that the probabilities assume, in place of "
        "the run's: labels, balanced, or a CSV of class and share")  # fmt: skip


def _measured_sets(found: dict[str, Any]) -> str:
    """How often prediction sets held the true class, and how large they were."""
    low, high = found["coverage_interval"]
    told = (
        f"Prediction sets for a coverage of {100 * found['wanted']:g} % ({found['method']}), each by the other images "
        f"in ten folds: coverage {100 * found['coverage']:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %),"
        f" mean size {found['mean_size']:.2f}"
    )
    worst = min((row for row in found["by_class"] if row["images"]), key=lambda row: row["coverage"])
    return harmless(f"{told}; lowest by class: {100 * worst['coverage']:.1f} % ({worst['class']})")


def add_report_options(parser: Parser) -> None:
    """The options of `ebpl report`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory, finished or not")
    add("--output", metavar="FILE", help="the page to write (default: report.html in the run directory)")
    add("--force", action="store_true", help="replace the file that --output names if it exists")
    add("--data", metavar="DATA", help="images to look at, with labels or without (default: the run's own)")
    add_data_dir(parser)
    add_skip_unreadable(parser)


def report(options: argparse.Namespace) -> int:
    """Write the page."""
    from ebpl.reporting import report
    from ebpl.terminal import counted

    how: dict[str, Any] = {"data_dir": options.data_dir, "skip_unreadable": options.skip_unreadable}
    with counted("images") as done:
        path = report(options.run, options.output, options.data, **how, force=options.force, done=done)
    print(f"The report is in {path}")
    return 0


def add_export_options(parser: Parser) -> None:
    """The options of `ebpl export`."""
    parser.add_argument("run", metavar="RUN", help="the run directory")
    parser.add_argument(
        "--output", metavar="FILE", help="the ONNX file (default: model.onnx in RUN); the model card is put beside it"
    )
    parser.add_argument("--force", action="store_true", help="replace files of these names if they exist")


def export(options: argparse.Namespace) -> int:
    """Write the model."""
    from ebpl.inference.export import card_path, export

    path = export(options.run, options.output, force=options.force)
    print(f"{path} computes what the run's model computes. Its model card is {card_path(path)}")
    return 0


def add_predict_options(parser: Parser) -> None:
    """The options of `ebpl predict`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory, or the folder of several seeds: all of them together")
    add("images", metavar="IMAGES", nargs="+", help="image files, folders (all images in them and below), or CSVs that "
        "list files in a column image")  # fmt: skip
    add("--output", default="-", metavar="FILE", help="the file to write: a .csv or a .parquet "
        "(default: a CSV to standard output)")  # fmt: skip
    add("--abstain-below", type=share, default=0.0, metavar="P", help="no label where the confidence is lower")
    add("--accuracy", type=share, metavar="P", help="no label where the confidence does not promise this accuracy")
    _add_sets(parser, "a column 'set': the classes that hold the true one with this probability")
    add("--semi-supervised", action="store_true", help="use IMAGES too for the sets, where labels are few")
    add("--calibration", metavar="DATA", help="labelled images to make these promises from (default: the run's own "
        "test or validation images)")  # fmt: skip
    add("--outlier-quantile", type=share, default=0.99, metavar="Q", help="an outlier has a higher score than this "
        "share of the training images (default: 0.99)")  # fmt: skip
    add("--label-outliers", action="store_true", help="give outliers a label too (default: they get none)")
    add(
        "--decide",
        default="probable",
        metavar="HOW",
        help="add a column 'decision'. balanced: the class whose probability is highest relative to its mean over the "
        "training images (for rare classes); or a CSV of costs (rows: true class, columns: decision)",
    )
    _add_class_mix(parser)
    add("--force", action="store_true", help="replace the file that --output names if it exists")


def predict(options: argparse.Namespace) -> int:
    """Label image files with a run's model."""
    from ebpl.errors import DataError
    from ebpl.inference.predict import Summary, measured_accuracy, predict
    from ebpl.runs import Run, seed_folders
    from ebpl.terminal import counted

    run = None if seed_folders(Path(options.run)) else Run(options.run)
    limits = ("abstain_below", "outlier_quantile", "label_outliers", "decide", "force", "accuracy", "coverage")
    wanted = (*limits, "set_method", "by_class", "semi_supervised", "calibration", "class_mix")
    how: dict[str, Any] = {name: getattr(options, name) for name in wanted}
    with counted("images") as done:
        summary = predict(run or options.run, options.images, options.output, **how, done=done)
    assert isinstance(summary, Summary)
    promised = summary.promises.abstention if summary.promises else None
    at_least = max(options.abstain_below, promised.threshold or 0.0) if promised else options.abstain_below
    parts = [f"{number_of(summary.images, 'image')}, {summary.kept + summary.labelled_outliers} labelled"]
    if summary.coverage is not None and at_least:
        parts[0] += f" (coverage {100 * summary.coverage:.0f} %)"
    advice = ""
    if summary.mean_confidence is not None and summary.coverage is not None:
        of_them = f" of the {summary.kept} that are no outliers" if summary.labelled_outliers else ""
        confidence = f"mean confidence{of_them} {100 * summary.mean_confidence:.0f} %"
        if run and not options.class_mix and (measured := measured_accuracy(run, at_least)):
            parts += [_measured(measured, at_least, summary), confidence]
        else:
            why, advice = _not_measured(run, options.run, options.class_mix)
            parts += [confidence, f"how many are right was not measured: {why}"]
        if options.decide != "probable":
            parts.append("this is of the column 'label'; the decisions were not measured")
    if summary.outliers is not None:
        are = "is an outlier" if summary.outliers == 1 else "are outliers"
        told = f"{summary.outliers} {are}, unlike the training images"
        if summary.outliers:
            told += f": {'' if options.label_outliers else 'without a label, and '}left out of these numbers"
        parts.append(told)
    if summary.frames:
        parts.append(f"of {summary.frames} with several frames the first was taken")
    if summary.unreadable:
        parts.append(f"{summary.unreadable} cannot be read")
    print("; ".join(parts) + ".", file=sys.stderr)
    for line in (*_promised(summary), advice, summary.skipped_in_words and f"Skipped: {summary.skipped_in_words}."):
        if line:
            print(harmless(line), file=sys.stderr)
    if summary.unreadable == summary.images:
        where = "" if options.output == "-" else f" in {options.output}"
        raise DataError(f"None of the images can be read: the column 'problem'{where} says why.")
    return 0


def _promised(summary: Summary) -> list[str]:
    """What was promised, from which labels, and what came of it."""
    if (promises := summary.promises) is None:
        return []
    lines = [f"Calibrated on {promises.calibrated_on}."]
    if promises.abstention:
        lines.append(f"By calibration, {promises.abstention}.")
    if sets := promises.sets:
        images, (low, high) = sum(summary.set_sizes.values()), sets.likely
        size = sum(size * count for size, count in summary.set_sizes.items()) / max(images, 1)
        within = " within each class" if sets.by_class else ""
        spread = f"; for the labels at hand it is {100 * low:.0f} to {100 * high:.0f} % in 90 of 100 draws"
        if sets.unlabelled:
            spread = f"; {number_of(sets.unlabelled, 'unlabelled image')} were used too, so this is approximate"
        lines.append(
            f"Prediction sets hold the true class with a probability of {100 * sets.coverage:g} %{within} "
            f"({sets.method}){'' if sets.by_class else spread}. Mean size {size:.2f}; {summary.set_sizes[1]} of "
            f"{number_of(images, 'set')} hold one class, {summary.set_sizes[0]} none."
        )
        if summary.set_sizes[0]:
            lines.append("An empty set means that no class is probable enough. A higher coverage gives fewer of them.")
    return [*lines, *promises.notes]


def _measured(measured: Measured, at_least: float, summary: Summary) -> str:
    """How many of the run's test images with such a confidence are right."""
    from ebpl.metrics.classification import wilson_interval

    if not measured.images:
        return f"none of the run's {measured.of} test images has such a confidence, so nothing was measured"
    low, high = (f"{100 * side:.0f}" for side in wilson_interval(measured.right, measured.images))
    which = " with such a confidence" if at_least else ""
    about = "" if measured.exact else "about "
    told = (
        f"of the run's {number_of(measured.images, 'test image')}{which}, {about}{measured.right} are right "
        f"({100 * measured.right / measured.images:.0f} %, 95 % interval {low} to {high} %)"
    )
    there, here = measured.images / measured.of, summary.coverage or 0.0
    if at_least and summary.images >= ENOUGH and abs(there - here) > UNLIKE:
        told += f"; among those the coverage is {100 * there:.0f} %, so the new images differ from them"
    return told


def _not_measured(run: Run | None, path: str, class_mix: str | None) -> tuple[str, str]:
    """Why it is not known how many labels are right, and a line on how to find out."""
    from ebpl.calibration import CalibrationCheck

    command = f"ebpl evaluate {shlex.quote(path)} LABELLED_IMAGES"
    if class_mix:
        command += f" --class-mix {shlex.quote(class_mix)}"
        return "the run's images have another class mix", f"To measure it: {command}"
    if run is None:
        return "a run records only its own predictions, not those of an ensemble", f"To measure it: {command}"
    if not run.finished:
        return "the run is not finished", f"To measure it: {command}"
    result = run.metrics()
    if result["metrics"] is not None:
        return "the run does not hold its accuracy at each confidence", f"To measure it: {command}"
    check = CalibrationCheck.stored(result.get("check"))
    advice = f"To measure it: {command} (or train with a part test/ in the data)."
    return "the run has no test images", f"{check} {advice}" if check else advice
