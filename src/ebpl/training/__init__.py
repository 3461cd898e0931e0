"""Training: loss terms, the train step, its state, the loop and its callbacks; here, several trainings in one process.

A small network leaves most of a large GPU idle, and several at once fill it. On a GPU trainings take turns, so that it
computes one while another is being prepared. Each has a CUDA stream of its own; nothing is shared but the device. On a
CPU there is nothing to overlap, and one training follows the other.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

AT_ONCE = 32
"""The number of streams that PyTorch has; two trainings must not share one."""
MOST_JUDGED = 5000
"""About as many training images are judged when a run is finished, to know outliers by."""

Pieces = Generator[None, None, None]


@dataclass
class Deadline:
    """A moment by which a training is to end, with what its parts were found to take, in seconds."""

    at: float
    """On the clock of `time.monotonic`."""
    update: float
    step: float = 0.0
    """The predictions at the start of a curriculum step."""
    finish: float = 0.0
    """What follows the last update."""
    beside: float = 0.0
    """What follows the updates of an epoch."""
    note: Callable[[], None] | None = None
    """Called at the end of each epoch, to keep the time that was spent."""

    def updates(self, most: int, epochs: int, steps: int) -> int:
        """How many updates each of these last epochs, before which there are such steps, may have; `most` if it can."""
        left = self.at - time.monotonic() - steps * self.step - self.finish - epochs * self.beside
        return max(1, int(min(most, left / (epochs * self.update))))

    def measured(self, updates: int, seconds: float, beside: float) -> None:
        """The last epoch took so long: the machine may have become busier, or have less to do.

        A slow epoch counts whole, a fast one by half: it may have been a lull.
        """
        slower = max(seconds, 1e-6) / updates / self.update
        slower = max(slower, (1 + slower) / 2)
        self.update, self.step, self.finish = self.update * slower, self.step * slower, self.finish * slower
        self.beside = beside
        if self.note is not None:
            self.note()


def judged_every(images: int) -> int:
    """Of so many training images, every which one is judged.

    >>> judged_every(800), judged_every(20_000)
    (1, 4)
    """
    return max(1, images // MOST_JUDGED)


def made_updates(history: Iterable[Mapping[str, Any]], full: int) -> int:
    """Updates of these epochs, which have `full` each unless a time limit has shortened them."""
    return sum(row.get("updates", full) for row in history)


def shortened(made: float, full: float) -> str:
    """What a time limit has made of a training that has so many updates by its settings; nothing if it made them all.

    >>> shortened(41, 100), shortened(100, 100)
    ('The time limit shortened training to 41 % of the updates of its settings.', '')
    """
    if not 0 <= made < full:
        return ""
    share = f"{min(99.0, 100 * made / full):.0f}" if made > 0.01 * full else "less than 1"
    return f"The time limit shortened training to {share} % of the updates of its settings."


class Training:
    """A training in pieces, as `Trainer.work` gives them, and the error that ended it, if one did."""

    def __init__(self, pieces: Pieces, on_gpu: bool) -> None:
        self._pieces = pieces
        self._stream = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]
        self.error: Exception | None = None

    def advance(self) -> bool:
        """Do the next piece; False if it was the last, or failed."""
        try:
            with torch.cuda.stream(self._stream):
                next(self._pieces)
            return True
        except StopIteration:
            return False
        except Exception as error:
            self._failed(error)
            return False

    def stop(self) -> None:
        """Let the training save its last finished epoch and end, as Ctrl-C does."""
        try:
            with torch.cuda.stream(self._stream), contextlib.suppress(KeyboardInterrupt, StopIteration):
                self._pieces.throw(KeyboardInterrupt)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Keep only the error: its traceback would keep the training's memory, which the others may need."""
        self.error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None


def train_all(trainings: Sequence[Training], in_turns: bool, deadline: float = math.inf) -> None:
    """Train all to their ends, in turns or one after the other; one that fails does not affect the others.

    In turns, all are prepared before the first begins: capturing and benchmarking want the device for themselves. At
    the deadline, on the clock of `time.monotonic`, those that are going save their last finished epoch and end.
    """
    at_once = AT_ONCE if in_turns else 1
    try:
        for start in range(0, len(trainings), at_once):
            going = list(trainings[start : start + at_once])
            while going and time.monotonic() < deadline:
                going = [training for training in going if training.advance()]
            for training in going:
                training.stop()
    except KeyboardInterrupt:
        for training in trainings:
            training.stop()
        raise
