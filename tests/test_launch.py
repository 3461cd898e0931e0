import os
import subprocess
import sys
import threading
import time

import pytest

from ebpl import launch
from ebpl.errors import UsageError
from ebpl.launch import ProcessInfo, place, start
from tests.helpers import ROOT

SLURM = {
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NAME": "train",
}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def _started_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SLURM, *TORCHRUN, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)


def given(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ProcessInfo()),
        (TORCHRUN, ProcessInfo(3, devices=2, nodes=2)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ProcessInfo()),
        ({"RANK": "colonel", "WORLD_SIZE": "2"}, ProcessInfo()),
        (SLURM, ProcessInfo(5, devices=4, nodes=2, slurm=True)),
        ({**SLURM, "SLURM_JOB_NAME": "interactive"}, ProcessInfo()),
        ({**SLURM, "SLURM_NTASKS": "1"}, ProcessInfo()),
        ({**SLURM, **TORCHRUN}, ProcessInfo(3, devices=2, nodes=2)),
    ],
    ids=[
        "alone",
        "torchrun",
        "torchrun with one",
        "not torchrun",
        "slurm",
        "slurm's shell",
        "slurm with one",
        "torchrun below slurm",
    ],
)
def test_a_process_knows_its_place(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: ProcessInfo
) -> None:
    given(monkeypatch, variables)
    assert place() == expected
    assert place().is_first == (expected.index == 0)


def test_nothing_is_started_for_one_process_or_where_others_have_started_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start([], None, None) is None
    assert start([], 1, None) is None
    given(monkeypatch, TORCHRUN)
    assert start([], 2, 2) is None
    assert start([], None, None) is None
    assert place().count == 4


def test_one_process_asked_for_is_alone_among_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SLURM)
    assert start([], 1, None) is None
    assert place() == ProcessInfo()


def test_machines_must_know_where_the_first_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="variables MASTER_ADDR, MASTER_PORT, NODE_RANK"):
        start([], 1, 2)
    given(monkeypatch, {"MASTER_ADDR": "here", "MASTER_PORT": "1", "NODE_RANK": "2"})
    with pytest.raises(UsageError, match="NODE_RANK is '2', but must be a number from 0 to 1"):
        start([], 1, 2)


def watched(*codes: str) -> int:
    children = [subprocess.Popen([sys.executable, "-c", f"import os, time; {code}"]) for code in codes]
    try:
        return launch._watched(children, 0)
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_all_ending_well_is_success() -> None:
    assert watched("pass", "time.sleep(0.2)") == 0


def test_the_others_do_not_outlive_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.5)
    began = time.monotonic()
    assert watched("time.sleep(60)", "os._exit(3)") == 3
    assert watched("time.sleep(0.2); os._exit(6)", "os._exit(4)") == 6  # the first process knows best
    assert watched("os.kill(os.getpid(), 9)", "time.sleep(60)") == 128 + 9
    assert time.monotonic() - began < 20
    assert capsys.readouterr().err == "ebpl: Process 0 of the training was ended by SIGKILL.\n"


def test_a_process_ends_with_the_one_that_started_it() -> None:
    """The starter is killed, which it cannot tell anybody."""
    child = "from ebpl.launch import follow_starter; import time; follow_starter(); print('up', flush=True); "
    starter = f"""
import os, subprocess, sys, time
child = {child + "time.sleep(60)"!r}
process = subprocess.Popen([sys.executable, "-c", child], env={{**os.environ, "EBPL_STARTED_BY": str(os.getpid())}})
time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen([sys.executable, "-c", starter], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.kill()
        deadline = threading.Timer(30, process.stdout.close)
        deadline.start()
        assert process.stdout.read() == b""  # the pipe is closed once nobody holds it any more
        deadline.cancel()


def test_a_process_that_fails_among_others_does_not_wait_for_them() -> None:
    code = "import atexit, sys; from ebpl.launch import leave; atexit.register(print, 'waiting'); sys.exit(leave(4))"
    for variables, said in ((TORCHRUN, ""), ({}, "waiting\n")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (4, said)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        {"SLURM_NTASKS": "3", "SLURM_PROCID": "2", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"},
    ],
    ids=["torchrun", "slurm"],
)
def test_unequally_many_processes_on_machines_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    given(monkeypatch, variables)
    with pytest.raises(UsageError, match="equally many on every machine"):
        place()


@pytest.mark.parametrize("variables", [TORCHRUN, {**SLURM, "SLURM_LOCALID": "1"}], ids=["torchrun", "slurm"])
def test_a_process_that_parts_from_the_others_keeps_its_gpu(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    given(monkeypatch, variables)
    monkeypatch.setattr(launch, "_own_gpu", None)
    assert start(["train"], 1, None) is None
    assert place() == ProcessInfo()
    assert launch.own_gpu() == 1


def test_the_number_of_this_machine_is_nothing_to_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "a")
    assert launch._meeting_point(1)["NODE_RANK"] == "0"
    assert start(["--version"], 2, 1) == 0
