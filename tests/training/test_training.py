from collections.abc import Generator
from pathlib import Path

import pytest

import ebpl
from ebpl import api
from ebpl.errors import DivergedError, EbplError, SomeFailedError
from ebpl.runs import Run
from ebpl.terminal import Silent
from ebpl.training import Training, train_all
from tests.helpers import blobs, quick, result

SEEDS = (0, 1, 4)
SETTINGS = quick(curriculum__steps=1, runtime__checkpoint_seconds=1000.0)
DIVERGING = {"energy.penalty": 0.0, "sgld.clamp_samples": False, "optim.gradient_clip": 0.0, "learning_rate": 10.0}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, object]]:
    """What each seed ends with when it is trained alone."""
    folder = tmp_path_factory.mktemp("alone")
    return {seed: result(ebpl.train(blobs(), SETTINGS, seed=seed, run=folder / str(seed)).path) for seed in SEEDS}


def beside(runs: list[Run], progress: dict[int, Silent] | None = None) -> list[Training]:
    """Train in turns, as on a GPU."""
    shown = progress or {}
    pieces = [api._training(run, blobs(), shown.get(i, Silent())) for i, run in enumerate(runs)]
    trainings = [Training(each, on_gpu=False) for each in pieces]
    train_all(trainings, in_turns=True)
    return trainings


def runs_of(*seeds: int, **changes: object) -> list[Run]:
    return Run.create_for_seeds("seeds", SETTINGS.changed(**changes), seeds, blobs(), {})


class Raising(Silent):
    """Raises at the end of an epoch."""

    def __init__(self, error: BaseException, epoch: int = 2) -> None:
        self.error, self.left = error, epoch

    def epoch(self, line: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


def counting(name: str, count: int, events: list[str]) -> Generator[None, None, None]:
    for number in range(count):
        events.append(f"{name}{number}")
        yield
    events.append(f"{name} ends")


def test_in_turns_all_are_prepared_first_and_a_short_one_leaves_early() -> None:
    events: list[str] = []
    train_all([Training(counting(n, c, events), False) for n, c in (("a", 3), ("b", 1), ("c", 2))], in_turns=True)
    assert events == ["a0", "b0", "c0", "a1", "b ends", "c1", "a2", "c ends", "a ends"]


def test_else_one_follows_the_other() -> None:
    events: list[str] = []
    train_all([Training(counting(name, 2, events), False) for name in "ab"], in_turns=False)
    assert events == ["a0", "a1", "a ends", "b0", "b1", "b ends"]


def test_seeds_trained_together_end_as_each_does_alone(alone: dict[int, dict[str, object]]) -> None:
    runs = ebpl.train(blobs(), SETTINGS, seeds=SEEDS, run="seeds")
    assert {run.settings.seed: result(run.path) for run in runs} == alone


def test_seeds_trained_in_turns_end_as_each_does_alone(alone: dict[int, dict[str, object]]) -> None:
    runs = runs_of(*SEEDS)
    trainings = beside(runs)
    assert [training.error for training in trainings] == [None, None, None]
    assert {run.settings.seed: result(run.path) for run in runs} == alone
    for run in runs:
        log = (run.path / "train.log").read_text()
        assert f"run directory {run.path}" in log
        assert log.count("run directory") == 1, "lines of another run"
        assert log.count("initial, epoch 1/2") == 1


def test_one_that_gives_up_leaves_the_others_alone(alone: dict[int, dict[str, object]]) -> None:
    bad = Run.create("bad", SETTINGS.changed(DIVERGING, divergence__retries=0), blobs(), {})
    good = runs_of(*SEEDS)
    trainings = beside([bad, *good])
    assert isinstance(trainings[0].error, DivergedError)
    assert {run.settings.seed: result(run.path) for run in good} == alone
    assert not bad.finished


def test_one_that_recovers_leaves_the_others_alone(alone: dict[int, dict[str, object]]) -> None:
    wild = SETTINGS.changed({**DIVERGING, "learning_rate": 0.05}, divergence__max_energy_gap=0.5)
    bad = Run.create("bad", wild, blobs(), {})
    good = runs_of(*SEEDS)
    beside([bad, *good])
    assert "diverged" in (bad.path / "train.log").read_text()
    assert {run.settings.seed: result(run.path) for run in good} == alone


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "not enough memory"),
        (ZeroDivisionError("a bug"), "a bug"),
        (EbplError("something else"), "something else"),
    ],
)
def test_one_that_fails_otherwise_leaves_the_others_alone(alone, error: Exception, message: str) -> None:
    runs = runs_of(*SEEDS)
    trainings = beside(runs, {1: Raising(error)})
    assert message in str(trainings[1].error)
    assert message in (runs[1].path / "train.log").read_text()
    failed = trainings[1].error
    assert failed is not None
    assert failed.__traceback__ is failed.__context__ is failed.__cause__ is None, "it would keep memory"
    for run in (runs[0], runs[2]):
        assert result(run.path) == alone[run.settings.seed]
    ebpl.resume(runs, data=blobs())
    assert {run.settings.seed: result(run.path) for run in runs} == alone


def test_stopped_in_the_middle_all_save_their_last_epoch_and_go_on_as_if_never_stopped(alone) -> None:
    runs = runs_of(*SEEDS)
    with pytest.raises(KeyboardInterrupt):
        beside(runs, {1: Raising(KeyboardInterrupt(), epoch=2)})
    for run in runs:
        assert not run.finished
        assert list(run.checkpoints.glob("epoch-*.pt")), "the last finished epoch was not saved"
        assert "stopped from the keyboard" in (run.path / "train.log").read_text()
    assert ebpl.resume([run.path for run in runs], data=blobs())[0].finished
    assert {run.settings.seed: result(run.path) for run in runs} == alone


def test_stopped_one_after_the_other_the_message_tells_how_to_go_on_with_all(alone) -> None:
    progress = [Silent(), Raising(KeyboardInterrupt()), Silent()]
    with pytest.raises(KeyboardInterrupt, match=r"Continue with: ebpl resume seeds$"):
        ebpl.train(blobs(), SETTINGS, seeds=SEEDS, run="seeds", progress=progress)
    runs = ebpl.resume(["seeds/seed-0", "seeds/seed-1", "seeds/seed-4"], data=blobs())
    assert {run.settings.seed: result(run.path) for run in runs} == alone


def test_a_state_that_cannot_be_saved_when_stopped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise ebpl.EbplError("the disk is full")

    def stop(*_: object) -> None:
        monkeypatch.setattr("ebpl.training.checkpoint.save", full)
        raise KeyboardInterrupt

    watch = Silent()
    monkeypatch.setattr(watch, "epoch", stop, raising=False)
    runs = runs_of(0, 1)
    pieces = [api._training(run, blobs(), shown) for run, shown in zip(runs, (Silent(), watch), strict=True)]
    first, second = (Training(each, on_gpu=False) for each in pieces)
    with pytest.raises(KeyboardInterrupt):
        train_all([first, second], in_turns=True)
    assert "disk is full" in str(first.error)
    assert second.error is None


def test_failures_are_told_after_the_others_are_finished(alone: dict[int, dict[str, object]]) -> None:
    progress = [Silent(), Raising(DivergedError("ran away")), Raising(ZeroDivisionError("a bug"))]
    with pytest.raises(SomeFailedError, match=r"2 of 3 runs failed") as failed:
        ebpl.train(blobs(), SETTINGS, seeds=SEEDS, run="seeds", progress=progress)
    assert failed.value.exit_code == DivergedError.exit_code
    assert list(failed.value.failures) == [Path("seeds/seed-1"), Path("seeds/seed-4")]
    assert "seed-4: ZeroDivisionError: a bug" in str(failed.value)
    assert [run.finished for run in failed.value.runs] == [True, False, False]
    assert result(Path("seeds/seed-0")) == alone[0]
