import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ebpl
from ebpl.data.dataset import ImageSet
from ebpl.errors import DivergedError, RunError
from ebpl.metrics import measure
from ebpl.metrics.classification import accuracy
from ebpl.models.predictions import predict
from ebpl.models.weights import describe_model
from ebpl.runs import Run
from ebpl.terminal import Silent
from ebpl.training import checkpoint, divergence
from ebpl.training.callbacks import Callback, RunWriter
from ebpl.training.divergence import Divergence
from ebpl.training.trainer import Trainer
from tests.helpers import blobs, quick, result, trainer_of


def trainer(path: str = "run", data: ebpl.ImageSet | None = None, **changes: object) -> Trainer:
    """A trainer that writes into a run directory."""
    data = data or blobs()
    run = Run.create(path, quick(**{"curriculum__selection": "all", **changes}), data, {})
    made = trainer_of(run.settings, data)
    made.callbacks = [RunWriter(run, describe_model(made.state.model, data))]
    return made


class Epochs(Callback):
    """Calls a function at the end of every epoch."""

    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def epoch(self, history: Sequence[dict[str, Any]], line: str) -> None:
        self.seen()


def watched(training: Trainer, seen: Any) -> Trainer:
    training.callbacks = [*training.callbacks, Epochs(seen)]
    return training


def rows(path: Path | str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("method", ["ebpl", "curriculum-labeling", "ebpl-without-energy"])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_true_labels_never_change_and_pseudo_labels_are_made_anew(method: str, kind: str) -> None:
    training = trainer(method=method, pseudo_labels=kind, curriculum__steps=2)
    images = training.training_set
    labels = images.targets[: images.labeled].clone()
    seen = []

    def watch() -> None:
        seen.append(images.targets.clone())
        assert torch.equal(images.targets[: images.labeled], labels)

    watched(training, watch).train()
    initial, _, half, all_of_them = seen
    count = images.unlabeled
    given = [(targets[images.labeled :].sum(1) > 0).sum().item() for targets in (initial, half, all_of_them)]
    assert given == [0, count // 2, count]
    pseudo = all_of_them[images.labeled :]
    torch.testing.assert_close(pseudo.sum(1), torch.ones(count))
    is_hard = bool(((pseudo == 0) | (pseudo == 1)).all())
    assert is_hard == (kind == "hard")


def test_the_baseline_restarts_at_every_step_and_the_others_keep_their_weights() -> None:
    distances = {}
    for method in ("ebpl", "ebpl-without-energy", "curriculum-labeling"):
        changes = {"curriculum.steps": 1, "curriculum.epochs": 0}
        training = trainer(method, method=method, pseudo_labels="hard", **changes)
        training.train()
        stored = [torch.load(path, weights_only=True) for path in Path(method, "checkpoints").glob("*.pt")]
        first = next(state for state in stored if state["phase"] == 1)
        other = trainer_of(quick(method=method))
        other.state.initialise("step", 1)
        name = "model.features.stem.weight"
        now, before = training.state.tensors()[name], first["tensors"][name]
        distances[method] = (torch.equal(now, before), torch.equal(now, other.state.tensors()[name]))
    kept, fresh = (True, False), (False, True)
    assert distances == {"ebpl": kept, "ebpl-without-energy": kept, "curriculum-labeling": fresh}


def test_it_learns_from_few_labels() -> None:
    run = ebpl.train(blobs(), quick(epochs=30), run="run")
    assert run.metrics()["metrics"]["accuracy"] > 0.9


def test_pseudo_labels_of_every_step_are_written_most_confident_first() -> None:
    training = trainer(data=blobs(unlabeled=False), pseudo_labels="soft", curriculum__steps=2, labels_per_class=3)
    training.train()
    first, second = (rows(f"run/pseudo_labels/step-{step}.csv") for step in (1, 2))
    assert (len(first), len(second)) == (111 // 2, 111)
    confidence = [float(row["confidence"]) for row in second]
    assert confidence == sorted(confidence, reverse=True)
    assert set(second[0]) == {"image", "label", "confidence", "truth", "p(0)", "p(1)", "p(2)"}
    metrics = rows("run/metrics.csv")
    right = np.mean([row["label"] == row["truth"] for row in second])
    assert float(metrics[-1]["pseudo_label_accuracy"]) == pytest.approx(right)
    assert metrics[0]["pseudo_label_accuracy"] == ""


def test_with_validation_the_best_epoch_is_kept_without_it_the_last() -> None:
    data = blobs(unlabeled=False)
    with_validation = trainer(
        "a", data=data, pseudo_labels="none", epochs=4, validation_fraction=0.3, labels_per_class=4
    )
    with_validation.train()
    progress = with_validation.state.progress
    found = [row["validation_accuracy"] for row in progress.history]
    assert progress.best["epoch"] == 1 + int(np.argmax(found))
    without = trainer("b", data=data, pseudo_labels="none", epochs=3)
    without.train()
    assert without.state.progress.best["epoch"] == 3
    _, description = Run("b").load_model()
    assert description["chosen"] == {"phase": "initial", "epoch": 3, "by": "last epoch"}


def test_of_epochs_that_validate_alike_the_first_is_kept() -> None:
    changes = {"learning_rate": 0.0, "epochs": 3, "validation_fraction": 0.3, "labels_per_class": 4}
    training = trainer_of(quick(pseudo_labels="none", **changes), blobs(unlabeled=False))
    training.train()
    progress = training.state.progress
    assert len({row["validation_accuracy"] for row in progress.history}) == 1
    assert progress.best["epoch"] == 1


# --- which weights, which images, which labels ----------------------------------------------------------------------

VALIDATED = {
    "epochs": 6,
    "curriculum.steps": 2,
    "curriculum.epochs": 2,
    "labels_per_class": 4,
    "validation_fraction": 0.3,
    "optim.ema_decay": 0.9,
}


def model_with(training: Trainer, weights: dict[str, torch.Tensor]) -> Any:
    model = training.state.model.architecture.build()
    model.load_state_dict(weights)
    return model.eval()


def test_the_last_metrics_are_those_of_the_last_averaged_weights_and_not_of_the_chosen_ones() -> None:
    data = blobs(unlabeled=False)
    run = ebpl.train(data, quick(**VALIDATED), run="run")
    stored = checkpoint.load(run.checkpoints, print)
    assert stored is not None
    assert len(stored["history"]) == 10
    training = trainer_of(run.settings, data)
    weights = {"average": {}, "model": {}, "chosen": stored["best"]["weights"]}
    for name, tensor in stored["tensors"].items():
        part, _, own = name.partition(".")
        if part in ("average", "model"):
            weights[part][own] = tensor
    assert data.test is not None
    of = {
        name: measure(predict(model_with(training, each), data.test.pixels).probabilities, data.test.labels)
        for name, each in weights.items()
    }
    told = run.metrics()
    assert told["last"]["metrics"] == pytest.approx(of["average"], rel=1e-6)
    assert told["metrics"] == pytest.approx(of["chosen"], rel=1e-6)
    for other in ("chosen", "model"):
        assert of[other]["nll"] != pytest.approx(of["average"]["nll"], rel=1e-4), "these could not be told apart"
    assert (told["chosen"]["phase"], told["chosen"]["epoch"]) != ("step 2 of 2", 2)
    assert ebpl.evaluate(run, data) == pytest.approx(of["chosen"], rel=1e-6)


def test_validation_is_of_the_averaged_weights_on_the_validation_images_of_the_split() -> None:
    data = blobs(unlabeled=False)
    settings = quick(**VALIDATED)
    parts = ebpl.split(data, seed=settings.seed, labels_per_class=4, validation_fraction=0.3)
    validation = data.train.take(parts.validation)
    assert data.test is not None
    expected: list[dict[str, tuple[float, float]]] = []
    training = trainer_of(settings, data)

    def seen() -> None:
        state = training.state
        assert state.average is not None
        found = {}
        for name, model, images in (
            ("right", state.average, validation),
            ("raw weights", state.model, validation),
            ("test images", state.average, data.test),
        ):
            probabilities = predict(model, images.pixels).probabilities
            found[name] = (accuracy(probabilities, images.labels), float(probabilities.max(1).mean()))
        expected.append(found)

    watched(training, seen).train()
    history = training.state.progress.history
    told = [(row["validation_accuracy"], row["validation_confidence"]) for row in history]
    assert told == [pytest.approx(each["right"], rel=1e-5) for each in expected]
    for wrong in ("raw weights", "test images"):
        assert told != [pytest.approx(each[wrong], rel=1e-5) for each in expected], wrong
    scores = [score for score, _ in told]
    best = training.state.progress.best
    assert best["score"] == max(scores)
    assert (best["phase"], best["epoch"]) == tuple(history[int(np.argmax(scores))][key] for key in ("phase", "epoch"))


def test_pseudo_labels_are_those_of_the_averaged_weights() -> None:
    steps: list[dict[str, np.ndarray]] = []

    class Seen(Callback):
        def relabeled(self, step: int, found: Any) -> None:
            state, images = training.state, training.training_set
            assert state.average is not None
            unlabeled = images.data.train.pixels[images.unlabeled_index]
            said = {"average": predict(state.average, unlabeled), "raw": predict(state.model, unlabeled)}
            probabilities = {name: each.probabilities for name, each in said.items()}
            steps.append({"targets": found.targets, "selected": found.selected, **probabilities})

    training = trainer_of(quick(**VALIDATED, curriculum__selection="all"), blobs(unlabeled=False), Seen())
    training.train()
    assert len(steps) == 2
    for each in steps:
        np.testing.assert_allclose(each["targets"], each["average"][each["selected"]], rtol=1e-5, atol=1e-7)
        assert not np.allclose(each["raw"][each["selected"]], each["average"][each["selected"]], rtol=1e-3)
        order = np.argsort(-each["average"].max(1), kind="stable")[: len(each["selected"])]
        assert set(each["selected"]) == set(order)


def last_state(training: Trainer) -> dict[str, bytes]:
    """Every tensor of the end of a training, bit by bit."""
    return {name: tensor.detach().numpy().tobytes() for name, tensor in training.state.tensors().items()}


def without_validation(training: Trainer) -> list[dict[str, Any]]:
    kept = training.state.progress.history
    return [{k: v for k, v in row.items() if not k.startswith("validation") and k != "seconds"} for row in kept]


def test_no_label_of_a_test_or_validation_image_has_an_effect_on_the_last_weights() -> None:
    data = blobs(unlabeled=False)
    assert data.test is not None
    numbers = np.random.default_rng(0)
    fixed = trainer_of(quick(**VALIDATED), data)
    other_test = dataclasses.replace(data.test, labels=numbers.permutation(data.test.labels))
    permuted_test = trainer_of(quick(**VALIDATED), dataclasses.replace(data, test=other_test))
    there = ebpl.split(data, seed=0, labels_per_class=4, validation_fraction=0.3).validation
    assert len(there) == 36
    labels = data.train.labels.copy()
    labels[there] = (labels[there] + 1) % 3
    other_labels = dataclasses.replace(data.train, labels=labels)
    permuted_validation = trainer_of(quick(**VALIDATED), dataclasses.replace(data, train=other_labels))
    for training in (fixed, permuted_test, permuted_validation):
        training.train()
    assert last_state(permuted_test) == last_state(permuted_validation) == last_state(fixed)
    assert without_validation(permuted_validation) == without_validation(fixed)
    told = [
        [row["validation_accuracy"] for row in each.state.progress.history] for each in (fixed, permuted_validation)
    ]
    assert told[0] != told[1], "the labels of validation images were changed without anybody looking at them"
    best = [each.state.progress.best for each in (fixed, permuted_test)]
    assert (best[0]["phase"], best[0]["epoch"]) == (best[1]["phase"], best[1]["epoch"])
    assert all(torch.equal(tensor, best[1]["weights"][name]) for name, tensor in best[0]["weights"].items())


def test_validation_images_of_the_data_choose_the_weights_and_have_no_other_effect() -> None:
    data = blobs(180)
    assert data.test is not None
    half = np.arange(len(data.test))
    validation, test = data.test.take(half[:15]), data.test.take(half[15:])
    split = {**VALIDATED, "labels_per_class": None, "validation_fraction": 0.0}
    runs = {}
    for name, labels in (("right", validation.labels), ("wrong", (validation.labels + 1) % 3)):
        own = dataclasses.replace(validation, labels=labels)
        runs[name] = trainer_of(quick(**split), dataclasses.replace(data, test=test, validation=own))
        runs[name].train()
    without = trainer_of(quick(**split), dataclasses.replace(data, test=test))
    without.train()
    assert last_state(runs["right"]) == last_state(runs["wrong"]) == last_state(without)
    right, wrong = (runs[name].state.progress.history[-1]["validation_accuracy"] for name in ("right", "wrong"))
    assert right + wrong <= 1


def test_the_hidden_labels_of_unlabelled_images_have_no_effect_on_any_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from ebpl.training.training_set import TrainingSet

    plain = trainer_of(quick(**VALIDATED), blobs(unlabeled=False))
    plain.train()
    hidden = TrainingSet.hidden_labels.fget
    assert hidden is not None
    monkeypatch.setattr(TrainingSet, "hidden_labels", property(lambda images: (hidden(images) + 1) % 3))
    other = trainer_of(quick(**VALIDATED), blobs(unlabeled=False))
    other.train()
    assert last_state(other) == last_state(plain)
    told = [each.state.progress.pseudo_label_accuracy for each in (plain, other)]
    assert told[0] != told[1]


# --- the loop --------------------------------------------------------------------------------------------------------


def test_an_epoch_may_be_shorter_or_longer_than_a_pass() -> None:
    for updates in (1, 40):
        training = trainer(f"run-{updates}", optim__updates_per_epoch=updates, epochs=2, pseudo_labels="none")
        training.train()
        assert training.state.ema_updates == 2 * updates


def test_the_learning_rate_follows_its_schedule_and_a_resumed_run_too() -> None:
    changes = {
        "optim.warmup_updates": 3,
        "optim.final_lr_factor": 0.1,
        "epochs": 4,
        "optim.updates_per_epoch": 2,
        "pseudo_labels": "none",
    }
    whole = trainer("whole", **changes)
    whole.train()
    rates = [row["learning_rate"] for row in whole.state.progress.history]
    assert rates[0] == pytest.approx(whole.settings.optim.learning_rate * 2 / 3, rel=0.1)
    assert rates[1] > rates[2] > rates[3] > 0.1 * whole.settings.optim.learning_rate
    cut = trainer("cut", **changes, **{"runtime.checkpoint_seconds": 0.0})

    def stop() -> None:
        if len(cut.state.progress.history) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(cut, stop).train()
    ebpl.resume("cut", data=blobs())
    assert [float(row["learning_rate"]) for row in rows("cut/metrics.csv")] == rates


@pytest.mark.parametrize("epochs", [1, 2, 4, 5])
def test_a_run_stopped_after_any_epoch_ends_as_if_never_stopped(epochs: int, trained: Run) -> None:
    class Stop(Silent):
        left = epochs

        def epoch(self, line: str) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    settings = quick(runtime__checkpoint_seconds=1000.0)  # saved because it was stopped, not because it was time
    with pytest.raises(KeyboardInterrupt):
        ebpl.train(blobs(), settings, run="run", progress=Stop())
    assert not Run("run").finished
    resumed = ebpl.resume("run", data=blobs())
    assert result(resumed.path) == result(trained.path)


def test_the_curves_of_a_run_are_kept_with_its_result() -> None:
    data = blobs(unlabeled=False)
    curves = ebpl.train(data, quick(validation_fraction=0.3, labels_per_class=4), run="run").metrics()["curves"]
    metrics = rows("run/metrics.csv")
    for name in ("cross_entropy", "energy_gap", "validation_accuracy", "validation_ece", "validation_confidence"):
        assert curves[name] == pytest.approx([float(row[name]) for row in metrics], rel=1e-3)


def test_the_columns_of_the_table_are_those_of_the_methods_terms() -> None:
    energies = {"energy_images", "energy_samples", "energy_gap", "coupling"}
    for method, with_energies in (("ebpl", True), ("curriculum-labeling", False)):
        for weight in (0.0, 1.0):
            path = f"{method}-{weight}"
            settings = quick(method=method, consistency__weight=weight, epochs=1, pseudo_labels="none")
            ebpl.train(blobs(), settings, run=path)
            (row,) = rows(f"{path}/metrics.csv")
            assert energies.issubset(row) == with_energies
            assert {"consistency", "mask_rate"}.issubset(row) == (weight > 0)
            assert {"phase", "epoch", "loss", "cross_entropy", "learning_rate", "sgld_steps", "seconds"}.issubset(row)
            if with_energies:
                gap = float(row["energy_images"]) - float(row["energy_samples"])
                assert float(row["energy_gap"]) == pytest.approx(gap, abs=1e-5)


def test_images_that_do_not_belong_get_no_label_and_are_not_learned_from() -> None:
    changes = {"curriculum.steps": 1, "curriculum.reject_outliers": 0.5, "runtime.checkpoint_seconds": 0.0}
    training = trainer(pseudo_labels="hard", **changes)
    progress, images = training.state.progress, training.training_set
    seen: list[set[int]] = []
    watched(training, lambda: seen.append(set(training.state.progress.rejected))).train()
    rejected = seen[-1]
    assert seen[0] == set()
    assert 0 < len(rejected) < images.unlabeled
    assert rejected.isdisjoint(progress.selected)
    assert len(rejected) + len(progress.selected) == images.unlabeled
    assert len(rows("run/pseudo_labels/outliers-1.csv")) == len(rejected)
    stored = torch.load(max(Path("run/checkpoints").glob("*.pt")), weights_only=True)
    assert set(stored["rejected"]) == rejected
    progress.phase = 1
    order = dict(zip(training.step.positions, training._order(torch.Generator()), strict=True))
    drawn = set(order["all"][1].flatten().tolist())
    assert drawn.isdisjoint({images.labeled + i for i in rejected})
    assert len(drawn) == len(images) - len(rejected)


def test_before_they_are_judged_no_unlabelled_image_is_learned_from_where_outliers_are_rejected() -> None:
    training = trainer_of(quick(curriculum__reject_outliers=0.9))
    next(training.work())
    order = dict(zip(training.step.positions, training._order(torch.Generator()), strict=True))
    assert set(order["all"][1].flatten().tolist()) == set(range(training.training_set.labeled))


# --- divergence ------------------------------------------------------------------------------------------------------

DIVERGING = {
    "energy.penalty": 0.0,
    "sgld.clamp_samples": False,
    "optim.gradient_clip": 0.0,
    "learning_rate": 0.05,
    "sgld.steps": 1,
    "epochs": 6,
}


def test_a_diverging_run_recovers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "CHECK_EVERY", 3)
    run = ebpl.train("digits", quick(**DIVERGING, pseudo_labels="none"), run="run")
    told = run.metrics()
    assert told["healed_divergences"], "this setting is meant to diverge"
    assert told["healed_divergences"][0]["learning_rate"] == 0.025
    metrics = rows(run.path / "metrics.csv")
    assert len(metrics) == 6
    assert int(metrics[-1]["healed"]) == len(told["healed_divergences"])
    assert "diverged" in (run.path / "train.log").read_text()
    assert all(np.isfinite(float(row["loss"])) for row in metrics)
    assert told["metrics"]["accuracy"] > 0.3


def test_a_run_that_recovered_trains_with_more_careful_terms() -> None:
    training = trainer_of(quick(pseudo_labels="none", epochs=2, energy__weight=0.2, energy__penalty=0.0))
    next(training.work())
    density = training.step.terms[1]
    assert (density.weight, density.penalty) == (0.2, 0.0)
    training.seen = 0
    training._recover("it ran away", training.schedule[0])
    assert training.step.terms[1].penalty == 0.0
    training._recover("again", training.schedule[0])
    density = training.step.terms[1]
    assert (density.weight, density.penalty, density.center) == pytest.approx((0.2, 0.1, 1.0))
    assert density.weight - 2 * density.penalty * density.center == pytest.approx(0)  # the slope at an energy of 0
    assert training.step.langevin.steps == 5
    assert training.step.langevin.clamp == (-1.0, 1.0)
    assert training.state.divergence.learning_rate == pytest.approx(training.settings.optim.learning_rate / 4)


def test_a_run_that_cannot_recover_stops_with_the_reason() -> None:
    with pytest.raises(DivergedError, match=r"recovered 0 times before and stops now"):
        ebpl.train("digits", quick(**DIVERGING, divergence__retries=0), run="run")
    assert "stops now" in Path("run/train.log").read_text()
    assert not Run("run").finished


def test_a_run_that_stopped_as_diverged_remembers_its_recoveries_when_it_is_resumed() -> None:
    with pytest.raises(DivergedError, match=r"recovered 1 time before and stops now"):
        ebpl.train("digits", quick(**DIVERGING, divergence__retries=1, pseudo_labels="none"), run="run")
    stored = checkpoint.load(Run("run").checkpoints, print)
    assert stored is not None
    assert (stored["divergence"]["healed"], stored["divergence"]["learning_rate"]) == (1, 0.025)
    assert len(stored["divergence"]["events"]) == 1
    with pytest.raises(DivergedError, match=r"recovered 1 time before and stops now"):
        ebpl.resume("run")


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


@pytest.mark.parametrize("epoch", ["2/4", "4/4"])
@pytest.mark.parametrize(
    ("factor", "reason"),
    [(float("nan"), "the weights are not finite numbers"), (-1e8, "after the last update the cross-entropy is")],
)
@pytest.mark.parametrize("method", ["ebpl", "curriculum-labeling"])
def test_weights_that_break_in_the_last_update_of_an_epoch_are_noticed(
    method: str, factor: float, reason: str, epoch: str
) -> None:
    training = trainer(method=method, pseudo_labels="none", epochs=4)

    class Poison(Callback):
        done = False

        def updates(self, count: int, where: str, facts: dict[str, float]) -> None:
            # this epoch's losses have been looked at for the last time
            if f"epoch {epoch}" in where and not self.done:
                self.done = True
                with torch.no_grad():
                    training.state.model.features.stem.weight.mul_(factor)

    training.callbacks = [Poison()]
    training.train()
    (event,) = training.state.divergence.events
    assert event["reason"].startswith(reason)
    assert f"{event['epoch']}/4" == epoch
    assert training.state.is_finite()
    assert training.state.model.features.stem.weight.abs().max() < 10
    assert len(training.state.progress.history) == 4


def test_a_state_that_its_last_update_made_worse_than_guessing_is_not_gone_back_to() -> None:
    training = trainer(pseudo_labels="none", epochs=4)
    added = {"epoch 2/4": 6.0, "epoch 3/4": float("nan")}  # first what training could still get over, then not

    class Poison(Callback):
        def updates(self, count: int, where: str, facts: dict[str, float]) -> None:
            for epoch in [name for name in added if name in where]:
                with torch.no_grad():
                    training.state.model.classifier.bias[0] += added.pop(epoch)

    training.callbacks = [Poison()]
    training.train()
    (event,) = training.state.divergence.events
    assert event["epoch"] == 3
    assert [row["healed"] for row in training.state.progress.history] == [0, 1, 1, 1]


def test_a_state_near_the_limit_is_saved_with_the_one_to_go_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer(pseudo_labels="none", epochs=4, runtime__checkpoint_seconds=0.0)
    monkeypatch.setattr(Divergence, "is_healthy", lambda self, gap, *more: len(training.state.progress.history) <= 2)
    training.train()
    run = Run("run")
    newest = torch.load(next(run.checkpoints.glob("epoch-000004*.pt")), weights_only=True)
    assert len(newest["history"]) == 4
    assert len(newest["last_good"]["history"]) == 2
    again = trainer_of(run.settings)
    again.train(checkpoint.load(run.checkpoints, print))
    assert len(again.last_good["history"]) == 2
    assert not again.healthy
    for name, tensor in training.state.tensors().items():
        assert torch.equal(tensor, again.state.tensors()[name]), name


def imbalanced_blobs() -> ImageSet:
    """Five labels of each of three classes, and unlabelled images that are mostly of the first."""
    data = blobs(600)
    at = np.arange(len(data.train))
    kept = (data.train.labels >= 0) | (at % 3 == 0) | (at % 30 == 1) | (at % 30 == 2)
    return dataclasses.replace(data, train=data.train.take(np.flatnonzero(kept)))


def test_the_class_mix_is_estimated_after_the_initial_training_and_used_from_then_on() -> None:
    data = imbalanced_blobs()
    training = trainer_of(quick(optim__epochs=8, data__class_mix="auto"), data)
    training.train()
    mix = training.state.progress.class_mix
    assert mix is not None
    assert mix.shares[0] > 0.6
    np.testing.assert_allclose(training.state.kept_model().log_mix, mix.log_ratio, rtol=1e-6)
    again = trainer_of(quick(optim__epochs=8, data__class_mix="auto"), data)
    again.state.restore(training.state.snapshot())
    assert again.state.progress.class_mix == mix


def test_a_class_mix_that_is_given_is_used_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "mix.csv").write_text("0,8\n1,1\n2,1\n")
    training = trainer_of(quick(data__class_mix=str(tmp_path / "mix.csv")), imbalanced_blobs())
    training._start(None)
    np.testing.assert_allclose(training.state.model.log_mix, np.log([2.4, 0.3, 0.3]), rtol=1e-5)
    balanced = trainer_of(quick(data__class_mix="balanced"))
    balanced._start(None)
    assert not balanced.state.model.log_mix.any()


def test_without_a_word_on_it_the_class_mix_of_images_is_that_of_the_labels() -> None:
    training = trainer_of(quick(), imbalanced_blobs())
    training.train()
    assert training.state.progress.class_mix is None
