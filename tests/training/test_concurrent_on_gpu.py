"""Runs that share a GPU against the same runs alone (make test-gpu)."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ebpl
from ebpl import api
from ebpl.errors import SomeFailedError
from ebpl.runs import Run
from ebpl.terminal import Silent
from ebpl.training import checkpoint, divergence
from tests.helpers import quick, result

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
]

# as far apart in length as runs can be, so that graphs are freed while others are replayed
SHORT = {"seed": 0, "epochs": 2, "curriculum.steps": 1, "curriculum.epochs": 1}
LONG = {"seed": 1, "epochs": 12, "curriculum.steps": 2, "curriculum.epochs": 4}
DIVERGING = {
    "seed": 2,
    "energy.penalty": 0.0,
    "sgld.clamp_samples": False,
    "optim.gradient_clip": 0.0,
    "learning_rate": 0.05,
}


def losses(run: Path) -> np.ndarray:
    rows = result(run)["metrics"]
    assert isinstance(rows, list)
    return np.array([float(row["loss"]) for row in rows])


def created(data: ebpl.ImageSet, folder: str, changes: dict[str, dict[str, object]]) -> list[Run]:
    return [
        Run.create(f"{folder}/{name}", quick(device="cuda", epochs=8).changed(each), data, {})
        for name, each in changes.items()
    ]


def test_runs_that_end_recover_and_fail_leave_the_runs_beside_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "CHECK_EVERY", 3)
    data = ebpl.load("digits")
    good = {"short": SHORT, "long": LONG}
    first, again = (
        [ebpl.resume(run, data=data) for run in created(data, folder, good)] for folder in ("alone", "again")
    )
    bad = {
        "recovers": {**DIVERGING, "divergence.retries": 9},
        "fails": {**DIVERGING, "divergence.retries": 0},
    }
    runs = created(data, "beside", {**bad, **good})
    with pytest.raises(SomeFailedError) as failed:
        api._all(runs, [api._training(run, data, Silent()) for run in runs])
    assert Path("beside/fails") in failed.value.failures
    for one, other, beside in zip(first, again, runs[2:], strict=True):
        assert beside.finished
        if result(one.path) == result(other.path):  # this GPU repeats itself to the last digit
            assert result(beside.path) == result(one.path)
        else:
            np.testing.assert_allclose(losses(beside.path)[:2], losses(one.path)[:2], rtol=0.05)


def test_seeds_on_a_gpu_are_stopped_and_resumed_together() -> None:
    data = ebpl.load("digits")

    class Stop(Silent):
        left = 3

        def epoch(self, line: str) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    settings = quick(device="cuda", epochs=6, runtime__checkpoint_seconds=1000.0)
    with pytest.raises(KeyboardInterrupt, match="ebpl resume seeds"):
        ebpl.train(data, settings, seeds=[0, 1, 2], run="seeds", progress=[Silent(), Stop(), Silent()])
    runs = ebpl.resume([f"seeds/seed-{seed}" for seed in (0, 1, 2)], data=data)
    for run in runs:
        assert "continuing after" in (run.path / "train.log").read_text()
        assert run.finished


def test_a_run_ends_where_its_best_weights_are_those_of_the_checkpoint_that_it_continued_from() -> None:
    data = ebpl.load("digits")
    settings = quick(device="cuda", epochs=2, pseudo_labels="none", data__validation_fraction=0.3)
    trunk = ebpl.train(data, settings, run="trunk")
    branch = trunk.branch("branch", settings.changed(pseudo_labels="soft", curriculum__steps=1))
    stored = checkpoint.load(branch.checkpoints, print)
    assert stored is not None
    stored["best"]["score"] = 2.0  # which no later epoch reaches
    checkpoint.save(branch.checkpoints, len(stored["history"]), stored)
    ebpl.resume(branch, data=data)
    assert branch.finished
    assert branch.metrics()["chosen"]["phase"] == "initial"
