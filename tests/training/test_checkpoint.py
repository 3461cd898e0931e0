import copy
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ebpl.errors import RunError
from ebpl.training import checkpoint
from ebpl.training.callbacks import Callback
from tests.helpers import blobs, quick, trainer_of


def state(number: int) -> dict:
    return {"number": number, "tensor": torch.full((100,), float(number)), "history": [{"a": 1.5, "b": None}]}


def test_the_newest_checkpoint_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        checkpoint.save(tmp_path, number, state(number))
    loaded = checkpoint.load(tmp_path, print)
    assert loaded is not None
    assert loaded["number"] == 4
    assert torch.equal(loaded["tensor"], state(4)["tensor"])
    assert len(list(tmp_path.glob("*.pt"))) == 2


def test_checkpoints_of_epochs_that_were_undone_do_not_come_back(tmp_path: Path) -> None:
    for number in (7, 8, 5):  # training diverged after epoch 8 and went back
        checkpoint.save(tmp_path, number, state(number))
    loaded = checkpoint.load(tmp_path, print)
    assert loaded is not None
    assert loaded["number"] == 5


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path, print) is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, 1, state(1))
    newest = checkpoint.save(tmp_path, 2, state(2))
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[len(content) // 2] ^= 1
    else:
        content = bytearray()
    newest.write_bytes(content)
    loaded = checkpoint.load(tmp_path, print)
    assert loaded is not None
    assert loaded["number"] == 1


def test_only_damaged_checkpoints_are_an_error_that_names_them(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, state(1))
    path.write_bytes(b"damaged")
    with pytest.raises(RunError, match=path.name):
        checkpoint.load(tmp_path, print)


def test_a_strangers_pickle_is_not_executed(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'harmed'}",))

    content = pickle.dumps(Harm())
    (tmp_path / f"epoch-000001-{zlib.crc32(content):08x}.pt").write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        checkpoint.load(tmp_path, print)
    assert not (tmp_path / "harmed").exists()


# --- what a checkpoint must hold --------------------------------------------------------------------------------------


class Saved(Callback):
    """Keeps the newest checkpoint."""

    def checkpoint(self, epochs_done: int, state: dict[str, Any]) -> None:
        self.state = state


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """The checkpoint of a training that is over."""
    saved = Saved()
    trainer_of(quick(curriculum__steps=1), blobs(), saved).train()
    return saved.state


def taken_up(state: dict[str, Any], **changes: object) -> None:
    trainer_of(quick(curriculum__steps=1, **changes)).train(state)


def test_a_checkpoint_of_the_run_itself_is_taken_up_and_left_as_it_is(stored: dict[str, Any]) -> None:
    before = copy.deepcopy(stored)
    taken_up(stored)
    assert stored["history"] == before["history"]
    assert all(torch.equal(tensor, stored["tensors"][name]) for name, tensor in before["tensors"].items())


def other_labels(state: dict[str, Any]) -> None:
    state["targets"][:15] = state["targets"][:15].roll(1, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state.pop("phase"), "it has no 'phase'"),
        (lambda state: state.pop("tensors"), "it has no 'tensors'"),
        (lambda state: state.update(phase=-1), "phase is not what it should be"),
        (lambda state: state.update(epoch="one"), "epoch is not what it should be"),
        (lambda state: state.update(ema_updates=None), "ema_updates is not what it should be"),
        (lambda state: state.update(selected=["a"]), "selected is not what it should be"),
        (lambda state: state.update(history=[{"phase": "initial"}]), "history is not what it should be"),
        (lambda state: state["history"][0].update(updates="many"), "history is not what it should be"),
        (lambda state: state.update(best={"score": 1.0}), "best is not what it should be"),
        (lambda state: state.update(seconds=float("nan")), "seconds is not what it should be"),
        (lambda state: state.update(check={"temperature": 0.5}), "check is not what it should be"),
        (lambda state: state["divergence"].update(learning_rate="fast"), "divergence is not what it should be"),
        (lambda state: state["divergence"].update(more=1), "unexpected keyword argument 'more'"),
        (lambda state: state.update(targets=state["targets"][:-1]), "it is for other images or classes"),
        (other_labels, "its labels are of other images"),
        (lambda state: state.update(last_good={**state, "phase": None}), "phase is not what it should be"),
        (lambda state: state["tensors"].pop("model.classifier.bias"), "a model of another shape"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_an_error_that_says_why(
    stored: dict[str, Any], change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    state = copy.deepcopy(stored)
    change(state)
    with pytest.raises(RunError) as raised:
        taken_up(state)
    assert reason in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_checkpoint_for_other_settings_is_refused(stored: dict[str, Any]) -> None:
    for changes in ({"width": 2}, {"method": "curriculum-labeling"}, {"optim__ema_decay": 0.0}):
        with pytest.raises(RunError, match="were the settings of the run edited"):
            taken_up(copy.deepcopy(stored), **changes)


def test_too_little_memory_is_not_called_a_checkpoint_that_does_not_fit(stored: dict[str, Any]) -> None:
    with (
        pytest.raises(RuntimeError, match="can't allocate memory"),
        checkpoint.trusted(stored, stored["targets"], 15),
    ):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
