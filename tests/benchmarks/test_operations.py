import collections
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.operations import operations
from benchmarks.plan import Case
from benchmarks.reference import Reference
from benchmarks.training import Training
from ebpl.config import Settings
from ebpl.models import Architecture

SETTINGS = Settings().changed(depth=10, width=2, sgld__steps=3, batch_size=4, sgld__chains=6, sgld__buffer_size=50)
ARCHITECTURE = Architecture.of(SETTINGS.model, (3, 12, 12), 5, density=True)
IMAGES, TARGETS = torch.randint(0, 256, (20, 3, 12, 12), dtype=torch.uint8), torch.eye(5)[torch.arange(20) % 5]


class Counter(TorchDispatchMode):
    """PyTorch's own counts (those of `FlopCounterMode`, which cannot follow `torch.autograd.grad`), by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if formula := flop_registry.get(func._overloadpacket):
            self.counts[str(func._overloadpacket)] += formula(*args, **kwargs or {}, out_val=out)
        return out


def counted_by_torch(call: Callable[[], object]) -> tuple[int, int]:
    """Operations in convolutions, and in all."""
    with Counter() as counter:
        call()
    return sum(n for kind, n in counter.counts.items() if "convolution" in kind), counter.counts.total()


def convolutions_of_an_update() -> int:
    found = operations(ARCHITECTURE)
    return found.update(SETTINGS) - 3 * SETTINGS.optim.batch_size * found.classifier


def test_an_update_does_the_operations_that_the_shapes_tell() -> None:
    training = Training(ARCHITECTURE, IMAGES, TARGETS, SETTINGS, torch.float32, seeds=1)
    convolutions, everything = counted_by_torch(training)
    assert convolutions == convolutions_of_an_update()
    assert 0 <= everything / operations(ARCHITECTURE).update(SETTINGS) - 1 < 1e-3


def test_the_update_of_best_does_the_operations_that_the_shapes_tell() -> None:
    case = Case(10, 1, 2, 3, 12, images=20, varied="best")
    settings = case.settings("cpu")
    assert (settings.consistency.weight, settings.consistency.batch_size) == (3.0, 12)
    training = Training(case.architecture, IMAGES, torch.eye(10)[torch.arange(20) % 10], settings, torch.float32, 1)
    shapes = operations(case.architecture)
    classified = 3 * settings.optim.batch_size * shapes.classifier
    predicted = settings.consistency.batch_size * 4 * shapes.classifier
    convolutions, everything = counted_by_torch(training)
    assert convolutions == shapes.update(settings) - classified - predicted
    assert 0 <= everything / shapes.update(settings) - 1 < 2e-3


def test_the_reference_does_no_more_than_that() -> None:
    reference = Reference(ARCHITECTURE, IMAGES, TARGETS, SETTINGS, torch.device("cpu"))
    assert counted_by_torch(reference)[0] == convolutions_of_an_update()


def test_a_prediction_is_one_pass_forward() -> None:
    model = ARCHITECTURE.build()
    with torch.no_grad():
        _, everything = counted_by_torch(lambda: model(torch.zeros(7, 3, 12, 12)))
    assert everything == 7 * operations(ARCHITECTURE).prediction


def test_a_large_network_costs_what_the_literature_says() -> None:
    # WRN-28-10 has 5.2 thousand million multiplications and additions an image of 32 x 32 (Zagoruyko and Komodakis)
    large = Architecture.of(Settings().changed(depth=28, width=10).model, (3, 32, 32), 10, density=True)
    assert round(operations(large).prediction / 2e9, 1) == 5.2
