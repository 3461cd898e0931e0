"""What the tests of methods have in common: a step on `blobs`, and what numpy makes of scores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebpl.training.losses import Consistency, LossTerm, Outputs
from ebpl.training.train_step import TrainStep
from ebpl.training.trainer import Trainer
from tests.helpers import quick, trainer_of

Array = NDArray[np.float64]


def softmax(scores: Array) -> Array:
    """Along the classes."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def random_scores(count: int, classes: int = 4, seed: int = 0, scale: float = 2.0) -> Tensor:
    """Scores of which some are confident."""
    return scale * torch.randn(count, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outputs_of(scores: Tensor) -> list[Outputs]:
    """What a network that gives these scores says."""
    return [Outputs(scores, -scores.logsumexp(1))]


def fake_step(term: LossTerm, classes: int = 4, **more: Any) -> Any:
    """A step of one process that has only the term's memory, in double precision."""
    memory = {name: tensor.double() for name, tensor in term.memory(classes).items()}
    return SimpleNamespace(memory=memory, mean_of_all=lambda value: value, ranks=SimpleNamespace(count=1), **more)


def in_two(term: LossTerm, work: Callable[[Any, int], Tensor], classes: int = 4) -> list[tuple[Any, Tensor]]:
    """The same work in two processes, here threads, which exchange means: the step of each, and what it found."""
    met, held = threading.Barrier(2), [torch.zeros(()), torch.zeros(())]
    steps = [fake_step(term, classes) for _ in range(2)]
    found: list[Tensor] = [torch.zeros(()), torch.zeros(())]

    def run(index: int) -> None:
        def mean_of_all(value: Tensor) -> Tensor:
            held[index] = value.clone()
            met.wait(10)
            mean = (held[0] + held[1]) / 2
            met.wait(10)
            return mean

        steps[index].mean_of_all, steps[index].ranks = mean_of_all, SimpleNamespace(count=2)
        found[index] = work(steps[index], index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(zip(steps, found, strict=True))


def prepared(method: str, **changes: Any) -> tuple[Trainer, TrainStep]:
    """A trainer on `blobs` with fresh weights, and its step, with images at its positions."""
    small = {"pseudo_labels": "none", "optim.batch_size": 8, "unlabeled.ratio": 2, "data.pixel_noise": 0.0}
    training = trainer_of(quick(method=method, **{**small, **changes}))
    training._start(None)
    step = training.step
    for place in step.positions.values():
        place.copy_(torch.arange(len(place)))
    step.generator.manual_seed(3)
    return training, step


def check_two_processes(term: Consistency, scores: Tensor) -> None:
    """Two processes with half of the images each have the targets and the memory of one with all."""
    step, half = fake_step(term), len(scores) // 2
    whole = term.targets(step, scores)
    halves = in_two(term, lambda own, index: term.targets(own, scores[half * index : half * index + half]))
    torch.testing.assert_close(torch.cat([targets for _, targets in halves]), whole)
    for own, _ in halves:
        for name, tensor in step.memory.items():
            torch.testing.assert_close(own.memory[name], tensor)
