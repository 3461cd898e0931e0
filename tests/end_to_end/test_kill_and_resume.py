"""Real processes are killed at several moments; what they finish with must be what an undisturbed run finishes with."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import ebpl, environment, result, sets

SHORT = {
    "sgld.steps": 2,
    "sgld.buffer_size": 256,
    "optim.epochs": 3,
    "curriculum.steps": 2,
    "curriculum.epochs": 2,
    "runtime.checkpoint_seconds": 0,
}
OPTIONS = ["--preset", "quick", "--labels-per-class", "4", *sets(SHORT)]
EPOCHS = 3 + 2 * 2


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ebpl", *map(str, arguments)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def epochs_in(run: Path) -> int:
    path = run / "metrics.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def kill_when(process: subprocess.Popen[bytes], condition, delay: float = 0.0) -> bool:
    """SIGKILL as soon as the condition holds, a little later if so wanted; False if it was over before."""
    deadline = time.monotonic() + 100
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, "the process hangs"
        time.sleep(0.005)
    time.sleep(delay)
    alive = process.poll() is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return alive


DIVERGING = {
    "energy.penalty": 0,
    "sgld.clamp_samples": "no",
    "optim.gradient_clip": 0,
    "optim.learning_rate": 0.05,
    "runtime.checkpoint_seconds": 0.4,
}
MODES = {
    "ebpl": ["--pseudo-labels", "soft"],
    "baseline": ["--method", "curriculum-labeling"],
    "healed": sets(DIVERGING),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """What a mode ends with when nobody kills it."""

    @functools.cache
    def finished(mode: str) -> dict[str, object]:
        run = tmp_path_factory.mktemp("whole") / mode
        done = ebpl("train", "digits", *OPTIONS, *MODES[mode], "--run", run)
        assert done.returncode == 0, done.stderr
        return result(run)

    return finished


@pytest.mark.parametrize("mode", [m if m == "ebpl" else pytest.param(m, marks=pytest.mark.slow) for m in MODES])
def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(tmp_path: Path, undisturbed, mode: str) -> None:
    run = tmp_path / "run"
    # before the first epoch is done; in the initial training; at the first step; between two steps, while files are
    # being written; near the end
    moments = [(0, 0.0), (1, 0.05), (3, 0.0), (5, 0.02), (EPOCHS - 1, 0.0)]
    kills = 0
    for number, (epochs, delay) in enumerate(moments):
        process = start(*(["resume", run] if number else ["train", "digits", *OPTIONS, *MODES[mode], "--run", run]))
        ready = (run / "train.log").exists if epochs == 0 else lambda epochs=epochs: epochs_in(run) >= epochs
        kills += kill_when(process, ready, delay)
    assert kills >= 3
    done = ebpl("resume", run)
    assert done.returncode == 0, done.stderr
    assert result(run) == undisturbed(mode)
    assert len(undisturbed(mode)["metrics"]) == EPOCHS
    if mode == "healed":
        assert undisturbed(mode)["final"]["healed_divergences"], "this setting is meant to diverge"


def test_a_damaged_checkpoint_costs_an_epoch_not_the_run(tmp_path: Path, undisturbed) -> None:
    run = tmp_path / "run"
    process = start("train", "digits", *OPTIONS, *MODES["ebpl"], "--run", run)
    assert kill_when(process, lambda: epochs_in(run) >= 4)
    newest = max((run / "checkpoints").glob("epoch-*.pt"))
    newest.write_bytes(newest.read_bytes()[:1000])
    done = ebpl("resume", run)
    assert done.returncode == 0, done.stderr
    assert "is damaged" in (run / "train.log").read_text()
    assert result(run) == undisturbed("ebpl")


def test_only_damaged_checkpoints_are_a_message_and_nothing_is_lost(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start("train", "digits", *OPTIONS, *MODES["baseline"], "--run", run)
    assert kill_when(process, lambda: epochs_in(run) >= 2)
    metrics = (run / "metrics.csv").read_bytes()
    for path in (run / "checkpoints").glob("epoch-*.pt"):
        path.write_bytes(b"damaged")
    done = ebpl("resume", run)
    assert done.returncode == 4
    assert "Every checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
    assert (run / "metrics.csv").read_bytes() == metrics


@pytest.mark.parametrize("kind", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_interrupt_saves_the_last_finished_epoch(tmp_path: Path, undisturbed, kind: signal.Signals) -> None:
    run = tmp_path / "run"
    more = [*MODES["baseline"], *sets({"runtime.checkpoint_seconds": 1000})]
    process = subprocess.Popen(
        [sys.executable, "-m", "ebpl", "train", "digits", *OPTIONS, *more, "--run", str(run)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell may have it ignored
    )
    while process.poll() is None and epochs_in(run) < 2:  # the second is written, so the first is finished
        time.sleep(0.005)
    process.send_signal(kind)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert f"ebpl resume {run}" in error
    assert list((run / "checkpoints").glob("epoch-*.pt"))
    done = ebpl("resume", run)
    assert "continuing after" in done.stderr
    assert result(run) == undisturbed("baseline")


@pytest.mark.slow
def test_several_seeds_killed_and_stopped_end_as_each_would_alone(tmp_path: Path, undisturbed) -> None:
    folder = tmp_path / "seeds"
    process = start("train", "digits", *OPTIONS, *MODES["baseline"], "--seeds", "1,0", "--run", folder)
    assert kill_when(process, lambda: epochs_in(folder / "seed-1") >= 2)
    process = start("resume", folder)
    while process.poll() is None and epochs_in(folder / "seed-0") + epochs_in(folder / "seed-1") < EPOCHS + 2:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    done = ebpl("resume", folder)
    assert done.returncode == 0, done.stderr
    assert result(folder / "seed-0") == undisturbed("baseline")
    alone = ebpl("train", "digits", *OPTIONS, *MODES["baseline"], "--seed", "1", "--run", tmp_path / "alone")
    assert alone.returncode == 0
    assert result(folder / "seed-1") == result(tmp_path / "alone")
