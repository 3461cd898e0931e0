"""The commands `ebpl evaluate`, `ebpl report` and `ebpl export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ebpl.cli.options import Parser, add_data_dir, add_skip_unreadable
from ebpl.cli.train import tell_lost


def add_evaluate_options(parser: Parser) -> None:
    """The options of `ebpl evaluate`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory, or the folder of several seeds: all of them")
    add("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own test images)")
    add_data_dir(parser)
    add("--json", metavar="FILE", help="also write metrics and reliability bins to FILE (-: print them)")
    add_skip_unreadable(parser)


def evaluate(options: argparse.Namespace) -> int:
    """Show the metrics of a run, or of all seeds in a folder."""
    import json

    from ebpl.inference.evaluate import evaluation, evaluation_of_seeds
    from ebpl.io import finite, write_json
    from ebpl.runs import Run, seed_folders
    from ebpl.terminal import measures_table, seeds_table, show

    def title(run: Run) -> str:
        return str(options.data or f"{run.data_name}, test images")

    folder = Path(options.run)
    how = {"data_dir": options.data_dir, "skip_unreadable": options.skip_unreadable}
    if seed_folders(folder):
        result = evaluation_of_seeds(folder, options.data, **how)
        run = Run(folder / f"seed-{next(iter(result['seeds']))}")
        table = seeds_table(title(run), {seed: each["metrics"] for seed, each in result["seeds"].items()})
    else:
        run = Run(folder)
        result = evaluation(run, options.data, **how)
        table = measures_table(title(run), {run.settings.method: result["metrics"]})
    if options.json == "-":
        print(json.dumps(finite(result), indent=2))
        return 0
    if options.json:
        write_json(Path(options.json), result)
    show(table)
    for note in result.get("notes", ()):
        print(note)
    if result.get("not_finished"):
        print(f"Not finished, and left out: seed {', '.join(map(str, result['not_finished']))}")
    for seed, reason in result.get("broken", {}).items():
        print(f"Seed {seed} is left out: {reason}")
    tell_lost(folder)
    return 0


def add_report_options(parser: Parser) -> None:
    """The options of `ebpl report`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory, finished or not")
    add("--output", metavar="FILE", help="the page to write (default: report.html in the run directory)")
    add("--data", metavar="DATA", help="images to look at, with labels or without (default: the run's own)")
    add_data_dir(parser)


def report(options: argparse.Namespace) -> int:
    """Write the page."""
    from ebpl.reporting import report
    from ebpl.terminal import counted

    with counted("images") as done:
        path = report(options.run, options.output, options.data, data_dir=options.data_dir, done=done)
    print(f"The report is in {path}")
    return 0


def add_export_options(parser: Parser) -> None:
    """The options of `ebpl export`."""
    parser.add_argument("run", metavar="RUN", help="the run directory")
    parser.add_argument(
        "--output", metavar="FILE", help="the ONNX file (default: model.onnx in RUN); the model card is put beside it"
    )


def export(options: argparse.Namespace) -> int:
    """Write the model."""
    from ebpl.inference.export import card_path, export

    path = export(options.run, options.output)
    print(f"{path} computes what the run's model computes. Its model card is {card_path(path)}")
    return 0
