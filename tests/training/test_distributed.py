import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ebpl
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.errors import RunError, UsageError
from ebpl.launch import ProcessInfo
from ebpl.methods import get_method
from ebpl.training import distributed
from ebpl.training.distributed import ALONE, Ranks, first_host
from ebpl.training.trainer import Trainer
from tests.helpers import blobs, in_processes, quick
from tests.training.two_ranks import WITHOUT_NOISE, finished, interrupted, trained


def join(settings: Settings, **places: int) -> Ranks:
    return distributed.join(settings, get_method(settings.method).terms(settings), **places)


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone") / "run"


@pytest.fixture(scope="module")
def one(one_run: Path) -> Trainer:
    """A training in one process."""
    return trained(WITHOUT_NOISE, one_run, ALONE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_run: Path, one: Trainer) -> Path:
    """Where two real processes have trained the same together, and have gone on with what one has begun."""
    folder = tmp_path_factory.mktemp("together")
    interrupted(one_run, folder / "started-by-one")
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
    assert [seen["failed"] for seen in ranks] == [("RunError", 4), ("RankZeroFailed", 4)]


def test_both_processes_end_with_the_same_weights_but_their_own_chains(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert not torch.equal(ranks[0]["chains"], ranks[1]["chains"])


def test_without_noise_two_processes_train_like_one(ranks: list[dict[str, Any]], one: Trainer) -> None:
    for seen in ranks:
        history = one.state.progress.history
        assert len(seen["history"]) == len(history) == 3
        for together, alone in zip(seen["history"], history, strict=True):
            for name in one.step.names:
                assert together[name] == pytest.approx(alone[name], rel=1e-5, abs=1e-6), name
            assert together["pseudo_labels"] == alone["pseudo_labels"]


def test_what_one_process_began_two_can_end(ranks: list[dict[str, Any]], one: Trainer) -> None:
    for seen in ranks:
        assert_close(seen["resumed"], one.state.tensors())


def test_what_two_processes_began_one_can_end(folder: Path, tmp_path: Path, one: Trainer) -> None:
    run = interrupted(folder / "quiet", tmp_path / "run")
    assert_close(finished(run, ALONE).state.tensors(), one.state.tensors())


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
        ({"sgld__chains": 1}, "chains is 1, .* Nearest: 2"),
        ({"sgld__buffer_size": 129}, "buffer_size is 129"),
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


def test_a_method_without_chains_may_have_any_number_of_them(two_there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_joined", lambda here, kind: Ranks(here.count, here.index))
    odd = {"sgld__chains": 1, "consistency__batch_size": 15}
    assert join(quick(method="curriculum-labeling", **odd)).count == 2
    assert join(quick(method="fixmatch", **odd)).count == 2  # its unlabelled batch is a multiple of the labelled one
    with pytest.raises(UsageError, match=r"consistency\.batch_size is 15, .* Nearest: 14 or 16"):
        join(quick(method="curriculum-labeling", consistency__weight=1.0, **odd))


def test_processes_find_each_other_without_lightning(ranks: list[dict[str, Any]]) -> None:
    assert [seen["processes"] for seen in ranks] == ["2", "2"]
    assert [seen["fabric"] for seen in ranks] == [[], []]


def test_a_process_that_is_not_told_where_to_meet_says_so(two_there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(RunError, match=r"The 2 processes of this training did not find each other: .*MASTER_ADDR"):
        join(quick(device="cpu"))


def test_fewer_gpus_than_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="2 processes on this machine, but each sees 1 GPUs"):
        distributed._joined(ProcessInfo(0, devices=2), "cuda")


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("localhost", "localhost"),
        ("node3,node4", "node3"),
        ("node[3-5]", "node3"),
        ("gpu[07-09,12],cpu3", "gpu07"),
        ("gpu[007]", "gpu007"),
        ("gpu-a[1,4].cluster", "gpu-a1.cluster"),
        ("rack[2-3]_blade[05-07],other[1-2]", "rack2_blade05"),
        ("host-12,host-[14-15]", "host-12"),
    ],
)
def test_the_first_machine_of_a_slurm_job_is_where_all_meet(
    monkeypatch: pytest.MonkeyPatch, names: str, first: str
) -> None:
    assert first_host(names) == first
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_NODELIST", names)
    monkeypatch.setenv("SLURM_JOB_ID", "1234567")
    distributed._meet_in_slurm()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == (first, str(15000 + 4567))


def test_where_the_user_says_to_meet_goes_before_what_slurm_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[1-2]")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setenv("MASTER_PORT", "99")
    distributed._meet_in_slurm()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("elsewhere", "99")


@pytest.mark.parametrize(
    ("variables", "here", "expected"),
    [
        ({"LOCAL_RANK": "1"}, ProcessInfo(3, devices=2, nodes=2), 1),
        ({"SLURM_LOCALID": "1"}, ProcessInfo(2, devices=2, nodes=2, slurm=True), 1),  # dealt out one by one
        ({"SLURM_LOCALID": "0"}, ProcessInfo(1, devices=2, nodes=2, slurm=True), 0),
        ({}, ProcessInfo(3, devices=2, nodes=2), 1),
    ],
)
def test_the_gpu_of_a_process_is_its_number_on_its_own_machine(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], here: ProcessInfo, expected: int
) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert distributed._local_index(here) == expected


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
