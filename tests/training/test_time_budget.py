import csv
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ebpl
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet
from ebpl.errors import RunError, UsageError
from ebpl.io import write_json
from ebpl.methods import get_method
from ebpl.terminal import Silent
from ebpl.training import Deadline, time_budget
from ebpl.training.relabel import phases
from ebpl.training.time_budget import Timing
from ebpl.training.train_step import TrainStep
from tests.helpers import blobs, quick, trainer_of


def time_training(data: ImageSet, settings: Settings, seconds: float = 2.0) -> Timing:
    return time_budget.time_training(data, settings, get_method(settings.method).terms, seconds)


def fit_to_time(settings: Settings, limit: float) -> tuple[int | None, Timing]:
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
    monkeypatch.setattr(time_budget, "time_training", lambda data, settings, terms, seconds=2.0: timing)


class Hear(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def updates_of(run: ebpl.Run) -> list[str]:
    """Updates of each epoch, as metrics.csv has them."""
    return [row["updates"] for row in csv.DictReader((run.path / "metrics.csv").open())]


def test_a_training_that_fits_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, update=0.1, beside=1.0, updates=100)
    assert fit_to_time(quick(), 11.5)[0] is None


def test_epochs_are_shortened_until_all_phases_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick(epochs=6, curriculum__steps=2, curriculum__epochs=2, pseudo_labels="soft")
    measured(monkeypatch, update=0.1, beside=2.0, updates=10 * 50)
    updates, timing = fit_to_time(settings, 20.0)
    assert timing.seconds == pytest.approx(52)
    assert updates == 16
    assert 2.0 + 10 * updates * 0.1 <= 20.0


def test_the_warm_up_is_shortened_with_the_epochs() -> None:
    settings = quick(
        method="curriculum-labeling",
        epochs=2,
        pseudo_labels="none",
        optim__updates_per_epoch=20,
        optim__warmup_updates=30,
    )
    rates = []
    for update in (1e-9, 1e6):
        trainer = trainer_of(settings, blobs())
        trainer.deadline = Deadline(time.monotonic() + 1000, update)
        trainer.train()
        rates.append([row["learning_rate"] for row in trainer.state.progress.history])
    rate = settings.optim.learning_rate
    assert rates == [pytest.approx([20 / 30 * rate, rate])] * 2  # an update alone in an epoch stands for its 20


def test_a_limit_that_leaves_nothing_is_refused_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, update=1.0, beside=2.0, updates=1000)
    with pytest.raises(UsageError, match=r"at least \d+ s are needed.*--preset quick"):
        fit_to_time(quick(epochs=10, pseudo_labels="none"), 5.0)


def test_a_real_training_keeps_to_its_limit() -> None:
    hear = Hear()
    long = quick(epochs=20, sgld__steps=10, pseudo_labels="none")
    limit = time_training(ebpl.load("digits"), long).seconds / 2
    start = time.monotonic()
    run = ebpl.train("digits", long, run="run", time_limit=limit, progress=hear)
    assert time.monotonic() - start < 2 * limit + 10  # timing itself and what else the machine does included
    assert run.settings == long
    assert len(updates_of(run)) == 20
    assert any("the whole training w" in text for text in hear.said)


@pytest.mark.slow
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


def test_a_plan_made_on_a_busy_machine_grows_to_the_whole_schedule_on_a_free_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = quick(method="curriculum-labeling", epochs=30, pseudo_labels="none")
    measured(monkeypatch, update=2.0, beside=0.1, updates=30 * 14)  # 14 min
    hear = Hear()
    run = ebpl.train("digits", settings, run="run", time_limit=200.0, progress=hear)
    assert any("epochs of 2 updates make it fit 3 min 20 s" in text for text in hear.said)
    updates = [int(each) for each in updates_of(run)]
    assert updates[0] <= 3
    assert updates == sorted(updates)
    assert updates[-10:] == [14] * 10
    share = round(100 * sum(updates) / (30 * 14))
    line = f"The time limit shortened training to {share} % of the updates of its settings."
    assert hear.said.count(line) == 1
    assert line in (run.path / "train.log").read_text()
    assert run.metrics()["updates"] == {"made": sum(updates), "of": 30 * 14}
    assert run.settings == settings


def test_a_training_that_was_not_shortened_does_not_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, update=1e-4, beside=0.1, updates=4)
    hear = Hear()
    settings = quick(method="curriculum-labeling", epochs=2, pseudo_labels="none")
    run = ebpl.train(blobs(), settings, run="run", time_limit=100, progress=hear)
    assert not any("shortened" in text for text in hear.said)
    assert run.metrics()["updates"] == {"made": 4, "of": 4}


@pytest.fixture
def same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads with a limit as without, whatever else the machine does: they change the last digits."""
    monkeypatch.setattr("ebpl.api.free_threads", torch.get_num_threads)


@pytest.mark.usefixtures("same_threads")
def test_a_training_in_time_is_not_shortened_and_ends_as_without_a_limit() -> None:
    settings = quick(method="curriculum-labeling", epochs=2, pseudo_labels="none")
    free, limited = (ebpl.train(blobs(), settings, run=f"run-{limit}", time_limit=limit) for limit in (None, 500.0))
    assert {row["updates"] for row in csv.DictReader((limited.path / "metrics.csv").open())} == {"2"}
    weights = [load_file(run.path / "best.safetensors") for run in (free, limited)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_shortened_training_is_resumed_at_full_length_where_there_is_no_limit() -> None:
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
    assert [row.get("updates") for row in second.state.progress.history] == [1, None, None]
    assert second.state.ema_updates - stored["ema_updates"] == 5 + 5


class Interrupting(Hear):
    """Stops training after some epochs, as Ctrl-C would."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.left = epochs

    def epoch(self, line: str) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def interrupted(monkeypatch: pytest.MonkeyPatch, limit: float) -> ebpl.Run:
    """A run with a time limit that was stopped after its second epoch of six."""
    measured(monkeypatch, update=1e-4, beside=0.1, updates=12)
    settings = quick(method="curriculum-labeling", epochs=6, pseudo_labels="none", runtime__checkpoint_seconds=0)
    with pytest.raises(KeyboardInterrupt):
        ebpl.train(blobs(), settings, run="run", time_limit=limit, progress=Interrupting(3))
    return ebpl.Run("run")


def test_what_is_left_of_a_time_limit_holds_when_a_run_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = interrupted(monkeypatch, 100.0)
    assert run.environment()["time_limit"] == 100
    rows = list(csv.DictReader((run.path / "metrics.csv").open()))
    rows[-1]["seconds"] = "99.9"
    run.save_table("metrics.csv", rows)
    measured(monkeypatch, update=10.0, beside=0.1, updates=12)
    hear = Hear()
    ebpl.resume(run, data=blobs(), progress=hear)
    assert any("0 s are left of the time limit of 1 min 40 s" in text for text in hear.said)
    assert updates_of(run)[:3] == ["2", "2", "1"]
    assert any("shortened training to" in text for text in hear.said)


def test_epochs_that_a_kill_undid_count_for_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    run = interrupted(monkeypatch, 100.0)
    spent = [run.environment()["time_spent"]]
    for _ in range(2):
        shutil.rmtree(run.checkpoints)  # as if it had been killed before the first one
        run.checkpoints.mkdir()
        with pytest.raises(KeyboardInterrupt):
            ebpl.resume(run, data=blobs(), progress=Interrupting(3))
        rows = list(csv.DictReader((run.path / "metrics.csv").open()))
        spent.append(run.environment()["time_spent"])
        assert spent[-1] >= spent[-2] + float(rows[1]["seconds"])  # the third epoch was stopped at its end
    write_json(run.path / "environment.json", {**run.environment(), "time_spent": 99.9})
    hear = Hear()
    ebpl.resume(run, data=blobs(), progress=hear)
    assert any("0 s are left of the time limit of 1 min 40 s" in text for text in hear.said)


def test_a_run_can_be_resumed_with_another_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    run = interrupted(monkeypatch, 1.0)
    hear = Hear()
    ebpl.resume(run, data=blobs(), progress=hear, time_limit="10m")
    assert any("has 10 min 00 s" in text for text in hear.said)
    assert updates_of(run) == ["2"] * 6
    assert 600 <= run.environment()["time_limit"] < 610


@pytest.mark.usefixtures("same_threads")
def test_a_run_whose_limit_is_not_known_is_resumed_at_full_length_as_if_it_had_not_been_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = interrupted(monkeypatch, 100.0)
    (run.path / "environment.json").write_text("{}")
    ebpl.resume(run, data=blobs())
    assert updates_of(run) == ["2", "2", "", "", "", ""]
    free = ebpl.train(blobs(), run.settings, run="free")
    weights = [load_file(each.path / "best.safetensors") for each in (free, run)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("limit", ["0", "-5", "1e99", "Infinity", "NaN", '"20m"', "true"])
def test_a_time_limit_that_is_none_is_not_taken_from_a_run_directory(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    run = interrupted(monkeypatch, 100.0)
    (run.path / "environment.json").write_text(f'{{"time_limit": {limit}}}')
    with pytest.raises(RunError, match=r"environment\.json is damaged.*time_limit"):
        ebpl.resume(run, data=blobs())


def test_seeds_that_take_turns_share_the_time_and_keep_their_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, update=1e-4, beside=0.1, updates=4)
    settings = quick(method="curriculum-labeling", epochs=2, pseudo_labels="none", device="cpu")
    runs = ebpl.train(blobs(), settings, seeds=[0, 1], run="seeds", time_limit=100)
    assert [run.environment()["time_limit"] for run in runs] == [50, 50]


def test_updates_are_planned_from_what_the_last_epoch_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    deadline = Deadline(at=200.0, update=0.1, step=5.0, finish=10.0)
    assert deadline.updates(most=1000, epochs=8, steps=2) == 100  # 80 s in 8 epochs
    assert deadline.updates(most=50, epochs=8, steps=2) == 50
    deadline.measured(updates=50, seconds=10.0, beside=0.5)  # half as fast
    assert deadline.updates(most=1000, epochs=8, steps=2) == int((100 - 20 - 20 - 4) / (8 * 0.2) + 1e-9)
    assert Deadline(at=50.0, update=0.1).updates(1000, 8, 2) == 1
    assert Deadline(at=1e308, update=1e-6).updates(1000, 1, 0) == 1000


def test_one_fast_epoch_is_believed_by_half_and_a_slow_one_whole() -> None:
    deadline = Deadline(at=0.0, update=0.1, step=2.0)
    deadline.measured(updates=10, seconds=0.1, beside=0.0)  # ten times as fast
    assert (deadline.update, deadline.step) == pytest.approx((0.055, 1.1))
    deadline.measured(updates=10, seconds=5.5, beside=0.0)
    assert deadline.update == pytest.approx(0.55)
