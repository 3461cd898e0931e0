"""The real command in two processes, started in each of the three ways, killed, and resumed with another number."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers import ebpl, environment, in_processes, sets

EPOCHS = 4
SHORT = {
    "sgld.steps": 2,
    "sgld.buffer_size": 256,
    "optim.epochs": EPOCHS - 1,
    "curriculum.steps": 1,
    "curriculum.epochs": 1,
    "runtime.checkpoint_seconds": 0,
}
OPTIONS = ["--preset", "quick", "--labels-per-class", "4", "--device", "cpu", *sets(SHORT)]
COMMAND = ["train", "digits", *OPTIONS]
TWO = ["--devices", "2"]


def rows(run: Path) -> list[dict[str, str]]:
    path = run / "metrics.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def weights(run: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "best.safetensors").items()}


def processes(run: Path) -> int:
    number: int = json.loads((run / "environment.json").read_text())["processes"]
    return number


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    done = ebpl(*COMMAND, "--run", run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes end with when nobody disturbs them; all is told once."""
    run = tmp_path_factory.mktemp("two") / "run"
    done = ebpl(*COMMAND, *TWO, "--run", run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Weights of") == 1
    assert done.stderr.count("updates an epoch") == 1
    return run


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ebpl", *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def after_an_epoch(process: subprocess.Popen[str], run: Path) -> list[int]:
    """The numbers of the processes that were started, once there is a checkpoint."""
    deadline = time.monotonic() + 100
    while process.poll() is None and not list((run / "checkpoints").glob("epoch-*.pt")):
        assert time.monotonic() < deadline, "the process hangs"
        time.sleep(0.005)
    assert process.poll() is None
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def all_end(children: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{number}").exists() for number in children) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(Path(f"/proc/{number}").exists() for number in children)


def test_two_processes_learn_like_one_and_the_record_tells_how_many_there_were(one: Path, two: Path) -> None:
    assert (processes(one), processes(two)) == (1, 2)
    assert len(rows(one)) == len(rows(two)) == EPOCHS
    for name in ("loss", "cross_entropy"):  # other noise, same batches
        assert float(rows(two)[0][name]) == pytest.approx(float(rows(one)[0][name]), rel=0.05)
    assert weights(one) != weights(two)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs here")
def test_two_gpus_learn_like_one(tmp_path: Path) -> None:
    for name, more in (("one", []), ("two", TWO)):
        done = ebpl(*COMMAND, "--device", "cuda", *more, "--run", tmp_path / name, timeout=300)
        assert done.returncode == 0, done.stderr
    for name in ("loss", "cross_entropy"):
        assert float(rows(tmp_path / "two")[0][name]) == pytest.approx(float(rows(tmp_path / "one")[0][name]), rel=0.1)


def test_torchrun_starts_the_same_training(two: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    command = [*torchrun, "ebpl", *COMMAND, "--run", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Weights of") == 1
    assert weights(tmp_path / "run") == weights(two)


@pytest.mark.slow
def test_slurm_starts_the_same_training(two: Path, tmp_path: Path) -> None:
    def slurm(index: int) -> dict[str, str]:
        there = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}
        there |= {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NODELIST": "localhost", "SLURM_NODEID": "0"}
        return {**there, "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}

    first, second = in_processes(2, [sys.executable, "-m", "ebpl", *COMMAND, "--run", tmp_path / "run"], slurm)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout + second.stderr == ""
    assert weights(tmp_path / "run") == weights(two)


@pytest.mark.slow
def test_when_one_process_dies_all_end_and_the_run_goes_on_with_two_or_with_one(two: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = started(*COMMAND, *TWO, "--run", run)
    children = after_an_epoch(process, run)
    os.kill(children[1], signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "Process 1 of the training was ended by SIGKILL" in error
    assert "Traceback" not in error
    assert all_end(children)
    assert not (run / "test_metrics.json").exists()

    alone = shutil.copytree(run, tmp_path / "alone")
    done = ebpl("resume", alone)
    assert done.returncode == 0, done.stderr
    assert "started with processes 2 and continues here with 1" in done.stderr
    assert len(rows(alone)) == EPOCHS

    done = ebpl("resume", run, *TWO)
    assert done.returncode == 0, done.stderr
    assert "continuing after" in done.stderr
    assert weights(run) == weights(two)


def test_several_processes_stop_when_asked_to(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = started(*COMMAND, *TWO, "--run", run)
    children = after_an_epoch(process, run)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.count("Stopped.") == 1
    assert f"ebpl resume {run}" in error
    assert "Traceback" not in error
    assert all_end(children)


def test_what_is_wrong_is_told_once(tmp_path: Path) -> None:
    done = ebpl(*COMMAND, *TWO, "--run", tmp_path / "run", "--batch-size", 63)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "batch_size is 63" in done.stderr
