"""The command line. It holds no logic: options come from `Settings`, commands from `ebpl.api`.

Heavy imports happen inside the commands, so that `ebpl --help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ebpl import __version__, image_commands, processes
from ebpl.benchmarking import command as benchmarking
from ebpl.errors import MEMORY_ADVICE, DataError, EbplError, SomeFailedError, UsageError, did_you_mean, is_memory
from ebpl.experiments import command as reproducing
from ebpl.labeling import command as labeling
from ebpl.options import Parser, add_data, add_settings, changes, positive, seconds, whole
from ebpl.reporting.page import command as reporting
from ebpl.reporting.text import harmless
from ebpl.seeds import parse_seeds
from ebpl.settings import PRESET_HELP, preset

if TYPE_CHECKING:
    from ebpl.runs import Run


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
        print(harmless(text), file=sys.stderr)


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
    # such images are refused with a message of our own
    warnings.filterwarnings("ignore", message="Image size .* could be decompression bomb")
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

    image_commands.add_inspect(
        command(
            "inspect", image_commands.inspect, "look at data before training: what it holds and what is wrong with it"
        )
    )
    _add_train(command("train", _train, "train a classifier on few labels and many unlabelled images"))
    _add_resume(command("resume", _resume, "go on with a run that was interrupted"))
    _add_evaluate(command("evaluate", _evaluate, "measure accuracy and calibration of a run"))
    image_commands.add_predict(
        command("predict", image_commands.predict, "label images with a run's model, and say which do not belong")
    )
    labeling.add_suggest(command("suggest", labeling.suggest, "say which unlabelled images to label next"))
    labeling.add_add_labels(
        command(
            "add-labels", labeling.add_labels, "put labels that came back, from Label Studio or a CSV, into the data"
        )
    )
    _add_export(command("export", _export, "write a run's model as ONNX, with a model card"))
    reporting.add_options(
        command("report", reporting.report, "a page about a run: how far it can be believed, and why")
    )
    _add_demo(command("demo", _demo, "EBPL beside its baseline on scikit-learn's digits, in about a minute"))
    reproducing.add_options(
        command("reproduce", reproducing.reproduce, "run the paper's experiments, and make its tables and figures")
    )
    benchmarking.add_options(
        command("benchmark", benchmarking.benchmark, "measure the speed of training here, against a plain loop")
    )
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
    add_data(parser)
    parser.add_argument("--run", metavar="DIR", help="the new run directory (default: a free name below runs/)")
    parser.add_argument(
        "--seeds",
        metavar="0-4",
        help="train several seeds, also 0,2,5 or 0-2,7: side by side on a GPU, else one after the other; "
        "each has a run directory seed-N inside DIR",
    )
    _add_skip_unreadable(parser)
    presets = "; ".join(f"{name}: {text}" for name, text in PRESET_HELP.items())
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"what the options below start from ({presets}; default: best with a GPU, quick without)",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="20m",
        help="shorten epochs until the whole training fits this time, by timing a few updates first",
    )
    _add_processes(parser)
    add_settings(parser)


def _add_skip_unreadable(parser: Parser) -> None:
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="leave out image files that cannot be read, instead of stopping"
    )


def _add_processes(parser: Parser) -> None:
    group = parser.add_argument_group("Processes")
    group.add_argument(
        "--devices", type=positive, metavar="N", help="GPUs, or CPU processes, to train on together on each machine"
    )
    group.add_argument("--nodes", type=positive, metavar="M", help="machines to train on together")


def _train(options: argparse.Namespace) -> int:
    given = changes(options)
    if options.seeds is not None and "seed" in given:
        raise UsageError("--seed trains one seed and --seeds several: give one of the two.")
    seeds = parse_seeds(options.seeds) if options.seeds is not None else None
    if seeds and (options.devices or 1) * (options.nodes or 1) > 1:
        raise UsageError("--seeds trains several runs on one device, --devices and --nodes one run on several.")
    settings = preset(options.preset, **given) if options.preset else None
    if settings is None:
        preset(**given)  # a wrong value is found before anything heavy is imported
    if (code := processes.start(options.arguments, options.devices, options.nodes)) is not None:
        return code
    from ebpl import api
    from ebpl.reporting.progress import terminal_progress, terminal_progresses

    settings = settings or api.default_settings(given.get("device", "auto")).changed(**given)
    places = {"run": options.run, "data_dir": options.data_dir, "image_size": options.image_size}
    places |= {"skip_unreadable": options.skip_unreadable, "time_limit": options.time_limit}
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
    _add_skip_unreadable(parser)


def _evaluate(options: argparse.Namespace) -> int:
    import json

    from ebpl import api
    from ebpl.files import finite, write_json
    from ebpl.reporting.tables import measures_table, seeds_table, show
    from ebpl.runs import Run, seed_folders

    def title(run: Run) -> str:
        return str(options.data or f"{run.data_name}, test images")

    folder = Path(options.run)
    how = {"data_dir": options.data_dir, "skip_unreadable": options.skip_unreadable}
    if seed_folders(folder):
        result = api.evaluation_of_seeds(folder, options.data, **how)
        run = Run(folder / f"seed-{next(iter(result['seeds']))}")
        table = seeds_table(title(run), {seed: each["metrics"] for seed, each in result["seeds"].items()})
    else:
        run = Run(folder)
        result = api.evaluation(run, options.data, **how)
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
    _tell_lost(folder)
    return 0


def _tell_lost(folder: Path | None) -> None:
    """Name the seeds of a folder whose run directories are gone."""
    from ebpl.runs import lost_seeds

    if folder and (lost := lost_seeds(folder)):
        print(f"There is no run directory any more for seed {', '.join(map(str, lost))} in {folder}.")


def _add_export(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run directory")
    parser.add_argument("--output", metavar="FILE", help="the ONNX file to write (default: model.onnx in RUN); "
                        "the model card is put beside it")  # fmt: skip


def _export(options: argparse.Namespace) -> int:
    from ebpl.exporting import card_path, export

    path = export(options.run, options.output)
    print(f"{path} computes what the run's model computes. Its model card is {card_path(path)}")
    return 0


def _add_demo(parser: Parser) -> None:
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="seed of split, labels and weights (default: 0)"
    )
    parser.add_argument("--folder", metavar="DIR", default="runs", help="where the two runs are put (default: runs)")


def _demo(options: argparse.Namespace) -> int:
    from ebpl.demo import demo

    demo(options.seed, Path(options.folder))
    return 0
