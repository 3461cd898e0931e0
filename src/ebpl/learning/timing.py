"""How long a training will take here: a few updates of the very training, timed, times those of its schedule."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ebpl.data.images import ImageSet
from ebpl.learning.curriculum import phases
from ebpl.learning.prediction import BATCH, predict
from ebpl.learning.trainer import Trainer
from ebpl.reporting.progress import Silent
from ebpl.runs import Run
from ebpl.settings import Settings

FEWEST = 3
"""At least so many updates are timed, however long they take."""


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


def time_training(data: ImageSet, settings: Settings, seconds: float = 2.0) -> Timing:
    """Train for about so many seconds in a folder that is thrown away, and tell how long all of it would take."""
    with tempfile.TemporaryDirectory(prefix="ebpl-") as folder:
        begun = time.perf_counter()
        run = Run.create(Path(folder) / "run", settings, data, {})
        trainer = Trainer(run, data, Silent())
        if trainer.device.type == "cpu":  # a GPU is given many updates before it is looked at
            trainer.settings = settings.changed(guard_every=1)
        total = trainer.updates * sum(phase.epochs for phase in phases(settings))
        pieces = trainer.work()
        try:
            next(pieces)
            next(pieces)  # the first updates choose kernels and reserve memory
            _wait(trainer)
            start, before, epochs = time.perf_counter(), trainer.learner.averaged_updates, len(trainer.history)
            timed = elapsed = 0.0
            while elapsed < seconds or timed < FEWEST:
                next(pieces)
                elapsed = time.perf_counter() - start
                timed = trainer.learner.averaged_updates - before
            _wait(trainer)
            update = (time.perf_counter() - start) / timed
        except StopIteration:  # so short that it is finished already
            whole = time.perf_counter() - begun
            return Timing(total, total, whole / total, whole)
        finally:
            pieces.close()
        whole = (start - begun) + total * update
        whole += _predicted(trainer, with_validation=len(trainer.history) == epochs) * _prediction(trainer)
        return Timing(total, int(timed), update, whole)


def _predicted(trainer: Trainer, with_validation: bool) -> int:
    """How many images a whole training predicts; those that choose the weights, unless their time is in the updates."""
    data, schedule = trainer.data, trainer.schedule
    validation = len(trainer.validation or ()) * sum(phase.epochs for phase in schedule) if with_validation else 0
    steps = len(trainer.unlabeled) * sum(phase.step > 0 for phase in schedule)
    return validation + steps + 2 * len(data.test or ())


def _prediction(trainer: Trainer) -> float:
    """Seconds to predict one image."""
    images = trainer.pool.images[:BATCH]
    predict(trainer.learner.predictor, images, trainer.dtype)
    _wait(trainer)
    start = time.perf_counter()
    predict(trainer.learner.predictor, images, trainer.dtype)
    return (time.perf_counter() - start) / len(images)


def _wait(trainer: Trainer) -> None:
    """Until a GPU has done what it was given."""
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)
