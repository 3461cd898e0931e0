"""The command `python -m experiments`, for a checkout. Heavy imports happen inside: the help answers at once."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ebpl import launch
from ebpl.cli import guarded
from ebpl.cli.options import Parser, add_data_dir, add_settings, changes, positive, seconds, words
from ebpl.config.presets import PRESETS, preset, read_config
from ebpl.errors import UsageError, did_you_mean
from ebpl.rng import parse_seeds

if TYPE_CHECKING:
    from ebpl.config import Settings
    from experiments.grid import Cell

VARIED = ("method", "seed", "curriculum.pseudo_labels")
"""Settings that experiments choose themselves."""
EXPERIMENTS = {
    "table1": "the paper's Table 1: both methods, all forms of pseudo-labels",
    "labels": "one to five labels per class",
    "best": "EBPL with the preset best",
    "parts": "best with and without energies and pseudo-labels",
    "field": "EBPL beside the methods of other papers, at equal updates and at equal minutes",
    "ablation": "one thing changed at a time",
    "outliers": "a fifth of the unlabelled images are another dataset's",
    "open_set": "six known and four unknown classes among the unlabelled images, beside FixMatch",
    "suggestions": "label what `ebpl suggest` lists, or random images",
}
MULTI_RUN = ("outliers", "open_set", "suggestions")


def build_parser() -> Parser:
    """The command's own parser."""
    described = "; ".join(f"{name}: {text}" for name, text in EXPERIMENTS.items())
    parser = Parser(prog="python -m experiments", description="Run an experiment, continue it, or show what is there.")
    add = parser.add_argument
    add("experiment", metavar="EXPERIMENT", help=described)
    add("--datasets", type=words, metavar="LIST", help="benchmarks (default: the paper's seven; best, parts and field: "
        "four of them; ablation: blood and cifar10; open_set: cifar10; else: blood)")  # fmt: skip
    add("--methods", type=words, metavar="LIST", help="for table1 and labels, the methods to train (default: the "
        "paper's two); tables also show every other one that has a record; for field, those to compare")  # fmt: skip
    add("--metrics", type=words, metavar="LIST", help="for table1, the metrics to show (default: accuracy,f_score,ece)")
    add("--variants", type=words, metavar="LIST", help="for ablation, only these (--show lists them); for field, "
        "of updates, minutes (default: both) and calibration")  # fmt: skip
    add("--seeds", default="3-7", metavar="3-7", help="seeds of each cell; no choice of settings has seen 3 to 7")
    add("--at-once", type=positive, metavar="N", default=12, help="trainings that share a GPU "
        "(default: 12); more take less time in all, and longer each")  # fmt: skip
    add("--show", action="store_true", help="only show which cells are there and which are missing")
    add("--plots-only", action="store_true", help="only make tables and figures from the records")
    add("--time-limit", type=seconds, default=float("inf"), metavar="20m", help="stop after that; the same command "
        "continues")  # fmt: skip
    add(
        "--results", default="results", metavar="DIR", help="the records: a small file for each cell (default: results)"
    )
    add("--runs", default="runs/reproduce", metavar="DIR", help="where cells are trained (default: runs/reproduce)")
    add("--output", default="reproduced", metavar="DIR", help="tables and figures (default: reproduced)")
    add_data_dir(parser)
    add("--ray", metavar="ADDRESS", help="spread the cells over a Ray cluster; auto: this machine's, local: a new one")
    add_settings(parser, without=VARIED)
    (chosen,) = (action for action in parser._actions if action.dest == "preset")
    chosen.help = f"{', '.join(PRESETS)} (default: standard for table1 and labels; else best, for ablation shortened)"
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    return launch.leave(guarded(lambda: _main(given), "experiments"))


def _main(arguments: list[str]) -> int:
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    parser.refuse(unknown)
    logging.getLogger("ebpl").setLevel(logging.INFO)
    if options.experiment not in EXPERIMENTS:
        known = did_you_mean(options.experiment, EXPERIMENTS)
        raise UsageError(f"There is no experiment {options.experiment!r}. {known}")
    if varied := [name for name in changes(options) if name in VARIED]:
        raise UsageError(
            f"{options.experiment} chooses {varied[0]} itself. Use --seeds and --methods, or leave it out."
        )
    settings = _settings(options)
    if options.experiment == "field":
        return _field(options, settings)
    return _multi_run(options, settings) if options.experiment in MULTI_RUN else _grid(options, settings)


def _settings(options: argparse.Namespace) -> Settings:
    """What the cells start from: a preset, with the settings that were given."""
    given = {**(read_config(options.config) if options.config else {}), **changes(options)}
    given = {name: value for name, value in given.items() if name not in VARIED}
    if options.experiment == "ablation" and options.preset is None:
        from experiments.ablation import base

        return base(given)
    if options.experiment == "field":
        from experiments.field import field_settings

        return field_settings(given, options.preset or "best")
    past = options.experiment in ("best", "parts", *MULTI_RUN)
    return preset(options.preset or ("best" if past else "standard"), given)


def _grid(options: argparse.Namespace, settings: Settings) -> int:
    """An experiment of cells: train what is missing, write tables and figures, and show what is there."""
    from experiments import ablation, results_store
    from experiments.grid import cells, shown_cells
    from experiments.overview import overview

    name, seeds, results = options.experiment, parse_seeds(options.seeds), Path(options.results)
    metrics = _metrics(options)
    chosen = cells(name, options.datasets, seeds, settings, options.methods)
    if options.variants:
        if name != "ablation":
            raise UsageError(f"--variants are those of the ablation; {name} has none.")
        chosen = ablation.only(chosen, options.variants, settings)
    if not (options.show or options.plots_only):
        _train(options, chosen, settings, results)
    records = results_store.load(results)
    if not options.variants:
        chosen = shown_cells(name, options.datasets, seeds, settings, options.methods, records)
    if not options.show:
        from experiments.output import write

        for path in write(Path(options.output), name, chosen, records, settings, _data_dir(options), metrics):
            print(path)
    of_variants = name == "ablation"
    _show(ablation.overview(chosen, records, settings) if of_variants else overview(chosen, records))
    return 0


def _field(options: argparse.Namespace, settings: Settings) -> int:
    """Time an update of each method, train what is missing, write tables and figures, and show what is there."""
    from functools import cache

    from ebpl.data import load
    from experiments import results_store
    from experiments.field import FIELD_METHODS, TRAINED, VARIANTS, Field, measure_times, read_times
    from experiments.grid import PAST_DATASETS

    results, variants = Path(options.results), options.variants or list(TRAINED)
    for name in variants:
        if name not in VARIANTS:
            raise UsageError(f"There is no variant {name!r}. {did_you_mean(name, VARIANTS)}")
    _metrics(options)
    asked = (settings, options.datasets or PAST_DATASETS, parse_seeds(options.seeds), options.methods or FIELD_METHODS)
    work = Field(*asked, read_times(results, settings))
    if not (options.show or options.plots_only):
        read = cache(lambda name: load(name, data_dir=_data_dir(options)))
        with _continuable():
            work = Field(*asked, measure_times(work, results, read, _say))
        _train(options, work.cells(variants), settings, results)
    records = results_store.load(results)
    if not options.show:
        for path in work.write(Path(options.output), records):
            print(path)
    _show(work.overview(variants, records))
    return 0


def _metrics(options: argparse.Namespace) -> Sequence[str]:
    from experiments.table import PAPER_METRICS, title_of

    if options.metrics and options.experiment != "table1":
        raise UsageError(f"--metrics is for table1, not for {options.experiment}.")
    for name in options.metrics or ():
        title_of(name)
    return options.metrics or PAPER_METRICS


def _train(options: argparse.Namespace, chosen: list[Cell], settings: Settings, results: Path) -> None:
    """Train the cells that are missing, here or on a cluster."""
    from ebpl.terminal import terminal_progresses
    from experiments.ablation import AS_IT_IS, name_of
    from experiments.reproduce import Reproduction

    deadline = time.monotonic() + options.time_limit
    places = (results, Path(options.runs), terminal_progresses, _say, _data_dir(options))
    work = Reproduction(chosen, *places, deadline, at_once=options.at_once)
    if options.experiment == "ablation":  # of whose variants no single images are shown
        work.detailed = [cell for cell in chosen if name_of(cell, settings) == AS_IT_IS]
    with _continuable():
        if options.ray:
            from experiments.cluster import reproduce_on

            reproduce_on(options.ray, work)
        else:
            work.run()


def _multi_run(options: argparse.Namespace, settings: Settings) -> int:
    """An experiment of several trainings for each seed: run the seeds that are missing, and show what is there."""
    from ebpl.terminal import terminal_progresses
    from experiments.multi_run import experiment_of, shown

    for name in ("methods", "metrics", "variants", "ray"):
        if getattr(options, name):
            raise UsageError(f"--{name} is not for {options.experiment}.")
    results = Path(options.results)
    if not (options.show or options.plots_only):
        places = (results, Path(options.runs), terminal_progresses, _say, _data_dir(options))
        work = experiment_of(options.experiment)(settings, *places, time.monotonic() + options.time_limit)
        with _continuable():
            for data in options.datasets or work.datasets:
                work.run(data, parse_seeds(options.seeds))
    _show(shown(results, options.experiment))
    return 0


@contextlib.contextmanager
def _continuable() -> Iterator[None]:
    """A stop from the keyboard says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped. The same command continues where it was stopped.") from None


def _data_dir(options: argparse.Namespace) -> Path | None:
    return Path(options.data_dir) if options.data_dir else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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


if __name__ == "__main__":
    sys.exit(main())
