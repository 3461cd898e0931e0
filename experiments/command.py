"""The command `ebpl reproduce`. Heavy imports happen inside, so that the help answers at once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.cli.options import Parser, add_settings, changes, seconds, words
from ebpl.config.presets import preset
from ebpl.rng import parse_seeds

if TYPE_CHECKING:
    from ebpl.config import Settings
    from experiments.cells import Cell

VARIED = ("method", "pseudo_labels", "seed")
BEYOND = ("outliers", "suggestions")


def add_options(parser: Parser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("experiment", metavar="EXPERIMENT", help="table1: both methods, all pseudo-labels; labels: 1 to 5 a class; "
        "and past the paper, best: EBPL with what helps; ablation: one thing changed at a time; outliers: with images "
        "that do not belong; suggestions: labelling them")  # fmt: skip
    add("--datasets", type=words, metavar="LIST", help="benchmarks (default: the paper's seven; best: four of them; "
        "ablation: blood and cifar10; else: blood)")  # fmt: skip
    add("--variants", type=words, metavar="LIST", help="for the ablation, only these (--show lists them)")
    add("--seeds", default="0-4", metavar="0-4", help="seeds of each cell; on a GPU they are trained side by side")
    add("--preset", metavar="NAME", help="what the settings below start from (default: standard for what is the "
        "paper's, best for what is past it, on a short schedule for the ablation)")  # fmt: skip
    add("--show", action="store_true", help="only say which cells are there and which are missing")
    add("--draw-only", action="store_true", help="only make tables and figures from the ledger")
    add(
        "--time-limit", type=seconds, default=float("inf"), metavar="20m", help="stop after that, to go on another time"
    )
    add("--results", default="results", metavar="DIR", help="the ledger: a small file for each cell (default: results)")
    add("--runs", default="runs/reproduce", metavar="DIR", help="where cells are trained (default: runs/reproduce)")
    add("--output", default="reproduced", metavar="DIR", help="tables and figures (default: reproduced)")
    add("--data-dir", metavar="DIR", help="where benchmarks are looked for first (also: EBPL_DATA)")
    add("--ray", metavar="ADDRESS", help="spread the cells over a Ray cluster; auto: this machine's, local: a new one")
    add_settings(parser, without=VARIED)


def reproduce(options: argparse.Namespace) -> int:
    """Run what is missing, write tables and figures, and say what is there."""
    from experiments import ledger
    from experiments.ablation import AS_IT_IS, name_of, only
    from experiments.cells import cells

    settings = _settings(options)
    if options.experiment in BEYOND:
        return _beyond(options, settings)
    chosen = cells(options.experiment, options.datasets, parse_seeds(options.seeds), settings)
    detailed = None
    if options.variants:
        chosen = only(chosen, options.variants, settings)
    if options.experiment == "ablation":  # of whose variants no single images are shown
        detailed = [cell for cell in chosen if name_of(cell, settings) == AS_IT_IS]
    results, output = Path(options.results), Path(options.output)
    data_dir = Path(options.data_dir) if options.data_dir else None
    if not (options.show or options.draw_only):
        _run(options, chosen, detailed, results, data_dir)
    if not options.show:
        from experiments.output import write

        for path in write(output, options.experiment, chosen, ledger.load(results), settings, data_dir):
            print(path)
    _show_cells(chosen, ledger.load(results), settings if options.experiment == "ablation" else None)
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    """What the cells start from: a preset, with the settings that were given."""
    if options.experiment == "ablation" and options.preset is None:
        from experiments.ablation import base

        return base(**changes(options))
    past = options.experiment in ("best", *BEYOND)
    return preset(options.preset or ("best" if past else "standard"), **changes(options))


def _run(
    options: argparse.Namespace, chosen: list[Cell], detailed: list[Cell] | None, results: Path, data_dir: Path | None
) -> None:
    """Run the cells that are missing, here or on a cluster."""
    import time

    from ebpl.terminal import terminal_progresses
    from experiments.reproduce import Reproduction

    deadline = time.monotonic() + options.time_limit
    work = Reproduction(chosen, results, Path(options.runs), terminal_progresses, _say, data_dir, deadline)
    work.detailed = detailed
    try:
        if options.ray:
            from experiments.cluster import reproduce_on

            reproduce_on(options.ray, work)
        else:
            work.run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped. The same command goes on where it was.") from None


def _beyond(options: argparse.Namespace, settings: Settings) -> int:
    """An experiment past the paper: run the seeds that are missing, and show what is there."""
    import time

    from ebpl.terminal import terminal_progresses
    from experiments.beyond import Beyond, compact, records, summary

    results, data_dir = Path(options.results), Path(options.data_dir) if options.data_dir else None
    if not (options.show or options.draw_only):
        work = Beyond(settings, results, Path(options.runs), terminal_progresses, _say, data_dir)
        work.deadline = time.monotonic() + options.time_limit
        run = {"outliers": work.outliers, "suggestions": work.suggestions}[options.experiment]
        for data in options.datasets or ["blood"]:
            run(data, parse_seeds(options.seeds))
    _show(compact(summary([record for record in records(results) if record["experiment"] == options.experiment])))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show_cells(chosen: Any, records: Any, of_ablation: Settings | None) -> None:
    """Which cells are there and which are missing."""
    from experiments import ablation, output

    lines = ablation.overview(chosen, records, of_ablation) if of_ablation else output.overview(chosen, records)
    _show(lines)


def _show(lines: list[list[str]]) -> None:
    """Heads and lines as a table."""
    from rich import box
    from rich.table import Table

    from ebpl.terminal import show

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in lines[0]:
        table.add_column(head)
    for line in lines[1:]:
        table.add_row(*line)
    show(table)
