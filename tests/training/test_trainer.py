import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import ebpl
from ebpl.errors import DivergedError, RunError
from ebpl.runs import Run
from ebpl.terminal import Silent
from ebpl.training.divergence import Guard
from ebpl.training.trainer import Trainer
from tests.helpers import blobs, quick


def trainer(path: str = "run", data: ebpl.ImageSet | None = None, **changes: object) -> Trainer:
    data = data or blobs()
    return Trainer(Run.create(path, quick(**changes), data, {}), data, Silent())


def rows(path: Path | str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("method", ["ebpl", "curriculum-labeling"])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_true_labels_never_change_and_pseudo_labels_are_made_anew(method: str, kind: str) -> None:
    training = trainer(method=method, pseudo_labels=kind, steps=2)
    labels = training.pool.targets[: training.labeled_count].clone()
    seen = []

    class Watch(Silent):
        def epoch(self, line: str) -> None:
            seen.append(training.pool.targets.clone())
            assert torch.equal(training.pool.targets[: training.labeled_count], labels)

    training.progress = Watch()
    training.train()
    initial, _, half, all_of_them = seen
    count = len(training.unlabeled)
    given = [(targets[training.labeled_count :].sum(1) > 0).sum().item() for targets in (initial, half, all_of_them)]
    assert given == [0, count // 2, count]
    pseudo = all_of_them[training.labeled_count :]
    torch.testing.assert_close(pseudo.sum(1), torch.ones(count))
    is_hard = bool(((pseudo == 0) | (pseudo == 1)).all())
    assert is_hard == (kind == "hard")


def test_the_baseline_restarts_at_every_step_and_ebpl_goes_on() -> None:
    distances = {}
    for method in ("ebpl", "curriculum-labeling"):
        training = trainer(method, method=method, pseudo_labels="hard", steps=1, step_epochs=0)
        training.train()
        stored = [torch.load(path, weights_only=True) for path in training.run.checkpoints.glob("*.pt")]
        first = next(state for state in stored if state["phase"] == 1)
        fresh = trainer(f"{method}-fresh", method=method)
        fresh.learner.initialise("step", 1)
        name = "model.features.stem.weight"
        now = training.learner.tensors()[name]
        before = first["learner"]["tensors"][name]
        distances[method] = (torch.equal(now, before), torch.equal(now, fresh.learner.tensors()[name]))
    assert distances == {"ebpl": (True, False), "curriculum-labeling": (False, True)}


def test_it_learns_from_few_labels() -> None:
    run = ebpl.train(blobs(), quick(epochs=30), run="run")
    assert run.metrics()["metrics"]["accuracy"] > 0.9


def test_pseudo_labels_of_every_step_are_written_most_confident_first() -> None:
    training = trainer(data=blobs(unlabeled=False), pseudo_labels="soft", steps=2, labels_per_class=3)
    training.train()
    first, second = (rows(training.run.path / "pseudo_labels" / f"step-{step}.csv") for step in (1, 2))
    assert (len(first), len(second)) == (111 // 2, 111)
    confidence = [float(row["confidence"]) for row in second]
    assert confidence == sorted(confidence, reverse=True)
    assert set(second[0]) == {"image", "label", "confidence", "truth", "p(0)", "p(1)", "p(2)"}
    metrics = rows(training.run.path / "metrics.csv")
    right = np.mean([row["label"] == row["truth"] for row in second])
    assert float(metrics[-1]["pseudo_label_accuracy"]) == pytest.approx(right)
    assert metrics[0]["pseudo_label_accuracy"] == ""


def test_with_validation_the_best_epoch_is_kept_without_it_the_last() -> None:
    data = blobs(unlabeled=False)
    with_validation = trainer(
        "a", data=data, pseudo_labels="none", epochs=4, validation_fraction=0.3, labels_per_class=4
    )
    with_validation.train()
    accuracy = [row["validation_accuracy"] for row in with_validation.history]
    assert with_validation.best["epoch"] == 1 + int(np.argmax(accuracy))
    without = trainer("b", data=data, pseudo_labels="none", epochs=3)
    without.train()
    assert without.best["epoch"] == 3
    _, description = without.run.load_model()
    assert description["chosen"] == {"phase": "initial", "epoch": 3, "by": "last epoch"}


def test_an_epoch_may_be_shorter_or_longer_than_a_pass() -> None:
    for updates in (1, 40):
        training = trainer(f"run-{updates}", epoch_updates=updates, epochs=2, pseudo_labels="none")
        training.train()
        assert training.learner.averaged_updates == 2 * updates


def test_the_learning_rate_follows_its_schedule_and_a_resumed_run_too() -> None:
    changes = {"warm_up": 3, "final_rate": 0.1, "epochs": 4, "epoch_updates": 2, "pseudo_labels": "none"}
    whole = trainer("whole", **changes)
    whole.train()
    rates = [row["learning_rate"] for row in whole.history]
    assert rates[0] == pytest.approx(whole.settings.optim.learning_rate * 2 / 3, rel=0.1)
    assert rates[1] > rates[2] > rates[3] > 0.1 * whole.settings.optim.learning_rate
    cut = trainer("cut", **changes, checkpoint_seconds=0.0)

    class Stop(Silent):
        def epoch(self, line: str) -> None:
            if len(cut.history) == 2:
                raise KeyboardInterrupt

    cut.progress = Stop()
    with pytest.raises(KeyboardInterrupt):
        cut.train()
    ebpl.resume("cut", data=blobs())
    assert [float(row["learning_rate"]) for row in rows("cut/metrics.csv")] == rates


def test_the_curves_of_a_run_are_kept_with_its_result() -> None:
    data = blobs(unlabeled=False)
    curves = ebpl.train(data, quick(validation_fraction=0.3, labels_per_class=4), run="run").metrics()["curves"]
    metrics = rows("run/metrics.csv")
    for name in ("cross_entropy", "validation_accuracy", "validation_ece", "validation_confidence"):
        assert curves[name] == pytest.approx([float(row[name]) for row in metrics], rel=1e-3)
    assert len(curves["gap"]) == len(metrics)


def test_images_that_do_not_belong_get_no_label_and_are_not_learned_from() -> None:
    training = trainer(pseudo_labels="hard", steps=1, reject_outliers=0.5, checkpoint_seconds=0.0)
    seen: list[set[int]] = []

    class Watch(Silent):
        def epoch(self, line: str) -> None:
            seen.append(set(training.rejected))

    training.progress = Watch()
    training.train()
    rejected = seen[-1]
    assert seen[0] == set()
    assert 0 < len(rejected) < len(training.unlabeled)
    assert rejected.isdisjoint(training.chosen)
    assert len(rejected) + len(training.chosen) == len(training.unlabeled)
    listed = rows(training.run.path / "pseudo_labels" / "outliers-1.csv")
    assert len(listed) == len(rejected)
    stored = torch.load(max(training.run.checkpoints.glob("*.pt")), weights_only=True)
    assert set(stored["rejected"]) == rejected
    drawn = set()
    training.update.everything.copy_ = lambda index: drawn.update(index.tolist())
    list(training._updates(training.schedule[-1]))
    assert drawn.isdisjoint({training.labeled_count + i for i in rejected})
    assert len(drawn) == len(training.pool.images) - len(rejected)


DIVERGING = {
    "energy_penalty": 0.0,
    "clamp_samples": False,
    "gradient_clip": 0.0,
    "learning_rate": 0.05,
    "sgld_steps": 1,
    "epochs": 6,
}


def test_a_diverging_run_heals_itself_and_says_so() -> None:
    run = ebpl.train("digits", quick(**DIVERGING, pseudo_labels="none", guard_every=3), run="run")
    result = run.metrics()
    assert result["healed_divergences"], "this setting is meant to diverge"
    assert result["healed_divergences"][0]["learning_rate"] == 0.025
    metrics = rows(run.path / "metrics.csv")
    assert len(metrics) == 6
    assert int(metrics[-1]["healed"]) == len(result["healed_divergences"])
    assert "diverged" in (run.path / "train.log").read_text()
    assert all(np.isfinite(float(row["loss"])) for row in metrics)
    assert result["metrics"]["accuracy"] > 0.3


def test_a_run_that_cannot_be_healed_stops_with_the_reason() -> None:
    with pytest.raises(DivergedError, match=r"healed 0 times before and gives up"):
        ebpl.train("digits", quick(**DIVERGING, divergence__retries=0), run="run")
    assert "gives up" in Path("run/train.log").read_text()
    assert not Run("run").finished


def test_changed_data_cannot_be_resumed() -> None:
    trainer(data=blobs(seed=0), epochs=1)
    with pytest.raises(RunError, match="not those that run was started with"):
        ebpl.resume("run", data=blobs(seed=1))


def test_tensorboard_gets_the_same_numbers() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = ebpl.train(blobs(), quick(runtime__tensorboard=True, pseudo_labels="none"), run="run")
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx([float(row["loss"]) for row in rows(run.path / "metrics.csv")], rel=1e-6)


def test_weights_that_break_in_the_last_update_of_an_epoch_are_noticed() -> None:
    training = trainer(pseudo_labels="none", epochs=3)

    class Poison(Silent):
        done = False

        def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
            # the guard has had its last look at this epoch's losses
            if "epoch 2/3" in where and updates > 0 and not self.done:
                self.done = True
                with torch.no_grad():
                    training.learner.model.features.stem.weight.fill_(float("nan"))

    training.progress = Poison()
    training.train()
    (event,) = training.guard.events
    assert event["reason"].startswith("the weights are not finite numbers (0 of 128 chains are not finite")
    assert training.learner.is_finite()
    assert len(training.history) == 3


def test_a_state_near_the_limit_is_saved_with_the_one_to_go_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer(pseudo_labels="none", epochs=4, checkpoint_seconds=0.0)
    monkeypatch.setattr(Guard, "is_healthy", lambda self, gap: len(training.history) <= 2)
    training.train()
    newest = torch.load(next(training.run.checkpoints.glob("epoch-000004*.pt")), weights_only=True)
    assert len(newest["history"]) == 4
    assert len(newest["good"]["history"]) == 2
    again = Trainer(training.run, training.data, Silent())
    again.train()
    assert len(again.good["history"]) == 2
    assert not again.healthy
    for name, tensor in training.learner.tensors().items():
        assert torch.equal(tensor, again.learner.tensors()[name]), name
