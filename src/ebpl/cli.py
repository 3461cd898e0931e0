"""The command line. It holds no logic: options come from `Settings`, commands from `ebpl.api`.

Heavy imports happen inside the commands, so that `ebpl --help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

from ebpl import __version__, processes
from ebpl.errors import MEMORY_ADVICE, DataError, EbplError, SomeFailedError, UsageError, did_you_mean, is_memory
from ebpl.seeds import parse_seeds
from ebpl.settings import PRESET_HELP, PRESETS, Settings, field_type, preset

if TYPE_CHECKING:
    from ebpl.runs import Run


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, and suggests the right word for a wrong one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "allow_abbrev": False, "formatter_class": _Formatter})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")

    def options(self) -> list[str]:
        """All option words of this parser."""
        return [word for action in self._actions for word in action.option_strings if word.startswith("--")]


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    return processes.leave(_guarded(list(sys.argv[1:] if arguments is None else arguments)))


def _guarded(arguments: list[str]) -> int:
    """The exit code of a command, with a line for a person instead of an exception."""
    with contextlib.suppress(ValueError):  # not in the main thread, where Python takes no signals
        signal.signal(signal.SIGTERM, _stop)
    processes.follow_starter()
    try:
        return _main(arguments)
    except EbplError as error:
        _tell(f"ebpl: {error}")
        return error.exit_code
    except KeyboardInterrupt as stop:
        _tell(f"\nebpl: {str(stop) or 'Stopped.'}")
        return processes.INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"ebpl: {error.filename or 'The system'}: {error.strerror or error}", file=sys.stderr)
        return DataError.exit_code
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        print(f"ebpl: There is not enough memory. {MEMORY_ADVICE}", file=sys.stderr)
        return EbplError.exit_code


def _tell(text: str) -> None:
    """Say what all processes of a training would say, once."""
    if processes.place().is_first:
        print(text, file=sys.stderr)


def _stop(*_: object) -> NoReturn:
    """A polite kill is a stop from the keyboard: the last finished epoch is saved."""
    raise KeyboardInterrupt


def _main(arguments: list[str]) -> int:
    parser, commands = build_parser()
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands[known.command]
        wrong = unknown[0].split("=")[0]
        if wrong.startswith("-"):
            raise UsageError(f"There is no option {wrong} for {command.prog}. {did_you_mean(wrong, command.options())}")
        raise UsageError(f"{command.prog} does not take {wrong!r} here. See: {command.prog} --help")
    logging.getLogger("ebpl").setLevel(logging.INFO)
    known.arguments = arguments
    code: int = known.function(known)
    return code


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser and its commands by name."""
    parser = Parser(prog="ebpl", description="Few labels, many images, and a confidence you can believe.")
    parser.add_argument("--version", action="version", version=f"ebpl {__version__}")
    commands: dict[str, Parser] = {}
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, function: Any, text: str) -> Parser:
        commands[name] = subparsers.add_parser(name, help=text, description=text)
        commands[name].set_defaults(function=function)
        return commands[name]

    _add_train(command("train", _train, "train a classifier on few labels and many unlabelled images"))
    _add_resume(command("resume", _resume, "go on with a run that was interrupted"))
    _add_evaluate(command("evaluate", _evaluate, "measure accuracy and calibration of a run"))
    _add_predict(command("predict", _predict, "label images with a run's model, and say which do not belong"))
    _add_demo(command("demo", _demo, "EBPL beside its baseline on scikit-learn's digits, in about a minute"))
    _add_reproduce(command("reproduce", _reproduce, "run the paper's experiments, and make its tables and figures"))
    _add_benchmark(command("benchmark", _benchmark, "measure the speed of training here, against a plain loop"))
    subparsers.choices = _Suggesting(commands)
    return parser, commands


class _Suggesting(dict[str, Parser]):
    """Command names; a wrong one is answered with the nearest right ones."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            raise UsageError(f"There is no command {name!r}. {did_you_mean(str(name), self)}")
        return True


# --- train -----------------------------------------------------------------------------------------------------------


def _add_train(parser: Parser) -> None:
    from ebpl.data.names import BENCHMARK_NAMES

    parser.add_argument(
        "data",
        metavar="DATA",
        help="a folder of class folders and unlabeled/, a CSV of image,label, an .npz with MedMNIST's keys, "
        f"or a benchmark: {', '.join(BENCHMARK_NAMES)}",
    )
    parser.add_argument("--run", metavar="DIR", help="the new run directory (default: a free name below runs/)")
    parser.add_argument(
        "--seeds",
        metavar="0-4",
        help="train several seeds, also 0,2,5 or 0-2,7: side by side on a GPU, else one after the other; "
        "each has a run directory seed-N inside DIR",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where benchmarks are looked for first (also: EBPL_DATA)")
    parser.add_argument(
        "--image-size",
        type=_positive,
        metavar="N",
        help="resize your own images to N x N (default: 32, or as they are)",
    )
    presets = "; ".join(f"{name}: {text}" for name, text in PRESET_HELP.items())
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"what the options below start from ({presets}; default: standard with a GPU, quick without)",
    )
    _add_processes(parser)
    _add_settings(parser)


def _add_settings(parser: Parser, without: Sequence[str] = ()) -> None:
    groups: dict[str, Any] = {}
    defaults = {name: preset(name) for name in PRESETS}
    for field in dataclasses.fields(Settings):
        title = field.metadata["group"]
        if field.name in without:
            continue
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_setting(groups[title], field, defaults)


def _add_processes(parser: Parser) -> None:
    group = parser.add_argument_group("Processes")
    group.add_argument(
        "--devices", type=_positive, metavar="N", help="GPUs, or CPU processes, to train on together on each machine"
    )
    group.add_argument("--nodes", type=_positive, metavar="M", help="machines to train on together")


def _add_setting(group: Any, field: dataclasses.Field[Any], defaults: dict[str, Settings]) -> None:
    kind = field_type(field.name)
    word = "--" + field.name.replace("_", "-")
    text = field.metadata["help"]
    if field.default is not None:
        text += f" ({_default_text(field.name, defaults)})"
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text}
    if kind is bool:
        group.add_argument(word, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(kind) is Literal:
        group.add_argument(word, metavar="|".join(get_args(kind)), **common)
    else:
        group.add_argument(word, type=_whole if kind is int else _number, metavar="N" if kind is int else "X", **common)


def _default_text(name: str, defaults: dict[str, Settings]) -> str:
    """The default, with the presets that differ from the standard one."""
    shown = {preset_name: getattr(settings, name) for preset_name, settings in defaults.items()}
    standard = shown.pop("standard")
    others = [f"{preset_name}: {_plain(value)}" for preset_name, value in shown.items() if value != standard]
    return ", ".join([f"default: {_plain(standard)}", *others])


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _positive(text: str) -> int:
    if (value := _whole(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The settings among the options that were given."""
    names = {field.name for field in dataclasses.fields(Settings)}
    return {name: value for name, value in vars(options).items() if name in names}


def _train(options: argparse.Namespace) -> int:
    changes = _changes(options)
    if options.seeds is not None and "seed" in changes:
        raise UsageError("--seed trains one seed and --seeds several: give one of the two.")
    seeds = parse_seeds(options.seeds) if options.seeds is not None else None
    if seeds and (options.devices or 1) * (options.nodes or 1) > 1:
        raise UsageError("--seeds trains several runs on one device, --devices and --nodes one run on several.")
    settings = preset(options.preset, **changes) if options.preset else None
    if settings is None:
        preset(**changes)  # a wrong value is found before anything heavy is imported
    if (code := processes.start(options.arguments, options.devices, options.nodes)) is not None:
        return code
    from ebpl import api
    from ebpl.reporting.progress import terminal_progress, terminal_progresses

    settings = settings or api.default_settings(changes.get("device", "auto")).changed(**changes)
    places = {"run": options.run, "data_dir": options.data_dir, "image_size": options.image_size}
    if seeds is None:
        among = {"devices": options.devices, "nodes": options.nodes}
        return _show_finished(api.train(options.data, settings, **places, **among, progress=terminal_progress()))
    try:
        with terminal_progresses([f"seed {seed}" for seed in seeds]) as bars:
            runs = api.train_seeds(options.data, seeds, settings, **places, progress=bars)
    except SomeFailedError as failed:
        _show_all(failed.runs)
        raise
    return _show_all(runs)


def _show_finished(run: Run) -> int:
    from ebpl.reporting.tables import measures_table, show

    if not processes.place().is_first:
        return 0
    result = run.metrics()
    if result["metrics"]:
        show(measures_table(f"{run.data_name}, test images", {run.settings.method: result["metrics"]}))
    else:
        print(f"There are no labelled test images. Measure on others with: ebpl evaluate {run.path} DATA")
    chosen = result["chosen"]
    print(f"Weights of {chosen['phase']}, epoch {chosen['epoch']} (chosen by {chosen['by']}) are in {run.path}")
    return 0


def _show_all(runs: Sequence[Run]) -> int:
    """Those of several runs that are finished: seeds in one table, other runs one by one."""
    from ebpl.reporting.tables import seeds_table, show
    from ebpl.runs import seeds_folder

    finished = [run for run in runs if run.finished]
    folder = seeds_folder(runs)
    if folder is None:
        for run in finished:
            _show_finished(run)
    elif finished:
        results = {run.settings.seed: run.metrics()["metrics"] for run in finished}
        if all(results.values()):
            show(seeds_table(f"{runs[0].data_name}, test images", results))
        else:
            print(f"There are no labelled test images. Measure on others with: ebpl evaluate {folder} DATA")
        print(f"Each seed's weights are in its folder in {folder}")
    _tell_lost(folder)
    return 0


# --- resume, evaluate, demo ------------------------------------------------------------------------------------------


def _add_resume(parser: Parser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run directories, or the folder of several seeds: all of them at once"
    )
    _add_processes(parser)


def _resume(options: argparse.Namespace) -> int:
    from ebpl.runs import open_runs, seeds_folder

    runs = open_runs(options.runs)
    if len(runs) > 1 and (options.devices or 1) * (options.nodes or 1) > 1:
        raise UsageError("Several runs go on together on one device; --devices and --nodes are for one run.")
    if (code := processes.start(options.arguments, options.devices, options.nodes)) is not None:
        return code
    from ebpl import api
    from ebpl.reporting.progress import terminal_progress, terminal_progresses

    for run in runs:
        if run.finished and processes.place().is_first:
            print(f"{run.path} is finished already.")
    if len(runs) == 1:
        among = {"devices": options.devices, "nodes": options.nodes}
        return _show_finished(api.resume(runs[0], progress=terminal_progress(), **among))
    unfinished = [run for run in runs if not run.finished]
    together = seeds_folder(runs)
    labels = [run.path.name.replace("-", " ") if together else str(run.path) for run in unfinished]
    try:
        with terminal_progresses(labels) as bars:
            api.resume_all(unfinished, progress=bars)
    except SomeFailedError:
        _show_all(runs)
        raise
    return _show_all(runs)


def _add_evaluate(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run directory, or the folder of several seeds: all of them")
    parser.add_argument("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own test images)")
    parser.add_argument("--data-dir", metavar="DIR", help="where benchmarks are looked for first (also: EBPL_DATA)")
    parser.add_argument(
        "--json", metavar="FILE", help="also write measures and reliability bins to FILE (-: print them)"
    )


def _evaluate(options: argparse.Namespace) -> int:
    import json

    from ebpl import api
    from ebpl.files import finite, write_json
    from ebpl.reporting.tables import measures_table, seeds_table, show
    from ebpl.runs import Run, seed_folders

    folder = Path(options.run)
    seeds = seed_folders(folder)
    run = Run(seeds[0] if seeds else folder)
    title = str(options.data or f"{run.data_name}, test images")
    if seeds:
        result = api.evaluation_of_seeds(folder, options.data, data_dir=options.data_dir)
        table = seeds_table(title, {seed: each["metrics"] for seed, each in result["seeds"].items()})
    else:
        result = api.evaluation(run, options.data, data_dir=options.data_dir)
        table = measures_table(title, {run.settings.method: result["metrics"]})
    if options.json == "-":
        print(json.dumps(finite(result), indent=2))
        return 0
    if options.json:
        write_json(Path(options.json), result)
    show(table)
    if result.get("not_finished"):
        print(f"Not finished, and left out: seed {', '.join(map(str, result['not_finished']))}")
    for seed, reason in result.get("broken", {}).items():
        print(f"Seed {seed} is left out: {reason}")
    _tell_lost(folder)
    return 0


def _tell_lost(folder: Path | None) -> None:
    """Name the seeds of a folder whose run directories are gone."""
    from ebpl.runs import lost_seeds

    if folder and (lost := lost_seeds(folder)):
        print(f"There is no run directory any more for seed {', '.join(map(str, lost))} in {folder}.")


def _add_predict(parser: Parser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory")
    add("images", metavar="IMAGES", nargs="+", help="image files, or folders: all images in them and below")
    add("--output", default="-", metavar="FILE", help="the CSV to write (default: standard output)")
    add("--abstain-below", type=_share, default=0.0, metavar="P", help="no label where the confidence is lower")
    add("--outlier-quantile", type=_share, default=0.99, metavar="Q", help="an outlier has a higher energy than this "
        "share of the training images (default: 0.99)")  # fmt: skip


def _share(text: str) -> float:
    if not 0 <= (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _predict(options: argparse.Namespace) -> int:
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


def _add_demo(parser: Parser) -> None:
    parser.add_argument(
        "--seed", type=_whole, default=0, metavar="N", help="seed of split, labels and weights (default: 0)"
    )
    parser.add_argument("--folder", metavar="DIR", default="runs", help="where the two runs are put (default: runs)")


def _demo(options: argparse.Namespace) -> int:
    from ebpl.demo import demo

    demo(options.seed, Path(options.folder))
    return 0


# --- reproduce -------------------------------------------------------------------------------------------------------

VARIED = ("method", "pseudo_labels", "seed")


def _add_reproduce(parser: Parser) -> None:
    add = parser.add_argument
    add("experiment", metavar="EXPERIMENT", help="table1: both methods, all pseudo-labels; labels: 1 to 5 a class")
    add("--datasets", type=_words, metavar="LIST", help="benchmarks (default: the paper's seven; labels: blood)")
    add("--seeds", default="0-4", metavar="0-4", help="seeds of each cell; on a GPU they are trained side by side")
    add("--preset", default="standard", metavar="NAME", help="what the settings below start from (default: standard)")
    add("--show", action="store_true", help="only say which cells are there and which are missing")
    add("--time-limit", type=_time, default=float("inf"), metavar="20m", help="stop after that, to go on another time")
    add("--results", default="results", metavar="DIR", help="the ledger: a small file for each cell (default: results)")
    add("--runs", default="runs/reproduce", metavar="DIR", help="where cells are trained (default: runs/reproduce)")
    add("--output", default="reproduced", metavar="DIR", help="tables and figures (default: reproduced)")
    add("--data-dir", metavar="DIR", help="where benchmarks are looked for first (also: EBPL_DATA)")
    add("--ray", metavar="ADDRESS", help="spread the cells over a Ray cluster; auto: this machine's, local: a new one")
    _add_settings(parser, without=VARIED)


def _time(text: str) -> float:
    """Seconds from 90, 90s, 20m or 1.5h."""
    units = {"s": 1, "m": 60, "h": 3600}
    unit = units.get(text[-1:], 0)
    return _number(text[:-1] if unit else text) * (unit or 1)


def _reproduce(options: argparse.Namespace) -> int:
    import time

    from ebpl.experiments import ledger
    from ebpl.experiments.cells import cells

    settings = preset(options.preset, **_changes(options))
    chosen = cells(options.experiment, options.datasets, parse_seeds(options.seeds), settings)
    results, output = Path(options.results), Path(options.output)
    if not options.show:
        from ebpl.experiments.output import write
        from ebpl.experiments.reproduce import Reproduction
        from ebpl.reporting.progress import terminal_progresses

        def say(text: str) -> None:
            print(text, file=sys.stderr, flush=True)

        data_dir = Path(options.data_dir) if options.data_dir else None
        deadline = time.monotonic() + options.time_limit
        work = Reproduction(chosen, results, Path(options.runs), terminal_progresses, say, data_dir, deadline)
        try:
            if options.ray:
                from ebpl.experiments.cluster import reproduce_on

                reproduce_on(options.ray, work)
            else:
                work.run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Stopped. The same command goes on where it was.") from None
        for path in write(output, options.experiment, chosen, ledger.load(results), data_dir):
            print(path)
    _show_cells(chosen, ledger.load(results))
    return 0


def _show_cells(chosen: Any, records: Any) -> None:
    """Which cells are there and which are missing."""
    from rich import box
    from rich.table import Table

    from ebpl.experiments.output import overview
    from ebpl.reporting.tables import show

    heads, *lines = overview(chosen, records)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head)
    for line in lines:
        table.add_row(*line)
    show(table)


# --- benchmark -------------------------------------------------------------------------------------------------------


def _add_benchmark(parser: Parser) -> None:
    add = parser.add_argument
    add("--networks", type=_words, metavar="LIST", help="depth-width of each (default: 28-10,28-2,16-4; CPU: 10-1)")
    add("--seeds", type=_counts, metavar="LIST", help="how many runs at once on a GPU (default: 1,5)")
    add("--sgld-steps", type=_positive, metavar="N", help="sampling steps K for each update (default: 20; CPU: 5)")
    add("--batch-size", type=_positive, metavar="N", help="images in each part of the batch (default: 64; CPU: 16)")
    add("--image-size", type=_positive, metavar="N", help="images are N x N (default: 32; CPU: 28)")
    add("--rounds", type=_positive, default=5, metavar="N", help="how often everything is timed (default: 5)")
    add("--device", default="auto", metavar="auto|cpu|cuda", help="what to measure (default: the GPU if any)")
    add(
        "--scaling",
        nargs="?",
        const="default",
        metavar="NETWORK",
        help="also vary K, batch, image size and number of images around this network (default: 16-4; CPU: 10-1)",
    )
    add("--time-limit", type=_number, default=float("inf"), metavar="SECONDS", help="begin nothing new after that")
    add(
        "--record",
        metavar="FILE|DIR",
        help="where to write the record, as FILE.json or with a name of its own in DIR "
        "(default: benchmarks/records, where that exists)",
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _counts(text: str) -> list[int]:
    return [_positive(word) for word in _words(text)]


def _benchmark(options: argparse.Namespace) -> int:
    from ebpl.benchmarking.record import check_place, save
    from ebpl.benchmarking.report import provenance, tables, terminal
    from ebpl.benchmarking.run import benchmark
    from ebpl.reporting.progress import terminal_progress
    from ebpl.reporting.tables import show

    check_place(options.record)
    record = benchmark(
        options.device,
        options.time_limit,
        terminal_progress("benchmark"),
        networks=options.networks,
        seeds=options.seeds,
        sgld_steps=options.sgld_steps,
        batch_size=options.batch_size,
        image_size=options.image_size,
        rounds=options.rounds,
        scaling=options.scaling,
    )
    for table in tables(record):
        show(terminal(table))
    print(provenance(record))
    if path := save(record, options.record):
        print(f"Record: {path}")
    else:
        print("No record was written; --record says where to.")
    return processes.INTERRUPTED if record["stopped"] else 0
