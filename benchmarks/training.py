"""EBPL's own training step as the trainer puts it together, to be measured; several seeds take turns on a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebpl.config import Settings
from ebpl.data.dataset import Images, ImageSet
from ebpl.methods import get_method
from ebpl.models import Architecture, Backbone
from ebpl.training.divergence import CHECK_EVERY
from ebpl.training.train_state import TrainState
from ebpl.training.train_step import Reading, TrainStep, runner, stream_size
from ebpl.training.training_set import TrainingSet

BATCHES = 64
"""So many different batches are looked up again and again."""


class Training:
    """So many independent trainings, on a GPU each on a stream of its own; calling it does one step of each.

    `images` are bytes (N, C, H, W) with their `targets`, both where the training is.
    """

    def __init__(
        self,
        architecture: Architecture,
        images: Tensor,
        targets: Tensor,
        settings: Settings,
        dtype: torch.dtype,
        seeds: int,
    ) -> None:
        self.turns = []
        for seed in range(seeds):
            stream = torch.cuda.Stream() if images.device.type == "cuda" else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):  # where its graph is captured too; no stream: nothing happens
                self.turns.append((stream, _Seed(architecture, images, targets, settings.changed(seed=seed), dtype)))
        if images.device.type == "cuda":
            torch.cuda.synchronize()  # made on one stream, used on another

    def __call__(self) -> None:
        """One step of each seed; on a GPU it is only queued."""
        for stream, seed in self.turns:
            turn: Any = torch.cuda.stream(stream) if stream else contextlib.nullcontext()
            with turn:
                seed.step()


class _Seed:
    """One training and its place in the data."""

    def __init__(
        self, architecture: Architecture, images: Tensor, targets: Tensor, settings: Settings, dtype: torch.dtype
    ) -> None:
        device = images.device
        self.state = TrainState(architecture, settings, device)
        self.state.create_buffer(tuple(images.shape[1:]))
        self.state.initialise("start")
        self.state.restart_chains("start")
        training_set = _training_set(images, targets, self.state.model.features)
        terms = get_method("ebpl").terms(settings)
        self.train_step = TrainStep(self.state, training_set, terms, settings, "flip", dtype)
        self.run = runner(self.train_step)
        self.order = {
            stream: torch.randint(len(images), (BATCHES, stream_size(stream, settings)), device=device)
            for stream in self.train_step.positions
        }
        self.done = 0
        self.reading: Reading | None = None

    def step(self) -> None:
        """What the trainer does for each update, with its look at the losses now and then."""
        for stream, positions in self.train_step.positions.items():
            positions.copy_(self.order[stream][self.done % BATCHES])
        self.train_step.ema_weight.fill_(self.state.next_ema_weight())
        self.run()
        self.done += 1
        if self.done % CHECK_EVERY == 0:
            if self.reading:
                self.reading()
            self.reading = self.train_step.read()


def _training_set(images: Tensor, targets: Tensor, backbone: Backbone) -> TrainingSet:
    """A training set of labelled images that are on their device already."""
    channels, height, width = images.shape[1:]
    none = Images(np.zeros((0, height, width, channels), np.uint8), np.zeros(0, np.int64))
    data = ImageSet("benchmark", tuple(str(label) for label in range(targets.shape[1])), none, None)
    return TrainingSet(data, images, targets, len(images), 0, np.zeros(0, np.int64), None, None, backbone)
