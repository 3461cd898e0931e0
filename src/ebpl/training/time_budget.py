"""How long a training will take here, and a schedule that fits a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ebpl.config import Settings
from ebpl.data.dataset import ImageSet
from ebpl.errors import UsageError, number_of
from ebpl.io import write_json
from ebpl.models.predictions import predict
from ebpl.runs import Run
from ebpl.runs.reader import ENVIRONMENT, LONGEST, METRICS_TABLE, finite, read_table
from ebpl.terminal import duration, seconds
from ebpl.training import Deadline, judged_every
from ebpl.training.relabel import phases
from ebpl.training.trainer import Terms, Trainer

MIN_UPDATES = 3
"""Updates that are timed at least, however long they take."""
MARGIN = 0.9
"""Part of the time that is planned with; machines have other things to do as well."""


def checked_limit(time_limit: float | str | None) -> float | None:
    """A time limit in seconds, from a number of them or as the command line takes it."""
    try:
        return None if time_limit is None else seconds(time_limit)
    except ValueError as error:
        raise UsageError(f"time_limit: {error}.") from None


@dataclass(frozen=True)
class Timing:
    """What was measured, and what it means for the whole training."""

    updates: int
    """Updates of the whole schedule."""
    timed: int
    """Updates that were timed."""
    update: float
    """Seconds of one update."""
    seconds: float
    """Seconds of the whole training, with its predictions and its start."""
    step: float = 0.0
    """Seconds of the predictions at the start of a curriculum step."""
    finish: float = 0.0
    """Seconds of the predictions after the last update."""
    start: float = 0.0
    """Seconds of its start and of the first updates, which choose kernels."""

    def deadline(self, begun: float, limit: float, together: int = 1) -> Deadline:
        """The end of so many seconds from `begun`, on the clock of `time.monotonic`, with what was measured.

        A training that does not fit is planned with a part of them. `together`: so many share the device.
        """
        at = begun + (limit if together * self.seconds <= limit else MARGIN * limit)
        return Deadline(at, together * self.update, together * self.step, together * self.finish)


def time_training(data: ImageSet, settings: Settings, terms: Terms, seconds: float = 2.0) -> Timing:
    """Train for about this many seconds, write nothing, and estimate the time of the whole training."""
    begun = time.perf_counter()
    trainer = Trainer(settings, data, terms)
    if trainer.device.type == "cpu":  # a GPU is given many updates before it is looked at
        trainer.check_every = 1
    total, state = trainer.total_updates, trainer.state
    pieces = trainer.work()
    try:
        next(pieces)
        next(pieces)  # the first updates choose kernels and reserve memory
        _wait(trainer)
        start, before, epochs = time.perf_counter(), state.ema_updates, len(state.progress.history)
        timed = elapsed = 0.0
        while elapsed < seconds or timed < MIN_UPDATES:
            next(pieces)
            elapsed = time.perf_counter() - start
            timed = state.ema_updates - before
        _wait(trainer)
        update = (time.perf_counter() - start) / timed
    except StopIteration:  # so short that it is finished already
        whole = time.perf_counter() - begun
        return Timing(total, total, whole / total, whole)
    finally:
        pieces.close()
    whole = (start - begun) + total * update
    images = trainer.training_set
    image = _prediction_seconds(trainer)
    step, finish = images.unlabeled * image, (2 * len(images.data.test or ()) + _judged(trainer)) * image
    steps = sum(phase.step > 0 for phase in trainer.schedule)
    whole += steps * step + finish
    if len(state.progress.history) == epochs:  # else its time is in the updates
        whole += len(images.validation or ()) * sum(phase.epochs for phase in trainer.schedule) * image
    return Timing(total, int(timed), update, whole, step, finish, start - begun)


def _judged(trainer: Trainer) -> int:
    """Predictions of training images that the scores of outliers of a finished run are of."""
    count, backbone = len(trainer.training_set.data.train), trainer.training_set.backbone
    again = 2 if backbone.discards_components and not backbone.fixed else 0  # before and after it has learned
    return (1 + again) * -(-count // judged_every(count))


def _prediction_seconds(trainer: Trainer) -> float:
    """Seconds to predict one image."""
    model = trainer.state.predictor
    inputs = trainer.training_set.inputs[: model.features.batch]
    predict(model, inputs, trainer.dtype)
    _wait(trainer)
    start = time.perf_counter()
    predict(model, inputs, trainer.dtype)
    return (time.perf_counter() - start) / len(inputs)


def _wait(trainer: Trainer) -> None:
    """Until a GPU has done what it was given."""
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)


def fit_to_time(data: ImageSet, settings: Settings, terms: Terms, limit: float) -> tuple[int | None, Timing]:
    """How many updates an epoch may have to be done in `limit` seconds here, and how long all would take.

    Epochs get fewer updates, so that every phase keeps its share; None if the training fits as it is. It is the first
    plan only: the settings stay as they are, and a `Deadline` plans every epoch by what the last one took.
    """
    timing = time_training(data, settings, terms)
    if timing.seconds <= limit:
        return None, timing
    epochs = sum(phase.epochs for phase in phases(settings))
    beside = timing.seconds - timing.updates * timing.update  # the start, and predictions
    updates = int((MARGIN * limit - beside) / timing.update / epochs)
    if updates < 1:
        least = (beside + epochs * timing.update) / MARGIN
        raise UsageError(
            f"Nothing of use can be trained in {limit:.0f} s here: at least {least:.0f} s are needed with these "
            "settings. Allow more time, or choose a smaller network (--preset quick, --width)."
        )
    return updates, timing


def timed(
    data: ImageSet, settings: Settings, terms: Terms, limit: float | None, say: Callable[[str], None]
) -> Timing | None:
    """What was timed, where there is a limit in seconds; says whether the training fits."""
    if limit is None:
        return None
    updates, timing = fit_to_time(data, settings, terms, limit)
    if updates is None:
        say(f"the whole training will take about {duration(timing.seconds)}, which fits")
    else:
        say(
            f"the whole training would take about {duration(timing.seconds)}; epochs of "
            f"{number_of(updates, 'update')} make it fit {duration(limit)}, and get longer again where time is left"
        )
    return timing


def turns(runs: int, limit: float | None, on_gpu: bool) -> tuple[list[float], float | None, int]:
    """When each of several runs begins, how long it has, and how many share the device.

    On a GPU all do, elsewhere they take turns.

    >>> turns(2, 10.0, on_gpu=False), turns(2, 10.0, on_gpu=True)
    (([0.0, 5.0], 5.0, 1), ([0.0, 0.0], 10.0, 2))
    """
    if limit is None or on_gpu:
        return [0.0] * runs, limit, runs
    return [number * limit / runs for number in range(runs)], limit / max(1, runs), 1


def deadline_of_new(
    run: Run, timing: Timing | None, begun: float, limit: float | None, together: int = 1
) -> Deadline | None:
    """When a new run that was timed is to end; its limit is noted with it. None where it has none."""
    if timing is None or limit is None:
        return None
    record_limit(run, limit)
    return replace(timing.deadline(begun, limit, together), note=_counting(run, begun))


def record_limit(run: Run, seconds: float) -> None:
    """Note the time limit with the run, so that it holds when the run is resumed."""
    write_json(run.path / ENVIRONMENT, {**run.environment(), "time_limit": min(float(seconds), LONGEST)})


def _counting(run: Run, begun: float, before: float = 0.0) -> Callable[[], None]:
    """Notes with the run how long it was trained; epochs after the last checkpoint count too, though they are undone.

    `before`: seconds that were spent before `begun`.
    """

    def note() -> None:
        spent = before + max(0.0, time.monotonic() - begun)
        write_json(run.path / ENVIRONMENT, {**run.environment(), "time_spent": round(min(spent, LONGEST), 3)})

    return note


def deadline_to_continue(
    run: Run, data: ImageSet, terms: Terms, until: float | None, say: Callable[[str], None]
) -> Deadline | None:
    """When a run that continues is to end: `until`, on the clock of `time.monotonic`, or when its own limit is spent.

    None where it has no limit. However little time is left, each epoch gets an update.
    """
    begun, noted = time.monotonic(), run.environment()
    limit = noted.get("time_limit")
    seconds = [finite(row.get("seconds")) or 0.0 for row in read_table(run.path, METRICS_TABLE)]
    spent = max([noted.get("time_spent", 0.0), *seconds])
    if until is not None:
        left = max(1e-3, until - begun)
        record_limit(run, spent + left)
        say(f"the rest of the training has {duration(left)}; epochs are shortened where that is too little")
    elif limit is not None:
        left = max(0.0, float(limit) - spent)
        say(
            f"{duration(left)} are left of the time limit of {duration(limit)}; epochs are shortened where that is too "
            "little (--time-limit sets another)"
        )
    else:
        return None
    timing = time_training(data, run.settings, terms, min(2.0, left / 20))
    note = _counting(run, begun, spent)
    return Deadline(begun + MARGIN * left, timing.update, timing.step, timing.finish, note=note)
