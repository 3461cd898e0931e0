import csv
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ebpl.errors import UsageError
from ebpl.models.weights import describe_model
from ebpl.runs import Run
from ebpl.terminal import Silent
from ebpl.training import checkpoint
from ebpl.training.callbacks import Callback, ProgressBar, RunLog, RunWriter, TensorBoard
from ebpl.training.relabel import Relabeling
from tests.helpers import blobs, quick, trainer_of


class Told(Callback):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def begin(self, updates: int, epochs_done: int, updates_done: int) -> None:
        self.events.append(("begin", (updates, epochs_done, updates_done)))

    def updates(self, count: int, where: str, facts: dict[str, float]) -> None:
        self.events.append(("updates", count))

    def relabeled(self, step: int, found: Relabeling) -> None:
        self.events.append(("relabeled", (step, len(found.selected))))

    def epoch(self, history: Any, line: str) -> None:
        self.events.append(("epoch", len(history)))

    def weights(self, weights: dict[str, torch.Tensor], chosen: dict[str, Any]) -> None:
        self.events.append(("weights", chosen["epoch"]))

    def checkpoint(self, epochs_done: int, state: dict[str, Any]) -> None:
        self.events.append(("checkpoint", epochs_done))

    def end(self) -> None:
        self.events.append(("end", None))

    def of(self, kind: str) -> list[Any]:
        return [value for name, value in self.events if name == kind]


def test_a_training_tells_all_that_happens_in_its_order() -> None:
    told = Told()
    changes = {"curriculum__steps": 2, "curriculum__epochs": 1, "curriculum__selection": "all"}
    training = trainer_of(quick(epochs=2, **changes), blobs(), told)
    training.train()
    assert training.updates == 2
    assert told.events[0] == ("begin", (8, 0, 0))
    assert sum(told.of("updates")) == training.total_updates == 8
    assert told.of("epoch") == [1, 2, 3, 4]
    assert told.of("relabeled") == [(1, 52), (2, 105)]
    assert told.of("checkpoint") == [2, 3, 4]  # at the end of each phase
    assert told.of("weights") == [2, 1, 1]
    assert told.events[-1] == ("end", None)
    order = [name for name, _ in told.events if name in ("relabeled", "epoch", "checkpoint")]
    assert order == ["epoch", "epoch", "checkpoint", *["relabeled", "epoch", "checkpoint"] * 2]


def test_every_event_may_be_left_unheard() -> None:
    trainer_of(quick(epochs=1, pseudo_labels="none"), blobs(), Callback()).train()


def test_the_end_is_told_where_training_fails() -> None:
    class Fails(Told):
        def epoch(self, history: Any, line: str) -> None:
            raise ZeroDivisionError

    told = Fails()
    with pytest.raises(ZeroDivisionError):
        trainer_of(quick(epochs=1), blobs(), told).train()
    assert told.events[-1] == ("end", None)


def test_a_run_is_written_and_logged_as_it_is_told() -> None:
    data = blobs()
    run = Run.create("run", quick(epochs=1, curriculum__steps=1, curriculum__reject_outliers=0.5), data, {})
    training = trainer_of(run.settings, data)
    training.callbacks = [RunWriter(run, describe_model(training.state.model, data)), RunLog(run)]
    with run.training():
        training.train()
    with open("run/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    history = training.state.progress.history
    assert [row["phase"] for row in rows] == ["initial", "step 1 of 1"]
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in history]
    assert {path.name for path in Path("run/pseudo_labels").iterdir()} == {"step-1.csv", "outliers-1.csv"}
    stored = checkpoint.load(run.checkpoints, print)
    assert stored is not None
    assert stored["history"] == history
    model, description = run.load_model()
    assert description["chosen"] == training.chosen()
    kept = training.state.kept_weights()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    log = Path("run/train.log").read_text()
    assert "initial, epoch 1/1" in log
    assert "step 1 of 1: " in log


def test_the_bar_moves_by_all_updates_and_back_by_those_undone() -> None:
    class Bar(Silent):
        total, at, lines, ended = 0, 0, 0, False

        def begin(self, updates: int, done: int = 0) -> None:
            self.total, self.at = updates, done

        def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
            self.at += updates

        def epoch(self, line: str) -> None:
            self.lines += 1

        def end(self) -> None:
            self.ended = True

    bar = Bar()
    progress = ProgressBar(bar)
    trainer_of(quick(epochs=3, pseudo_labels="none"), blobs(), progress).train()
    assert (bar.at, bar.lines, bar.ended) == (bar.total, 3, True)
    progress.rewound(1, 4, "initial")
    assert bar.at == bar.total - 4


def test_resumed_tensorboard_events_replace_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board.begin(30, 0, 0)
    history: list[dict[str, Any]] = []
    for epoch in (1, 2, 3):
        history.append({"loss": float(epoch), "phase": "initial", "pseudo_label_accuracy": None})
        board.epoch(history, "")
    board.end()
    again = TensorBoard(tmp_path)
    again.begin(30, 1, 10)
    again.epoch([history[0], {"loss": 20.0}], "")
    again.end()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (2, 20.0)]
    assert events.Tags()["scalars"] == ["loss"]


def test_tensorboard_events_of_epochs_that_were_undone_are_replaced_too(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board.begin(30, 0, 0)
    board.epoch([{"loss": 1.0}], "")
    board.epoch([{"loss": 1.0}, {"loss": 2.0}], "")
    board.rewound(1, 10, "initial")
    board.epoch([{"loss": 1.0}, {"loss": 5.0}], "")
    board.end()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (2, 5.0)]


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'ebpl\[tensorboard\]'"):
        TensorBoard(tmp_path)
