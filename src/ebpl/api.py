"""Train and resume, for Python under the names and with the arguments of the command line."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.calibration.class_mix import NAMED, read_mix
from ebpl.config import Settings
from ebpl.config.presets import default_settings as default_settings
from ebpl.data import BENCHMARK_NAMES, load
from ebpl.data.dataset import ImageSet
from ebpl.data.split import split_for
from ebpl.devices import choose_device, describe_environment, free_threads, threads
from ebpl.encoders import load_encoder
from ebpl.errors import RunError, SomeFailedError, UsageError
from ebpl.inference.evaluate import finish
from ebpl.inference.sources import Data
from ebpl.launch import place
from ebpl.methods import get_method
from ebpl.models.fine_tuned_encoder import precompute
from ebpl.models.weights import describe_model
from ebpl.recommendation import encoder_size, settings_for
from ebpl.rng import checked_seeds
from ebpl.runs import Run, open_runs, resume_command
from ebpl.runs.reader import TEST_METRICS, WEIGHTS
from ebpl.terminal import Progress, Silent
from ebpl.training.distributed import ALONE, Ranks, join
from ebpl.training.time_budget import Timing, checked_limit, deadline_of_new, deadline_to_continue, timed, turns

if TYPE_CHECKING:
    from ebpl.training import Deadline, Pieces

ONE_PROCESS = "A time limit is for one process: the time of several is not known before they train."
RunPath = Run | str | os.PathLike[str]


def train(
    data: Data,
    settings: Settings | None = None,
    *,
    preset: str | None = None,
    config: str | os.PathLike[str] | None = None,
    set: Mapping[str, Any] | None = None,
    run: str | os.PathLike[str] | None = None,
    seeds: Iterable[int] | str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    skip_unreadable: bool = False,
    progress: Progress | Sequence[Progress] | None = None,
    time_limit: float | str | None = None,
    devices: int | None = None,
    nodes: int | None = None,
    **changes: Any,
) -> Any:
    """Train on `data` and return the finished run, or a list of runs with `seeds`.

    `data` is whatever `ebpl.load` takes. `settings` default to those of `preset`. If neither is given, nor `config` or
    an encoder, the preset is `best` with a GPU and `quick` without one, or what `ebpl inspect` recommends for image
    files; `features` where only an encoder is named. They are changed by a TOML file `config`, by
    `set={"sgld.steps": 5}`, and by name: `epochs=20`, `sgld__steps=5`. The run directory is `run`, or a new one below
    `runs/`. Image files that cannot be read are an error, or left out with `skip_unreadable`. With a `time_limit` (90
    or "20m"), a few updates are timed first, and epochs are shortened until the whole training fits; each epoch is
    planned anew by what the last one took.

    With `seeds` ("0-4" or [0, 1, 2]) the same settings are trained with each, side by side on a GPU, elsewhere one
    after the other; the run directories are `seed-N` in the folder `run`. Where some fail, the others are finished
    before `ebpl.SomeFailedError` is raised.

    In a script started by torchrun or SLURM in several processes, all of them train one run together, each on its own
    device; `devices` (on each machine) and `nodes` are then checked, and `devices=1` lets each train a run of its own.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/first", epochs=2, pseudo_labels="none")
    >>> sorted(ebpl.evaluate(run))[:3]
    ['accuracy', 'adaptive_ece', 'aurc']
    >>> [each.path.name for each in ebpl.train("digits", seeds=[0, 1], run="runs/two", epochs=1, pseudo_labels="none")]
    ['seed-0', 'seed-1']
    """
    begun, limit, changes = time.monotonic(), checked_limit(time_limit), {**(set or {}), **changes}
    several = None if seeds is None else checked_seeds(seeds)
    if several is not None:
        if "seed" in changes:
            raise UsageError("Give a seed or seeds, not both.")
        if (devices or 1) * (nodes or 1) > 1:
            raise UsageError("Several seeds are trained on one device; devices and nodes are for one run on several.")
    shown = list(progress) if isinstance(progress, Sequence) else [progress] if progress else []
    files: dict[str, Any] = {"image_size": image_size, "skip_unreadable": skip_unreadable}
    asked = {**files, "seed": several[0] if several else None, "time_limit": limit, "progress": next(iter(shown), None)}
    chosen, size = settings_for(data, settings, preset, config, changes, **asked)
    places = {"data_dir": data_dir, **files, "image_size": image_size or size or encoder_size(data, chosen)}
    with _free_threads(limit):
        if several is not None:
            bars = shown if isinstance(progress, Sequence) else None
            return _train_seeds(data, several, chosen, run, places, bars, limit, begun)
        return _train_one(data, chosen, run, places, shown[0] if shown else Silent(), limit, devices, nodes, begun)


def _free_threads(time_limit: float | None) -> contextlib.AbstractContextManager[None]:
    """Threads by what others leave free where time counts; else always as many, since they change the last digits."""
    return threads(free_threads()) if time_limit is not None else contextlib.nullcontext()


def _train_one(
    data: Data,
    settings: Settings,
    run: str | os.PathLike[str] | None,
    places: dict[str, Any],
    progress: Progress,
    time_limit: float | None,
    devices: int | None,
    nodes: int | None,
    begun: float,
) -> Run:
    choose_device(settings.runtime)
    ranks = join(settings, get_method(settings.method).terms(settings), devices, nodes)
    if time_limit is not None and ranks.count > 1:
        raise UsageError(ONE_PROCESS)

    def prepared() -> tuple[Run, ImageSet, Timing | None]:
        images = load(data, **places)
        _check(images, settings)
        precompute(images, settings, progress)
        timing = timed(images, settings, get_method(settings.method).terms, time_limit, progress.say)
        made = Run.create(Path(run) if run else None, settings, images, _source(data, **places), ranks.count)
        return made, images, timing

    made, images, timing = ranks.first(prepared)
    deadline = deadline_of_new(made, timing, begun, time_limit)
    for _ in _training(made, images, progress, ranks, deadline):
        pass
    return made


def _train_seeds(
    data: Data,
    seeds: Sequence[int],
    settings: Settings,
    run: str | os.PathLike[str] | None,
    places: dict[str, Any],
    progress: Sequence[Progress] | None,
    time_limit: float | None,
    begun: float,
) -> list[Run]:
    _one_process()
    images = load(data, **places)
    for seed in seeds:
        _check(images, settings.changed(seed=seed))
    shown = progress or [Silent() for _ in seeds]
    precompute(images, settings, shown[0])
    own = time_limit / len(seeds) if time_limit else None
    timing = timed(images, settings, get_method(settings.method).terms, own, shown[0].say)
    folder = Path(run) if run else None
    runs = Run.create_for_seeds(folder, settings, seeds, images, _source(data, **places))
    starts, limit, together = turns(len(runs), time_limit, _on_gpu(runs))
    begins = zip(runs, starts, strict=True)
    deadlines = [deadline_of_new(each, timing, begun + start, limit, together) for each, start in begins]
    waiting = zip(runs, shown, deadlines, strict=True)
    return _all(runs, [_training(each, images, seen, deadline=deadline) for each, seen, deadline in waiting])


def _on_gpu(runs: Sequence[Run]) -> bool:
    return all(choose_device(run.settings.runtime).type == "cuda" for run in runs)


def resume(
    runs: RunPath | Sequence[RunPath],
    *,
    data: ImageSet | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | Sequence[Progress] | None = None,
    devices: int | None = None,
    nodes: int | None = None,
    time_limit: float | str | None = None,
) -> Any:
    """Continue a run that was interrupted, from its newest checkpoint; a finished run is returned as it is.

    Several runs, or a folder of several seeds, are continued as `train` does with seeds, and returned as a list. A
    single run may continue with another number of `devices` or `nodes` than it was started with. Nothing is
    downloaded: a benchmark that is not found any more is looked for in `data_dir`. What is left of the time limit that
    a run was started with still holds; a `time_limit` for all that is left to do takes its place.
    """
    limit = checked_limit(time_limit)
    several = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    every = [each for run in several for each in ([run] if isinstance(run, Run) else open_runs([Path(run)]))]
    if len(every) == 1 and isinstance(runs, Run | str | os.PathLike):
        assert not isinstance(progress, Sequence)
        return _resume_one(every[0], data, data_dir, progress or Silent(), devices, nodes, limit)
    shown = progress if isinstance(progress, Sequence) else [Silent() for _ in every]
    return _resume_several(every, data, data_dir, shown, limit)


def _resume_one(
    run: Run,
    data: ImageSet | None,
    data_dir: Any,
    progress: Progress,
    devices: int | None,
    nodes: int | None,
    limit: float | None,
) -> Run:
    until = time.monotonic() + limit if limit else None
    if run.finished:
        run.check_whole()
        return run
    run.check_unedited()
    ranks = join(run.settings, get_method(run.settings.method).terms(run.settings), devices, nodes)
    if limit and ranks.count > 1:
        raise UsageError(ONE_PROCESS)
    images = ranks.first(lambda: run.load_data(data, data_dir))
    for _ in _continued(run, images, progress, ranks, until):
        pass
    return run


def _resume_several(
    runs: list[Run], data: ImageSet | None, data_dir: Any, progress: Sequence[Progress], limit: float | None
) -> list[Run]:
    _one_process()
    loaded: dict[str, ImageSet] = {}
    trainings = {}
    begun, unfinished = time.monotonic(), [run for run in runs if not run.finished]
    starts, own, _ = turns(len(unfinished), limit, _on_gpu(unfinished))
    ends = {run: begun + start + own if own else None for run, start in zip(unfinished, starts, strict=True)}
    for run, seen in zip(runs, progress, strict=True):
        if run in ends:
            where = repr(run.source)
            loaded[where] = run.load_data(data or loaded.get(where), data_dir)
            trainings[run] = _continued(run, loaded[where], seen, until=ends[run])
    failures = _together(list(trainings), list(trainings.values())) | damaged(runs)
    if failures:
        raise SomeFailedError(runs, failures)
    return runs


def damaged(runs: Iterable[Run]) -> dict[Path, Exception]:
    """What is wrong with the finished ones of these runs."""
    found: dict[Path, Exception] = {}
    for run in runs:
        try:
            if run.finished:
                run.check_whole()
        except RunError as error:
            found[run.path] = error
    return found


def _source(data: Data, data_dir: Any, image_size: int | None, skip_unreadable: bool) -> dict[str, Any]:
    """Where the data came from, so that a resumed run finds it again."""
    if isinstance(data, ImageSet):
        return {}
    path = str(data) if str(data) in BENCHMARK_NAMES else str(Path(data).resolve())
    folder = str(Path(data_dir).resolve()) if data_dir else None
    skipping = {"skip_unreadable": True} if skip_unreadable else {}
    return {"path": path, "data_dir": folder, "image_size": image_size, **skipping}


def _one_process() -> None:
    """Several runs are trained by one process; among processes that train one run together it is an error."""
    if place().count > 1:
        raise UsageError(
            "Several runs at once are trained in one process, on one device; there are "
            f"{place().count} processes here. Give each process a seed of its own with --devices 1, or train one seed "
            "on all of them."
        )


def _check(images: ImageSet, settings: Settings) -> None:
    """Whatever can fail without training fails before a run directory is made."""
    from ebpl.models import build_backbone
    from ebpl.training.callbacks import summary_writer

    split_for(images, settings)
    if settings.data.class_mix not in (None, *NAMED):
        read_mix(settings.data.class_mix, images.classes)
    choose_device(settings.runtime)
    if not get_method(settings.method).takes_features and (
        settings.model.frozen_encoder or settings.model.backbone == "rows"
    ):
        raise UsageError(
            f"The method {settings.method} learns from changed views of images, and features have none. Use --method "
            "ebpl, a preset without an encoder, or let the encoder learn with --fine-tune all."
        )
    if settings.model.encoder:
        encoder = load_encoder(settings.model.encoder)
        if not settings.model.frozen_encoder:
            encoder.network()
    elif settings.model.fine_tune != "none":
        raise UsageError("Only an encoder can be fine-tuned. Name one with --encoder, or leave out the preset.")
    else:
        options = {"depth": 10, "width": 1}  # a small one: it is the name that may be wrong
        try:
            build_backbone(settings.model.backbone, options, images.shape)
        except KeyError as error:  # a backbone that other settings describe
            raise UsageError(f"The backbone {settings.model.backbone} needs model.{error.args[0]}.") from error
    if settings.runtime.tensorboard:
        summary_writer()


def _training(
    run: Run,
    images: ImageSet,
    progress: Progress,
    ranks: Ranks = ALONE,
    deadline: Deadline | Callable[[], Deadline | None] | None = None,
) -> Pieces:
    """A whole training in small pieces, the first of which prepares and the last of which measures."""
    from ebpl.training import checkpoint
    from ebpl.training.callbacks import Callback, ProgressBar, RunLog, RunWriter, TensorBoard
    from ebpl.training.trainer import Trainer

    method = get_method(run.settings.method)
    with contextlib.ExitStack() as held:
        ranks.first(lambda: held.enter_context(run.training()))
        end = deadline() if callable(deadline) else deadline
        callbacks: list[Callback] = []
        trainer = Trainer(
            run.settings, images, method.terms, reinitialise=method.reinitialise, callbacks=callbacks, ranks=ranks
        )
        trainer.deadline = end
        if ranks.is_first:
            callbacks += [RunWriter(run, describe_model(trainer.state.model, images)), RunLog(run)]
            callbacks += [TensorBoard(run.path / "tensorboard")] if run.settings.runtime.tensorboard else []
            callbacks.append(ProgressBar(progress))
            trainer.say(f"run directory {run.path}")
        stored = ranks.first(lambda: checkpoint.load(run.checkpoints, trainer.say))
        if stored is None and ranks.is_first and (run.path / TEST_METRICS).is_file():
            raise RunError(
                f"{run.path} was finished, but {WEIGHTS} is gone, and there is no checkpoint to make it from. Restore "
                f"it from a backup, or remove {TEST_METRICS} to train the run again from its start."
            )
        yield from trainer.work(stored)
        ranks.first(lambda: finish(run, trainer))


def _continued(
    run: Run, images: ImageSet, progress: Progress, ranks: Ranks = ALONE, until: float | None = None
) -> Pieces:
    """The rest of a training, with what it was started with; `until` ends it, on the clock of `time.monotonic`."""
    run.check_unedited()
    terms = get_method(run.settings.method).terms
    deadline = partial(deadline_to_continue, run, images, terms, until, progress.say) if ranks.count == 1 else None
    then, now = run.environment(), {**describe_environment(run.settings.runtime), "processes": ranks.count}
    for name in ("device", "dtype", "processes"):
        if then.get(name, now[name]) != now[name] and ranks.is_first:
            progress.say(f"The run was started with {name} {then[name]} and continues here with {now[name]}.")
    if deadline is None and "time_limit" in then and ranks.is_first:
        progress.say("The time limit that the run was started with is for one process, and does not hold here.")
    if now["device"] != "cpu" or then.get("processes", 1) != ranks.count:
        # on a GPU trainings take turns, and threads change no digit
        yield from _training(run, images, progress, ranks, deadline)
        return
    most = max(os.cpu_count() or 1, now["threads"])  # the run may be foreign
    if (wanted := then.get("threads", now["threads"])) > most:
        progress.say(f"The run was started with {wanted} threads and continues here with {most}.")
    with threads(min(wanted, most)):
        yield from _training(run, images, progress, ranks, deadline)


def resume_runs(
    runs: Sequence[Run], images: ImageSet, progress: Sequence[Progress], deadline: float = math.inf
) -> dict[Path, Exception]:
    """Train runs on the same images to their ends, side by side on a GPU; returns the errors of those that failed.

    At the deadline, on the clock of `time.monotonic`, all stop after saving their last finished epoch.
    """
    pieces = [_continued(run, images, seen) for run, seen in zip(runs, progress, strict=True)]
    return _together(runs, pieces, deadline)


def _all(runs: Sequence[Run], pieces: Sequence[Pieces]) -> list[Run]:
    """Train all of them to their ends, and report which failed."""
    if failures := _together(runs, pieces):
        raise SomeFailedError(runs, failures)
    return list(runs)


def _together(runs: Sequence[Run], pieces: Sequence[Pieces], deadline: float = math.inf) -> dict[Path, Exception]:
    """Train all of them, side by side on a GPU, one after the other elsewhere; the errors of those that failed."""
    from ebpl.training import Training, train_all

    on_gpu = _on_gpu(runs)
    for run in runs if on_gpu else ():
        run.record_concurrency(len(runs))
    trainings = [Training(each, on_gpu) for each in pieces]
    try:
        train_all(trainings, in_turns=on_gpu, deadline=deadline)
    except KeyboardInterrupt:
        reasons = [str(training.error) for training in trainings if training.error]
        raise KeyboardInterrupt("\n".join([f"Stopped. Continue with: {resume_command(runs)}", *reasons])) from None
    return {run.path: training.error for run, training in zip(runs, trainings, strict=True) if training.error}


__all__ = ["default_settings", "resume", "resume_runs", "train"]
