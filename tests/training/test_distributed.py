import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ebpl
from ebpl.config.presets import preset
from ebpl.errors import RunError, UsageError
from ebpl.training.distributed import ALONE, Ranks, join
from ebpl.training.train_step import TERMS
from ebpl.training.trainer import Trainer
from tests.helpers import blobs, in_processes, quick
from tests.training.two_ranks import WITHOUT_NOISE, finished, interrupted, trained


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A training in one process."""
    return trained(WITHOUT_NOISE, tmp_path_factory.mktemp("alone") / "run", ALONE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one: Trainer) -> Path:
    """Where two real processes have trained the same together, and have gone on with what one has begun."""
    folder = tmp_path_factory.mktemp("together")
    interrupted(one.run.path, folder / "started-by-one")
    results = in_processes(2, [sys.executable, "-m", "tests.training.two_ranks", folder])
    assert [result.returncode for result in results] == [0, 0], results
    return folder


@pytest.fixture
def ranks(folder: Path) -> list[dict[str, Any]]:
    """What each of the two has seen."""
    return [torch.load(folder / f"rank-{index}.pt", weights_only=False) for index in (0, 1)]


@pytest.fixture
def two_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_tensors_are_averaged_in_place_and_rows_gathered_in_order(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        assert torch.equal(seen["mean"][0], torch.full((2, 3), 0.5))
        assert torch.equal(seen["mean"][1], torch.full((2, 2, 2, 2), 5.0))
        assert seen["gathered"].tolist() == [0, 1, 10, 11]
        assert seen["everywhere"] == [True, False, False]
    assert torch.cat([seen["own"] for seen in ranks]).tolist() == list(range(8))


def test_what_the_first_process_does_is_known_to_all_and_so_is_its_failure(ranks: list[dict[str, Any]]) -> None:
    assert [seen["first"] for seen in ranks] == [["from", 0], ["from", 0]]
    assert [seen["failed"] for seen in ranks] == [("RunError", 4), ("ToldByFirst", 4)]


def test_both_processes_end_with_the_same_weights_but_their_own_chains(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert not torch.equal(ranks[0]["chains"], ranks[1]["chains"])


def test_without_noise_two_processes_train_like_one(ranks: list[dict[str, Any]], one: Trainer) -> None:
    for seen in ranks:
        assert len(seen["history"]) == len(one.history) == 3
        for together, alone in zip(seen["history"], one.history, strict=True):
            for name in TERMS:
                assert together[name] == pytest.approx(alone[name], rel=1e-5, abs=1e-6), name
            assert together["pseudo_labels"] == alone["pseudo_labels"]


def test_what_one_process_began_two_can_end(ranks: list[dict[str, Any]], one: Trainer) -> None:
    for seen in ranks:
        assert_close(seen["resumed"], one.learner.tensors())


def test_what_two_processes_began_one_can_end(folder: Path, tmp_path: Path, one: Trainer) -> None:
    run = interrupted(folder / "quiet", tmp_path / "run")
    assert_close(finished(run, ALONE).learner.tensors(), one.learner.tensors())


def assert_close(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == expected.keys()
    for name in expected:
        # a sample goes many steps, and at the kinks of the network its last digits decide which way
        near = 3e-3 if name == "buffer" else 1e-4
        torch.testing.assert_close(tensors[name], expected[name], rtol=1e-3, atol=near, msg=name)


def test_predictions_shared_out_are_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        together, alone = seen["predictions"]
        for shared, whole in zip(together, alone, strict=True):
            assert shared.shape == whole.shape
            np.testing.assert_allclose(shared, whole, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(*seen["features"], rtol=1e-4, atol=1e-6)
    assert np.array_equal(ranks[0]["predictions"][0][0], ranks[1]["predictions"][0][0])
    assert np.array_equal(ranks[0]["features"][0], ranks[1]["features"][0])


def test_one_process_is_alone_and_nothing_is_exchanged() -> None:
    tensor = torch.arange(3.0)
    assert join(preset("quick")) is join(preset("quick"), devices=1) is ALONE
    ALONE.mean_([tensor])
    assert ALONE.gather(tensor) is tensor
    assert tensor.tolist() == [0, 1, 2]
    assert (ALONE.share(7), ALONE.own(7)) == (7, slice(0, 7))
    assert ALONE.everywhere(True)
    assert ALONE.first(lambda: tensor) is tensor


def test_shares_are_next_to_each_other_and_make_up_the_whole() -> None:
    parts = [Ranks(4, index).own(12) for index in range(4)]
    assert [list(range(12))[part] for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_several_devices_from_python_need_torchrun() -> None:
    for start in (lambda: ebpl.train(blobs(), quick(), run="run", devices=2), lambda: join(quick(), nodes=2)):
        with pytest.raises(UsageError, match="torchrun"):
            start()
    assert not Path("run").exists()


@pytest.mark.usefixtures("two_there")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 63}, "batch_size is 63, but must be divisible .* Nearest: 62 or 64"),
        ({"chains": 1}, "chains is 1, .* Nearest: 2"),
        ({"buffer_size": 129}, "buffer_size is 129"),
    ],
)
def test_what_cannot_be_shared_out_equally_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        join(quick(**change))


@pytest.mark.usefixtures("two_there")
def test_numbers_other_than_those_of_the_starter_are_refused() -> None:
    with pytest.raises(UsageError, match="devices is 4, but there are 1 x 2 processes"):
        join(quick(), devices=4)
    assert join(quick(), devices=1, nodes=1) is ALONE


@pytest.mark.usefixtures("two_there")
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match=r"pip install 'ebpl\[distributed\]'"):
        join(quick(device="cpu"))


def test_a_process_that_cannot_reach_the_others_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise RuntimeError("Connection reset by peer")

    for name in ("all_reduce", "all_gather", "broadcast_object_list"):
        monkeypatch.setattr(torch.distributed, name, unreachable)
    two = Ranks(2, 0, torch.device("cpu"))
    attempts: list[Callable[[], object]] = [
        lambda: two.mean_([torch.zeros(1)]),
        lambda: two.gather(torch.zeros(1)),
        lambda: two.first(lambda: 1),
    ]
    for attempt in attempts:
        with pytest.raises(RunError, match="Another process of this training has ended"):
            attempt()
