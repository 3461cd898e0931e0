"""How long a training will take here, and a schedule that fits a time limit."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ebpl.config import Settings
from ebpl.data.dataset import ImageSet
from ebpl.errors import UsageError
from ebpl.models.predictions import BATCH, predict
from ebpl.training import Deadline
from ebpl.training.relabel import phases
from ebpl.training.trainer import Terms, Trainer

MIN_UPDATES = 3
"""Updates that are timed at least, however long they take."""
MARGIN = 0.9
"""Part of the time that is planned with; machines have other things to do as well."""


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

    def deadline(self, at: float) -> Deadline:
        """A moment to end at, on the clock of `time.monotonic`, from what was measured."""
        return Deadline(at, self.update, self.step, self.finish)


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
    step, finish = images.unlabeled * image, (2 * len(images.data.test or ()) + _energies(trainer)) * image
    steps = sum(phase.step > 0 for phase in trainer.schedule)
    whole += steps * step + finish
    if len(state.progress.history) == epochs:  # else its time is in the updates
        whole += len(images.validation or ()) * sum(phase.epochs for phase in trainer.schedule) * image
    return Timing(total, int(timed), update, whole, step, finish)


def _energies(trainer: Trainer) -> int:
    """How many training images the energies of a finished run are of."""
    return min(len(trainer.training_set.data.train), 5000) if trainer.state.buffer is not None else 0


def _prediction_seconds(trainer: Trainer) -> float:
    """Seconds to predict one image."""
    inputs, model = trainer.training_set.inputs[:BATCH], trainer.state.predictor
    predict(model, inputs, trainer.dtype)
    _wait(trainer)
    start = time.perf_counter()
    predict(model, inputs, trainer.dtype)
    return (time.perf_counter() - start) / len(inputs)


def _wait(trainer: Trainer) -> None:
    """Until a GPU has done what it was given."""
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)


def fit_to_time(data: ImageSet, settings: Settings, terms: Terms, limit: float) -> tuple[Settings, Timing]:
    """Settings whose training takes no longer than `limit` seconds here, and how long those given would have taken.

    Epochs get fewer updates, so that every phase keeps its share. A training that fits is left as it is.
    """
    timing = time_training(data, settings, terms)
    if timing.seconds <= limit:
        return settings, timing
    epochs = sum(phase.epochs for phase in phases(settings))
    beside = timing.seconds - timing.updates * timing.update  # the start, and predictions
    updates = int((MARGIN * limit - beside) / timing.update / epochs)
    if updates < 1:
        least = (beside + epochs * timing.update) / MARGIN
        raise UsageError(
            f"Nothing of use can be trained in {limit:.0f} s here: at least {least:.0f} s are needed with these "
            "settings. Allow more time, or choose a smaller network (--preset quick, --width)."
        )
    warmup = min(settings.optim.warmup_updates, updates * settings.optim.epochs // 8)
    return settings.changed(optim__updates_per_epoch=updates, optim__warmup_updates=warmup), timing
