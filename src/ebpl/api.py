"""Train, resume, evaluate: what the command line does, for Python, under the same names."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl import settings as presets
from ebpl.data.images import ImageSet
from ebpl.data.load import load
from ebpl.data.names import BENCHMARK_NAMES
from ebpl.data.split import split_for
from ebpl.devices import choose_device, describe_environment, threads
from ebpl.errors import SomeFailedError, UsageError
from ebpl.evaluating import Data, draw_reliability, evaluate, evaluation, evaluation_of_seeds, finish, opened
from ebpl.learning.ranks import ALONE, Ranks, join
from ebpl.processes import place
from ebpl.reporting.progress import Progress, Silent, duration
from ebpl.reporting.tensorboard import writer_class
from ebpl.runs import Run, Watched, open_runs, resume_command
from ebpl.seeds import checked_seeds
from ebpl.settings import Settings

if TYPE_CHECKING:
    from ebpl.learning.side_by_side import Pieces

__all__ = [
    "default_settings",
    "draw_reliability",
    "evaluate",
    "evaluation",
    "evaluation_of_seeds",
    "go_on",
    "resume",
    "resume_all",
    "train",
    "train_seeds",
]


def train(
    data: Data,
    settings: Settings | None = None,
    *,
    preset: str | None = None,
    run: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
    time_limit: float | None = None,
    devices: int | None = None,
    nodes: int | None = None,
    **changes: Any,
) -> Run:
    """Train on `data` and return the finished run.

    `data` is whatever `ebpl.load` takes. `settings` default to those of `preset`, which is `standard` on a GPU and
    `quick` on a CPU if not given; single settings can be changed by name. The run directory is `run`, or a new one
    below `runs/`. Image files that cannot be read are an error, or left out with `skip_unreadable`. With a `time_limit`
    in seconds, a few updates are timed first, and epochs are shortened until the whole training fits.

    In a script started by torchrun or SLURM in several processes, all of them train one run together, each on its own
    device; `devices` (on each machine) and `nodes` are then checked, and `devices=1` lets each train a run of its own.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/first", epochs=2, pseudo_labels="none")
    >>> sorted(ebpl.evaluate(run))[:3]
    ['accuracy', 'adaptive_ece', 'aurc']
    """
    chosen = _chosen(settings, preset, changes)
    choose_device(chosen)
    ranks = join(chosen, devices, nodes)
    if time_limit is not None and ranks.count > 1:
        raise UsageError("A time limit is for one process: the time of several is not known before they train.")

    def prepared() -> tuple[Run, ImageSet]:
        images = load(data, data_dir=data_dir, image_size=image_size, skip_unreadable=skip_unreadable)
        _check(images, chosen)
        source = _source(data, data_dir, image_size, skip_unreadable)
        fitting = _fitted(images, chosen, time_limit, progress or Silent())
        return Run.create(Path(run) if run else None, fitting, images, source, ranks.count), images

    made, images = ranks.first(prepared)
    for _ in _training(made, images, progress if progress and ranks.is_first else Silent(), ranks):
        pass
    return made


def train_seeds(
    data: Data,
    seeds: Iterable[int] | str,
    settings: Settings | None = None,
    *,
    preset: str | None = None,
    run: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    skip_unreadable: bool = False,
    progress: Sequence[Progress] | None = None,
    time_limit: float | None = None,
    **changes: Any,
) -> list[Run]:
    """Train the same settings with several seeds and return the finished runs, in the order of the seeds.

    On a GPU the seeds are trained side by side, elsewhere one after the other; each as if it were alone. All else is as
    in `train`; the run directories are `seed-N` in the folder `run`. Where some fail, the others are finished before
    `ebpl.errors.SomeFailedError` is raised.

    >>> import ebpl
    >>> runs = ebpl.train_seeds("digits", [0, 1], run="runs/two", epochs=1, pseudo_labels="none")
    >>> [run.path.as_posix() for run in runs]
    ['runs/two/seed-0', 'runs/two/seed-1']
    """
    if "seed" in changes:
        raise UsageError("Give a seed or seeds, not both.")
    _alone()
    chosen = _chosen(settings, preset, changes)
    every = [chosen.changed(seed=seed) for seed in checked_seeds(seeds)]
    images = load(data, data_dir=data_dir, image_size=image_size, skip_unreadable=skip_unreadable)
    for each in every:
        _check(images, each)
    source = _source(data, data_dir, image_size, skip_unreadable)
    shown = progress or [Silent() for _ in every]
    chosen = _fitted(images, chosen, time_limit / len(every) if time_limit else None, shown[0])
    runs = Run.create_for_seeds(Path(run) if run else None, chosen, [each.seed for each in every], images, source)
    return _all(runs, [_training(each, images, seen) for each, seen in zip(runs, shown, strict=True)])


def resume(
    run: Run | str | os.PathLike[str],
    *,
    data: ImageSet | None = None,
    progress: Progress | None = None,
    devices: int | None = None,
    nodes: int | None = None,
) -> Run:
    """Go on with a run that was interrupted, from its newest checkpoint; a finished run is returned as it is.

    It may go on with another number of `devices` or `nodes` than it was started with.
    """
    run = opened(run)
    if run.finished:
        return run
    ranks = join(run.settings, devices, nodes)
    images = ranks.first(lambda: run.load_data(data))
    for _ in _going_on(run, images, progress if progress and ranks.is_first else Silent(), ranks):
        pass
    return run


def resume_all(
    runs: Run | str | os.PathLike[str] | Iterable[Run | str | os.PathLike[str]],
    *,
    data: ImageSet | None = None,
    progress: Sequence[Progress] | None = None,
) -> list[Run]:
    """Go on with several runs as `train_seeds` does, side by side on a GPU; finished ones are returned as they are.

    A folder of several seeds stands for all of them.
    """
    _alone()
    several = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    every = []
    for run in several:
        every += [run] if isinstance(run, Run) else open_runs([Path(run)])
    shown = progress or [Silent() for _ in every]
    loaded: dict[str, ImageSet] = {}
    trainings = {}
    for run, seen in zip(every, shown, strict=True):
        if not run.finished:
            where = repr(run.source)
            loaded[where] = run.load_data(data or loaded.get(where))
            trainings[run] = _going_on(run, loaded[where], seen)
    _all(list(trainings), list(trainings.values()))
    return every


def default_settings(device: str = "auto") -> Settings:
    """The preset that fits this machine: `best` with a GPU, `quick` without."""
    import torch

    return presets.preset("best" if torch.cuda.is_available() and device != "cpu" else "quick")


def _source(data: Data, data_dir: Any, image_size: int | None, skip_unreadable: bool) -> dict[str, Any]:
    """Where the data came from, so that a resumed run finds it again."""
    if isinstance(data, ImageSet):
        return {}
    path = str(data) if str(data) in BENCHMARK_NAMES else str(Path(data).resolve())
    folder = str(Path(data_dir).resolve()) if data_dir else None
    skipping = {"skip_unreadable": True} if skip_unreadable else {}
    return {"path": path, "data_dir": folder, "image_size": image_size, **skipping}


def _chosen(settings: Settings | None, preset: str | None, changes: dict[str, Any]) -> Settings:
    if settings is not None and preset is not None:
        raise UsageError(
            "Give settings or a preset, not both: settings = ebpl.preset(name, ...) makes one of the other."
        )
    if settings is None:
        settings = presets.preset(preset) if preset else default_settings(changes.get("device", "auto"))
    return settings.changed(**changes)


def _fitted(images: ImageSet, settings: Settings, limit: float | None, progress: Progress) -> Settings:
    """The settings with epochs short enough for the time limit, if there is one."""
    if limit is None:
        return settings
    from ebpl.learning.fitting import fit_to_time

    fitted, timing = fit_to_time(images, settings, limit)
    if fitted == settings:
        progress.say(f"the whole training will take about {duration(timing.seconds)}, which fits")
    else:
        progress.say(
            f"the whole training would take about {duration(timing.seconds)}; epochs of {fitted.epoch_updates} updates "
            f"make it fit {duration(limit)}"
        )
    return fitted


def _alone() -> None:
    """Several runs at once are one process's work; processes that were started to train one run together are told."""
    if place().count > 1:
        raise UsageError(
            "Several runs at once are trained in one process, on one device; there are "
            f"{place().count} processes here. Give each process a seed of its own with --devices 1, or train one seed "
            "on all of them."
        )


def _check(images: ImageSet, settings: Settings) -> None:
    """Whatever can fail without training fails before a run directory is made."""
    split_for(images, settings)
    choose_device(settings)
    if settings.tensorboard:
        writer_class()


def _training(run: Run, images: ImageSet, progress: Progress, ranks: Ranks = ALONE) -> Pieces:
    """A whole training in small pieces, the first of which prepares and the last of which measures."""
    from ebpl.learning.trainer import Trainer

    run = run if ranks.is_first else Watched(run)
    with contextlib.ExitStack() as held:
        ranks.first(lambda: held.enter_context(run.training()))
        trainer = Trainer(run, images, progress, ranks)
        yield from trainer.work()
        ranks.first(lambda: finish(run, images, trainer))


def _going_on(run: Run, images: ImageSet, progress: Progress, ranks: Ranks = ALONE) -> Pieces:
    """The rest of a training, with what it was started with."""
    then, now = run.environment(), {**describe_environment(run.settings), "processes": ranks.count}
    for name in ("device", "dtype", "processes"):
        if then.get(name, now[name]) != now[name]:
            progress.say(f"The run was started with {name} {then[name]} and goes on here with {now[name]}.")
    if now["device"] != "cpu" or then.get("processes", 1) != ranks.count:
        # on a GPU trainings take turns, and threads change no digit
        yield from _training(run, images, progress, ranks)
        return
    with threads(then.get("threads", now["threads"])):
        yield from _training(run, images, progress, ranks)


def go_on(
    runs: Sequence[Run], images: ImageSet, progress: Sequence[Progress], deadline: float = math.inf
) -> dict[Path, Exception]:
    """Train runs on the same images to their ends, side by side on a GPU; returns the errors of those that failed.

    At the deadline, on the clock of `time.monotonic`, all stop after saving their last finished epoch.
    """
    pieces = [_going_on(run, images, seen) for run, seen in zip(runs, progress, strict=True)]
    return _together(runs, pieces, deadline)


def _all(runs: Sequence[Run], pieces: Sequence[Pieces]) -> list[Run]:
    """Train all of them to their ends, and tell which failed."""
    if failures := _together(runs, pieces):
        raise SomeFailedError(runs, failures)
    return list(runs)


def _together(runs: Sequence[Run], pieces: Sequence[Pieces], deadline: float = math.inf) -> dict[Path, Exception]:
    """Train all of them, side by side on a GPU, one after the other elsewhere; the errors of those that failed."""
    from ebpl.learning.side_by_side import Training, train_all

    on_gpu = all(choose_device(run.settings).type == "cuda" for run in runs)
    for run in runs if on_gpu else ():
        run.note_company(len(runs))
    trainings = [Training(each, on_gpu) for each in pieces]
    try:
        train_all(trainings, in_turns=on_gpu, deadline=deadline)
    except KeyboardInterrupt:
        reasons = [str(training.error) for training in trainings if training.error]
        message = "\n".join([f"Stopped. Go on with: {resume_command(runs)}", *reasons])
        raise KeyboardInterrupt(message) from None
    return {run.path: training.error for run, training in zip(runs, trainings, strict=True) if training.error}
