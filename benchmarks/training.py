"""EBPL's own training step as the trainer puts it together, to be measured; several seeds take turns on a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from ebpl.config import Settings
from ebpl.models import Architecture
from ebpl.training.train_state import Learner
from ebpl.training.train_step import Reading, Update, runner
from ebpl.training.training_set import Pool

BATCHES = 64
"""So many different batches are looked up again and again."""


class Training:
    """So many independent trainings, on a GPU each on a stream of its own; calling it does one step of each."""

    def __init__(
        self, architecture: Architecture, pool: Pool, settings: Settings, dtype: torch.dtype, seeds: int
    ) -> None:
        device = pool.images.device
        self.turns = []
        for seed in range(seeds):
            stream = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):  # where its graph is captured too; no stream: nothing happens
                self.turns.append((stream, _Seed(architecture, pool, settings.changed(seed=seed), dtype)))
        if device.type == "cuda":
            torch.cuda.synchronize()  # made on one stream, used on another

    def __call__(self) -> None:
        """One step of each seed; on a GPU it is only queued."""
        for stream, seed in self.turns:
            turn: Any = torch.cuda.stream(stream) if stream else contextlib.nullcontext()
            with turn:
                seed.step()


class _Seed:
    """One training and its place in the data."""

    def __init__(self, architecture: Architecture, pool: Pool, settings: Settings, dtype: torch.dtype) -> None:
        device = pool.images.device
        count, *shape = pool.images.shape
        self.learner = Learner(architecture, (shape[0], shape[1], shape[2]), settings, device)
        self.learner.initialise("start")
        self.learner.restart_chains("start")
        self.update = Update(self.learner, pool, settings, "flip", dtype)
        self.run = runner(self.update)
        self.order = torch.randint(count, (BATCHES, 2, settings.optim.batch_size), device=device)
        self.every = settings.guard_every
        self.done = 0
        self.reading: Reading | None = None

    def step(self) -> None:
        """What the trainer does for each update, with the guard's look at the losses now and then."""
        classified, everything = self.order[self.done % BATCHES]
        self.update.classified.copy_(classified)
        self.update.everything.copy_(everything)
        self.update.average_weight.fill_(self.learner.next_average_weight())
        self.run()
        self.done += 1
        if self.done % self.every == 0:
            if self.reading:
                self.reading()
            self.reading = self.update.read()
