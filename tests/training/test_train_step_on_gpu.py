"""The captured step against the plain one, on a GPU (make test-gpu)."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ebpl.config import Settings
from ebpl.methods import get_method, method_names
from ebpl.training.distributed import ALONE, Ranks
from ebpl.training.train_state import TrainState, sampling_copy
from ebpl.training.train_step import TrainStep, runner
from ebpl.training.training_set import ALL, LABELED, UNLABELED, TrainingSet
from tests.helpers import architecture, blobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
]

STARTS = {LABELED: 0, ALL: 50, UNLABELED: 10}


def trained(
    captured: bool,
    dtype: torch.dtype,
    updates: int = 5,
    ranks: Ranks = ALONE,
    fast: bool = True,
    method: str = "ebpl",
    **more: object,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    device = torch.device("cuda")
    small = {"sgld.steps": 3, "depth": 10, "width": 2, "learning_rate": 1e-3, "optim.gradient_clip": 1.0}
    settings = Settings().changed(small, method=method, **more)
    terms = get_method(method).terms(settings)
    head = "diagonal" if any(term.gaussian for term in terms) else None
    built = architecture(head, width=2, shape=(3, 16, 16), classes=4)
    built = replace(built, options={**built.options, "norm": settings.model.norm})
    state = TrainState(built, settings, device, ranks)
    if any(term.density for term in terms):
        state.create_buffer((3, 16, 16))
    state.create_memory([term.memory(4) for term in terms])
    state.initialise("test")
    state.restart_chains("test")
    numbers = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (200, 3, 16, 16), generator=numbers, dtype=torch.uint8).to(device)
    targets = torch.softmax(torch.randn(200, 4, generator=numbers), 1).to(device)
    features = state.model.features
    training_set = TrainingSet(blobs(), images, targets, 100, 0, np.arange(100, 200), None, None, features)
    step = TrainStep(state, training_set, terms, settings, "dihedral", dtype, ranks)
    if not fast:
        step.fast, step.fast_teacher, step.sampler = None, None, sampling_copy(state.model, dtype)
    run = runner(step) if captured else step
    step.generator.manual_seed(7)
    for i in range(updates):
        for stream, place in step.positions.items():
            place.copy_(torch.arange(i + STARTS[stream], i + STARTS[stream] + len(place)))
        step.prepare(state.next_ema_weight(), 0.2 + i / 10)
        run()
    return state.tensors_copy()["tensors"], step.sums / updates


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], part: str) -> float:
    """How far apart two states are in one part; of all tensors together, since single biases are small sums."""
    names = [name for name in one if name.startswith(part) or name.endswith(part)]
    first, second = (torch.cat([state[name].float().flatten() for name in names]) for state in (one, other))
    return float((first - second).norm() / second.norm())


PARTS = ("model", "average", "exp_avg", "buffer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_step_gives_the_plain_steps_numbers(dtype: torch.dtype) -> None:
    plain, plain_sums = trained(False, dtype, fast=False)
    captured, captured_sums = trained(True, dtype, fast=False)
    torch.testing.assert_close(captured_sums, plain_sums, rtol=2e-2, atol=2e-2)
    for part in PARTS:
        assert distance(captured, plain, part) < 0.05, part


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("method", [name for name in method_names() if not get_method(name).pseudo_labels])
def test_a_captured_step_of_every_other_method_gives_the_plain_steps_numbers(method: str, optimizer: str) -> None:
    more: dict[str, object] = {"optim__optimizer": optimizer, "optim__network_decay": 1e-3, "method": method}
    more |= {"unlabeled__ratio": 2, "optim__batch_size": 16, "sgld__chains": 16, "unlabeled__threshold": 0.3}
    plain, plain_sums = trained(False, torch.float32, fast=False, **more)
    captured, captured_sums = trained(True, torch.float32, fast=False, **more)
    torch.testing.assert_close(captured_sums, plain_sums, rtol=2e-2, atol=2e-2)
    for part in ("model", "average", *(["memory"] if any(name.startswith("memory") for name in plain) else [])):
        assert distance(captured, plain, part) < 0.05, part
    fast, fast_sums = trained(True, torch.bfloat16, **more)
    torch.testing.assert_close(fast_sums, plain_sums, rtol=5e-2, atol=5e-2)
    assert distance(fast, plain, "model") < 0.05


CONSISTENCY = {
    "consistency__weight": 3.0,
    "consistency__batch_size": 64,
    "consistency__temperature": 1.0,
    "consistency__confidence_threshold": 0.0,
}


@pytest.mark.parametrize("more", [{}, CONSISTENCY])
def test_a_captured_fast_step_is_as_exact_as_the_plain_one_in_bfloat16(more: dict[str, object]) -> None:
    exact, exact_sums = trained(False, torch.float32, fast=False, **more)
    plain, _ = trained(False, torch.bfloat16, fast=False, **more)
    fast, fast_sums = trained(True, torch.bfloat16, **more)
    torch.testing.assert_close(fast_sums, exact_sums, rtol=2e-2, atol=2e-2)
    for part in PARTS:
        assert distance(fast, exact, part) < 1.5 * distance(plain, exact, part), part


LONG = {
    "data__strong_views": "randaugment",
    "consistency__final_threshold": 0.3,
    "consistency__final_temperature": 0.0,
    "consistency__distribution_alignment": True,
}


@pytest.mark.parametrize("norm", ["none", "group"])
def test_the_choices_for_long_trainings_are_captured(norm: str) -> None:
    more: dict[str, object] = {**CONSISTENCY, **LONG, "consistency__confidence_threshold": 0.6, "model__norm": norm}
    plain, plain_sums = trained(False, torch.float32, fast=False, **more)
    captured, captured_sums = trained(True, torch.float32, fast=False, **more)
    torch.testing.assert_close(captured_sums, plain_sums, rtol=2e-2, atol=2e-2)
    for part in (*PARTS, "memory"):
        assert distance(captured, plain, part) < 0.05, part
    _, bfloat16_sums = trained(True, torch.bfloat16, **more)  # with group norm on PyTorch's own kernels
    torch.testing.assert_close(bfloat16_sums, plain_sums, rtol=1e-1, atol=1e-1)


def test_capturing_does_not_change_the_state() -> None:
    state, _ = trained(True, torch.bfloat16, updates=0)
    fresh, _ = trained(False, torch.bfloat16, updates=0)
    for name in fresh:
        assert torch.equal(state[name], fresh[name]), name


@pytest.fixture
def _nccl(tmp_path: Path) -> Iterator[None]:
    """A group of processes that exchange through NCCL, with this one as its only member."""
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )
    yield
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_nccl")
def test_the_exchange_of_gradients_is_part_of_the_captured_step() -> None:
    half = Ranks(2, 0, torch.device("cuda", 0))  # the other half is missing: its gradients count as zero
    plain, plain_sums = trained(False, torch.float32, ranks=half)
    captured, captured_sums = trained(True, torch.float32, ranks=half)
    torch.testing.assert_close(captured_sums, plain_sums, rtol=2e-2, atol=2e-2)
    for part in PARTS:
        assert distance(captured, plain, part) < 0.05, part
