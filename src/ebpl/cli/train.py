"""The commands `ebpl train`, `ebpl resume` and `ebpl demo`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl import launch
from ebpl.cli.options import (
    Parser,
    add_data,
    add_data_dir,
    add_settings,
    add_skip_unreadable,
    changes,
    positive,
    seconds,
    whole,
)
from ebpl.config.presets import preset, read_config
from ebpl.errors import RunError, SomeFailedError, UsageError
from ebpl.rng import parse_seeds
from ebpl.terminal import harmless

if TYPE_CHECKING:
    from ebpl.runs import Run


def add_train_options(parser: Parser) -> None:
    """The options of `ebpl train`."""
    add_data(parser)
    add = parser.add_argument
    add("--run", metavar="DIR", help="the new run directory (default: in runs/)")
    add("--seeds", metavar="0-4", help="train several seeds, each in DIR/seed-N")
    add_skip_unreadable(parser)
    add("--time-limit", type=seconds, metavar="20m", help="shorten epochs as far as this time needs")
    _add_processes(parser)
    add_settings(parser)


def _add_processes(parser: Parser) -> None:
    parser.add_argument("--devices", type=positive, metavar="N", help="GPUs, or CPU processes, for one run")
    parser.add_argument("--nodes", type=positive, metavar="M", help="machines for one run")


def train(options: argparse.Namespace) -> int:
    """Train one run, or one for each of several seeds."""
    given = changes(options)
    if options.seeds is not None and "seed" in given:
        raise UsageError("--seed trains one seed and --seeds several: give one of the two.")
    seeds = parse_seeds(options.seeds) if options.seeds is not None else None
    if seeds and (options.devices or 1) * (options.nodes or 1) > 1:
        raise UsageError("--seeds trains several runs on one device, --devices and --nodes one run on several.")
    # a wrong name or value is found before anything heavy is imported
    preset(
        "quick" if options.preset is None else options.preset, read_config(options.config) if options.config else {}
    ).changed(given)
    if (code := launch.start(options.arguments, options.devices, options.nodes)) is not None:
        return code
    from ebpl import api
    from ebpl.terminal import terminal_progress, terminal_progresses

    how: dict[str, Any] = {name: getattr(options, name) for name in ("preset", "config", "run", "data_dir")}
    how |= {name: getattr(options, name) for name in ("image_size", "skip_unreadable", "time_limit")}
    if seeds is None:
        among, progress = {"devices": options.devices, "nodes": options.nodes}, terminal_progress()
        try:
            run = api.train(options.data, set=given, **how, **among, progress=progress)
        finally:
            progress.end()  # where it has shown something before the training that ends it
        return _show_finished(run)
    try:
        with terminal_progresses([f"seed {seed}" for seed in seeds]) as bars:
            runs = api.train(options.data, set=given, seeds=seeds, **how, progress=bars)
    except SomeFailedError as failed:
        _show_all(failed.runs)
        raise
    return _show_all(runs)


def _show_finished(run: Run) -> int:
    from ebpl.terminal import measures_table, show

    if not launch.place().is_first:
        return 0
    result = run.metrics()
    if result["metrics"]:
        method, title = run.settings.method, f"{run.data_name}, test images"
        told: dict[str, Any] = {"bins": {method: result.get("reliability")}, "intervals": result.get("intervals")}
        show(measures_table(title, {method: result["metrics"]}, **told))
    else:
        print(f"There are no labelled test images. Measure on others with: ebpl evaluate {run.path} DATA")
    chosen = result["chosen"]
    print(f"Weights of {chosen['phase']}, epoch {chosen['epoch']} (chosen by {chosen['by']}) are in {run.path}")
    _warn({"Warning": result})
    return 0


def _warn(results: dict[str, dict[str, Any]]) -> None:
    """What a user should know before the models are used."""
    from ebpl.runs.reader import warnings_of

    for title, result in results.items():
        for warning in warnings_of(result):
            print(f"{title}: {harmless(warning)}")


def _show_all(runs: Sequence[Run]) -> int:
    """Those of several runs that are finished: seeds in one table, other runs one by one."""
    from ebpl.runs import seeds_folder
    from ebpl.terminal import seeds_table, show

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
        _warn({f"Warning for seed {run.settings.seed}": run.metrics() for run in finished})
    return tell_lost(folder)


def tell_lost(folder: Path | None) -> int:
    """Name the seeds of a folder whose run directories are gone; the exit code of that."""
    from ebpl.runs import lost_seeds

    if not folder or not (lost := lost_seeds(folder)):
        return 0
    numbers = ", ".join(map(str, lost))
    print(f"There is no run directory for seed {numbers} in {folder}. Train it with: ebpl train DATA --seed {lost[0]}")
    return RunError.exit_code


def add_resume_options(parser: Parser) -> None:
    """The options of `ebpl resume`."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run directories, or the folder of several seeds: all of them at once"
    )
    add_data_dir(parser)
    parser.add_argument(
        "--time-limit", type=seconds, metavar="20m", help="the time for the rest (default: what is left of train's)"
    )
    _add_processes(parser)


def resume(options: argparse.Namespace) -> int:
    """Continue one run or several."""
    from ebpl.runs import open_runs, seeds_folder

    runs = open_runs(options.runs)
    if len(runs) > 1 and (options.devices or 1) * (options.nodes or 1) > 1:
        raise UsageError("Several runs continue together on one device; --devices and --nodes are for one run.")
    if (code := launch.start(options.arguments, options.devices, options.nodes)) is not None:
        return code
    from ebpl import api
    from ebpl.terminal import terminal_progress, terminal_progresses

    how: dict[str, Any] = {"data_dir": options.data_dir, "time_limit": options.time_limit}
    broken = api.damaged(runs)
    for run in runs:
        if run.finished and run.path not in broken and launch.place().is_first:
            print(f"{run.path} is finished already.")
    if len(runs) == 1:
        among = {"devices": options.devices, "nodes": options.nodes}
        named = Path(options.runs[0])
        code = _show_finished(api.resume(runs[0], **how, progress=terminal_progress(), **among))
        return code or tell_lost(named if named.resolve() != runs[0].path.resolve() else None)
    unfinished = [run for run in runs if not run.finished]
    together = seeds_folder(runs)
    labels = [run.path.name.replace("-", " ") if together else str(run.path) for run in unfinished]
    try:
        with terminal_progresses(labels) as bars:
            api.resume(unfinished, **how, progress=bars)
    except SomeFailedError as failed:
        broken |= failed.failures
    lost = _show_all([run for run in runs if run.path not in broken])
    if broken:
        raise SomeFailedError(runs, broken)
    return lost


SHOWN = ("accuracy", "f_score", "ece", "overconfidence")
COMPARED = ("curriculum-labeling", "ebpl")


def add_demo_options(parser: Parser) -> None:
    """The options of `ebpl demo`."""
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="seed of split, labels and weights (default: 0)"
    )
    parser.add_argument("--folder", metavar="DIR", default="runs", help="where the two runs are put (default: runs)")


def demo(options: argparse.Namespace) -> int:
    """Train both methods with 5 labels a class, show their metrics side by side, and draw their reliability."""
    from ebpl import api
    from ebpl.io import free_path
    from ebpl.methods import get_method
    from ebpl.reporting.charts import draw_reliability
    from ebpl.terminal import measures_table, show, terminal_progress

    folder = free_path(Path(options.folder) / f"demo-seed{options.seed}")
    print(f"digits: 1200 training images of 8 x 8 pixels, 5 labels in each of 10 classes, seed {options.seed}")
    results = {}
    for name in COMPARED:
        title = get_method(name).title
        settings = preset(
            "quick", method=name, seed=options.seed, pseudo_labels="hard"
        )  # digits are easy: most are right
        run = api.train("digits", settings, run=folder / name, progress=terminal_progress(title))
        results[title] = run.metrics()
    images = next(iter(results.values()))["images"]["test"]
    title = f"digits, {images} test images, 50 labels, hard pseudo-labels"
    bins = {name: result.get("reliability") for name, result in results.items()}
    show(measures_table(title, {name: result["metrics"] for name, result in results.items()}, SHOWN, bins))
    figure = draw_reliability(
        folder / "reliability.svg", {name: found["reliability"] for name, found in results.items()}
    )
    print(f"Reliability diagram: {figure}")
    return 0
