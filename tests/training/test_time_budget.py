import csv
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ebpl
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet
from ebpl.errors import UsageError
from ebpl.methods import get_method
from ebpl.terminal import Silent
from ebpl.training import Deadline, time_budget
from ebpl.training.relabel import phases
from ebpl.training.time_budget import Timing
from ebpl.training.train_step import TrainStep
from tests.helpers import blobs, quick, trainer_of


def time_training(data: ImageSet, settings: Settings, seconds: float = 2.0) -> Timing:
    return time_budget.time_training(data, settings, get_method(settings.method).terms, seconds)


def fit_to_time(settings: Settings, limit: float) -> tuple[Settings, Timing]:
    return time_budget.fit_to_time(blobs(), settings, get_method(settings.method).terms, limit)


def test_all_updates_of_the_schedule_are_counted() -> None:
    settings = preset("quick", epochs=3, curriculum__steps=2, curriculum__epochs=2, optim__updates_per_epoch=50)
    timing = time_training(blobs(), settings, seconds=0.01)
    assert timing.updates == 50 * sum(phase.epochs for phase in phases(settings)) == 350
    assert 3 <= timing.timed < 50
    assert timing.seconds > timing.updates * timing.update > 0


def test_the_time_told_is_near_the_time_taken() -> None:
    settings = quick(epochs=40, pseudo_labels="none")
    timing = time_training(blobs(), settings, seconds=0.5)
    start = time.perf_counter()
    ebpl.train(blobs(), settings, run="run")
    assert 0.2 < timing.seconds / (time.perf_counter() - start) < 5  # others use the same cores


def test_a_training_shorter_than_the_trial_is_timed_whole() -> None:
    settings = quick(epochs=1, pseudo_labels="none", method="curriculum-labeling")
    timing = time_training(blobs(60), settings, seconds=60)
    assert timing.timed == timing.updates
    assert timing.seconds < 30


def test_nothing_is_left_behind() -> None:
    time_training(blobs(), quick(), seconds=0.01)
    assert not list(Path().iterdir())


def measured(monkeypatch: pytest.MonkeyPatch, update: float, beside: float, updates: int) -> None:
    """Let updates take so long."""
    timing = Timing(updates, 3, update, beside + updates * update)
    monkeypatch.setattr(time_budget, "time_training", lambda data, settings, terms: timing)


def test_a_training_that_fits_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, update=0.1, beside=1.0, updates=100)
    settings = quick()
    assert fit_to_time(settings, 11.5)[0] == settings


def test_epochs_are_shortened_until_all_phases_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick(
        epochs=6, curriculum__steps=2, curriculum__epochs=2, pseudo_labels="soft", optim__warmup_updates=1000
    )
    measured(monkeypatch, update=0.1, beside=2.0, updates=10 * 50)
    fitted, timing = fit_to_time(settings, 20.0)
    assert timing.seconds == pytest.approx(52)
    assert 2.0 + 10 * fitted.optim.updates_per_epoch * 0.1 <= 20.0
    assert fitted.optim.updates_per_epoch == 16
    assert fitted.optim.warmup_updates < 16 * 6
    assert fitted == settings.changed(optim__updates_per_epoch=16, optim__warmup_updates=fitted.optim.warmup_updates)


def test_a_limit_that_leaves_nothing_is_refused_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, update=1.0, beside=2.0, updates=1000)
    with pytest.raises(UsageError, match=r"at least \d+ s are needed.*--preset quick"):
        fit_to_time(quick(epochs=10, pseudo_labels="none"), 5.0)


def test_a_real_training_keeps_to_its_limit() -> None:
    said: list[str] = []

    class Hear(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    long = quick(epochs=20, sgld__steps=10, pseudo_labels="none")
    limit = time_training(ebpl.load("digits"), long).seconds / 2
    start = time.monotonic()
    run = ebpl.train("digits", long, run="run", time_limit=limit, progress=Hear())
    assert time.monotonic() - start < 2 * limit + 10  # timing itself and what else the machine does included
    assert run.settings.optim.updates_per_epoch is not None
    assert run.settings.optim.updates_per_epoch < 14
    assert any("would take about" in text and "make it fit" in text for text in said)


def test_a_training_that_falls_behind_is_shortened_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick(method="curriculum-labeling", epochs=20, curriculum__steps=2, curriculum__epochs=5)
    step = TrainStep.__call__

    def slow(self: TrainStep) -> None:  # as on a machine that has become busy
        time.sleep(0.05)
        step(self)

    measured(monkeypatch, update=0.005, beside=0.1, updates=30 * 14)
    monkeypatch.setattr(TrainStep, "__call__", slow)
    start = time.monotonic()
    run = ebpl.train("digits", settings, run="run", time_limit=8.0)  # 21 s without a limit
    assert time.monotonic() - start < 1.1 * 8 + 1  # and imports
    rows = list(csv.DictReader((run.path / "metrics.csv").open()))
    updates = [int(row["updates"]) for row in rows]
    assert len(rows) == 30
    assert updates[0] == 14
    assert all(1 <= each < 10 for each in updates[1:])
    assert run.settings.optim.updates_per_epoch is None


def test_a_training_in_time_is_not_shortened_and_ends_as_without_a_limit() -> None:
    settings = quick(method="curriculum-labeling", epochs=2, pseudo_labels="none")
    free, limited = (ebpl.train(blobs(), settings, run=f"run-{limit}", time_limit=limit) for limit in (None, 500.0))
    assert {row["updates"] for row in csv.DictReader((limited.path / "metrics.csv").open())} == {"2"}
    weights = [load_file(run.path / "best.safetensors") for run in (free, limited)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_shortened_training_is_resumed_with_the_updates_of_its_last_epoch() -> None:
    settings = quick(method="curriculum-labeling", epochs=3, pseudo_labels="none", optim__updates_per_epoch=5)
    first = trainer_of(settings, blobs())
    first.deadline = Deadline(time.monotonic() + 1000, 1e6)
    pieces = first.work()
    for _ in pieces:
        if len(first.state.progress.history) == 1:
            break
    assert first.state.progress.history[0]["updates"] == 1
    stored = {**first.state.snapshot(), "divergence": first.state.divergence.state(), "seconds": 1.0}
    pieces.close()
    second = trainer_of(settings, blobs())
    second.train(stored)
    assert [row["updates"] for row in second.state.progress.history] == [1, 1, 1]


def test_updates_are_planned_from_what_the_last_epoch_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    deadline = Deadline(at=200.0, update=0.1, step=5.0, finish=10.0)
    assert deadline.updates(planned=1000, epochs=8, steps=2) == 100  # 80 s in 8 epochs
    assert deadline.updates(planned=50, epochs=8, steps=2) == 50
    deadline.measured(updates=50, seconds=10.0, beside=0.5)  # half as fast
    assert deadline.updates(planned=1000, epochs=8, steps=2) == int((100 - 20 - 20 - 4) / (8 * 0.2) + 1e-9)
    assert Deadline(at=50.0, update=0.1).updates(1000, 8, 2) == 1
