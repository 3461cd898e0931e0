import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ebpl
from ebpl import methods
from ebpl.config import Settings
from ebpl.config.presets import PRESETS, preset
from ebpl.errors import UsageError
from ebpl.inference.evaluate import evaluation
from ebpl.methods import Method, get_method, method_names, register
from ebpl.models import HybridModel
from ebpl.recommendation import settings_for
from ebpl.runs import Run
from ebpl.terminal import Silent, measures_table
from ebpl.training import checkpoint
from ebpl.training.callbacks import Callback
from ebpl.training.losses import Coupling, CrossEntropy, Density, Loss, LossTerm, Outputs, Views, classifier_terms
from ebpl.training.train_step import TrainStep
from ebpl.training.training_set import UNLABELED
from tests.helpers import blobs, quick, result, trainer_of

OTHERS = ("fixmatch", "freematch", "jem", "mixmatch", "pseudo-label", "softmatch", "supervised")
"""Methods of other papers, which have no curriculum."""


def kinds(name: str, settings: Settings) -> list[type[LossTerm]]:
    return [type(term) for term in get_method(name).terms(settings)]


def test_every_file_of_the_package_is_a_method_and_says_what_it_does() -> None:
    files = {found.name.replace("_", "-") for found in pkgutil.iter_modules(methods.__path__)}
    assert files == set(method_names()) == {"ebpl", "ebpl-without-energy", "curriculum-labeling", *OTHERS}
    for name in method_names():
        assert get_method(name).title
        assert len(get_method(name).summary) > 10
    assert len({get_method(name).title for name in method_names()}) == len(method_names())


def test_the_default_method_of_every_preset_exists() -> None:
    for name in PRESETS:
        assert preset(name).method in method_names()


def test_the_baseline_differs_in_density_and_restart_alone() -> None:
    ours, baseline = get_method("ebpl"), get_method("curriculum-labeling")
    assert (ours.density, ours.reinitialise) == (True, False)
    assert (baseline.density, baseline.reinitialise) == (False, True)
    for settings in (preset("standard"), preset("best")):
        added = [kind for kind in kinds("ebpl", settings) if kind not in (Density, Coupling)]
        assert added == kinds("curriculum-labeling", settings)


def test_ebpl_without_energy_differs_from_ebpl_in_its_energy_terms_alone() -> None:
    without = get_method("ebpl-without-energy")
    assert (without.density, without.reinitialise) == (False, False)
    for settings in (preset("standard"), preset("best")):
        added = [kind for kind in kinds("ebpl", settings) if kind not in (Density, Coupling)]
        assert added == kinds("ebpl-without-energy", settings)


def test_ebpl_without_energy_has_no_gaussian_head_no_chains_and_keeps_its_weights_between_steps() -> None:
    changes = {"curriculum.steps": 1, "curriculum.epochs": 0, "pseudo_labels": "hard"}
    saved: list[dict[str, Any]] = []

    class Saved(Callback):
        def checkpoint(self, epochs_done: int, state: dict[str, Any]) -> None:
            saved.append(state)

    training = trainer_of(quick(method="ebpl-without-energy", **changes), blobs(), Saved())
    assert training.state.model.gaussian is None
    assert training.state.buffer is None
    training.train()
    before, after = saved
    assert (before["phase"], after["phase"]) == (1, 2)
    assert (len(before["selected"]), len(after["selected"])) == (0, 105)
    assert all(torch.equal(tensor, before["tensors"][name]) for name, tensor in after["tensors"].items())


def test_the_calibration_is_checked_where_weights_are_kept_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebpl.calibration.MIN_HOLDOUT", 1)
    held_out = {
        name: trainer_of(quick(method=name, curriculum__calibration_holdout=0.4)).training_set.held_out
        for name in method_names()
    }
    assert held_out == {**dict.fromkeys(method_names(), 6), "curriculum-labeling": 0}


@pytest.mark.parametrize("method", OTHERS)
def test_every_method_is_measured_before_and_after_calibration(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr("ebpl.calibration.MIN_HOLDOUT", 1)
    changes = {"curriculum.calibration_holdout": 0.4, "optim.label_smoothing": 0.1, "data.mixup_probability": 0.5}
    run = ebpl.train(blobs(), quick(method=method, **changes), run="run")
    found, stored = evaluation(run, blobs())["calibrations"], run.metrics()
    assert stored["check"]["images"] == 6
    assert list(found) == list(stored["calibrations"]) == ["none", "temperature", "histogram binning"]
    assert found["temperature"] == pytest.approx(stored["metrics"], abs=1e-6)
    assert len({each["accuracy"] for each in found.values()}) == 1
    assert found["histogram binning"]["ece"] != found["none"]["ece"]
    for name, metrics in found.items():
        assert metrics == pytest.approx(stored["calibrations"][name], abs=1e-6)


@pytest.mark.parametrize("method", method_names())
def test_label_smoothing_reaches_the_cross_entropy_of_every_method(method: str) -> None:
    settings = quick(method=method, **{"optim.label_smoothing": 0.3, "data.mixup_probability": 0.4})
    term = next(term for term in get_method(method).terms(settings) if isinstance(term, CrossEntropy))
    own = method == "mixmatch"  # which mixes every image in any case
    assert (term.label_smoothing, term.mixup_probability) == (0.3, 0.0 if own else 0.4)
    scores = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.1, 0.0]])
    targets = torch.tensor([[1.0, 0, 0], [0.25, 0.75, 0]])
    found = term.loss(trainer_of(quick()).state.model, [Outputs(scores, scores[:, 0])], Views([], targets)).value
    smooth = 0.7 * targets + 0.3 / 3
    assert found.item() == pytest.approx(-(smooth * scores.log_softmax(1)).sum(1).mean().item())


def test_every_choice_for_long_trainings_is_resumed_bit_for_bit() -> None:
    changes = {
        "model.norm": "group",
        "data.strong_views": "randaugment",
        "consistency.weight": 1.0,
        "consistency.batch_size": 16,
        "consistency.confidence_threshold": 0.6,
        "consistency.final_threshold": 0.2,
        "consistency.temperature": 1.0,
        "consistency.final_temperature": 0.0,
        "consistency.distribution_alignment": True,
        "optim.epochs": 3,
        "optim.updates_per_epoch": 3,
        "curriculum.steps": 1,
    }
    settings, data = quick(**changes), blobs()
    whole = ebpl.train(data, settings, run="whole")
    with pytest.raises(KeyboardInterrupt):
        ebpl.train(data, settings.changed(runtime__checkpoint_seconds=0.0), run="cut", progress=Stop())
    assert result(ebpl.resume("cut", data=data).path) == result(whole.path)
    stored = checkpoint.load(whole.checkpoints, print)
    assert stored is not None
    assert not torch.allclose(stored["tensors"]["memory.mean_prediction"], torch.tensor(1 / 3))


@pytest.mark.parametrize("wrong", ["ebp", "ebpl_without_energy", "curiculum-labeling"])
def test_an_unknown_method_suggests_a_known_one(wrong: str) -> None:
    with pytest.raises(UsageError, match=f"There is no method '{wrong}'. Did you mean .*(ebpl|curriculum-labeling)"):
        get_method(wrong)
    with pytest.raises(UsageError, match="Did you mean"):
        ebpl.train(blobs(), quick(), method=wrong, run="run")
    assert not Path("run").exists()


# --- methods of other papers -----------------------------------------------------------------------------------------

TEN = {"optim.batch_size": 10, "unlabeled.ratio": 2, "optim.epochs": 3}


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_of_another_paper_is_trained_resumed_bit_for_bit_evaluated_and_reported(name: str) -> None:
    data, settings = blobs(), quick(method=name, **TEN)
    whole = ebpl.train(data, settings, run="whole")
    with pytest.raises(KeyboardInterrupt):
        ebpl.train(data, settings.changed(runtime__checkpoint_seconds=0.0), run="cut", progress=Stop())
    assert result(ebpl.resume("cut", data=data).path) == result(whole.path)
    rows = result(whole.path)["metrics"]
    assert isinstance(rows, list)
    assert [row["phase"] for row in rows] == ["initial"] * 3
    logs = [log for term in get_method(name).terms(settings) for log in term.logs]
    assert all(np.isfinite(float(row[log])) for row in rows for log in logs)
    assert ebpl.evaluate(whole, data)["accuracy"] >= 0
    assert get_method(name).title in ebpl.report(whole, data=data).read_text()


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_of_another_paper_has_no_curriculum_and_the_network_and_length_of_any_preset(name: str) -> None:
    chosen, _ = settings_for(blobs(), preset="best", changes={"method": name})
    assert chosen == preset("best", method=name, pseudo_labels="none")
    sizes = {"pseudo-label": 8, "mixmatch": 1}
    for term in get_method(name).terms(chosen):
        assert term.stream != UNLABELED or term.ratio == sizes.get(name, 7)


@pytest.mark.parametrize("name", ["fixmatch", "freematch", "softmatch", "pseudo-label", "mixmatch"])
def test_weight_and_ratio_of_unlabelled_images_are_the_papers_unless_they_are_set(name: str) -> None:
    def found(**changes: object) -> tuple[float, int]:
        (term,) = (term for term in get_method(name).terms(quick(method=name, **changes)) if term.stream == UNLABELED)
        return term.weight, term.ratio  # type: ignore[attr-defined]

    papers = {"pseudo-label": (3.0, 8), "mixmatch": (75.0, 1)}
    assert found() == papers.get(name, (1.0, 7))
    assert found(unlabeled__weight=0.0, unlabeled__ratio=3) == (0.0, 3)


@pytest.mark.parametrize("name", ["freematch", "softmatch"])
def test_what_a_term_keeps_goes_back_with_a_divergence_and_is_new_with_fresh_weights(name: str) -> None:
    training = trainer_of(quick(method=name, pseudo_labels="none", unlabeled__momentum=0.9, **TEN))
    start = {key: tensor.clone() for key, tensor in training.state.memory.items()}
    assert start
    training.train()
    assert all(not torch.equal(tensor, start[key]) for key, tensor in training.state.memory.items())
    good = training.state.snapshot()
    assert {f"memory.{key}" for key in start} <= good["tensors"].keys()
    for tensor in training.state.memory.values():
        tensor.fill_(-1)
    training.state.restore(good)
    for key, tensor in training.state.memory.items():
        assert torch.equal(tensor, good["tensors"][f"memory.{key}"])
    training.state.initialise("again")
    assert all(torch.equal(tensor, start[key]) for key, tensor in training.state.memory.items())


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "supervised"])
def test_a_method_that_needs_images_says_so_where_there_are_features(name: str) -> None:
    with pytest.raises(UsageError, match=r"features have none|samples images"):
        ebpl.train(blobs(), preset="features", method=name, run="run")
    assert not Path("run").exists()


# --- a third method --------------------------------------------------------------------------------------------------


class Confident(LossTerm):
    """Unlabelled images shall be predicted with low entropy (Grandvalet and Bengio 2004)."""

    logs = ("entropy",)
    stream = UNLABELED

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def views(self, step: TrainStep) -> Views:
        return Views([step.noisy(step.weak(step.training_set.take(step.positions[UNLABELED])))])

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        log_p = outputs[0].scores.log_softmax(1)
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        return Loss(self.weight * entropy, {"entropy": entropy})


TOY = Method(
    "entropy minimisation",
    "confident predictions for unlabelled images",
    lambda settings: [*classifier_terms(settings), Confident(0.1)],
)


@pytest.fixture
def _toy() -> Iterator[None]:
    register("entropy-minimisation", TOY)
    yield
    del methods._registered["entropy-minimisation"]


SETTINGS = {"method": "entropy-minimisation", "consistency.batch_size": 32, "curriculum.steps": 1}


class Stop(Silent):
    """Stops after the second epoch."""

    left = 2

    def epoch(self, line: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("_toy")
def test_a_method_of_ones_own_is_trained_resumed_evaluated_and_reported() -> None:
    data, settings = blobs(), quick(**SETTINGS)
    assert "entropy-minimisation" in method_names()
    assert not get_method("entropy-minimisation").density
    whole = ebpl.train(data, settings, run="whole")
    with pytest.raises(KeyboardInterrupt):
        ebpl.train(data, settings.changed(runtime__checkpoint_seconds=0.0), run="cut", progress=Stop())
    assert not Run("cut").finished
    resumed = ebpl.resume("cut", data=data)
    assert result(resumed.path) == result(whole.path)

    rows = result(whole.path)["metrics"]
    assert isinstance(rows, list)
    assert [row["phase"] for row in rows] == ["initial", "initial", "step 1 of 1"]
    for row in rows:
        assert 0 < float(row["entropy"]) <= np.log(3)
        assert float(row["loss"]) == pytest.approx(float(row["cross_entropy"]) + 0.1 * float(row["entropy"]), rel=1e-4)
        assert "energy_gap" not in row

    measured = ebpl.evaluate(whole, data)
    assert measured == pytest.approx(whole.metrics()["metrics"], abs=1e-6)
    assert measures_table("title", {TOY.title: measured}).row_count > 5
    assert len(ebpl.predict(whole, data.train.pixels[:5])) == 5
    page = ebpl.report(whole, data=data).read_text()
    assert "entropy-minimisation" in page
    assert f"{100 * measured['accuracy']:.1f}" in page


def test_a_run_of_a_method_that_is_not_registered_says_so() -> None:
    register("entropy-minimisation", TOY)
    run = ebpl.train(blobs(), quick(**SETTINGS, epochs=1, pseudo_labels="none"), run="run")
    del methods._registered["entropy-minimisation"]
    assert "entropy-minimisation" not in method_names()
    (run.path / "test_metrics.json").unlink()
    with pytest.raises(UsageError, match="There is no method 'entropy-minimisation'"):
        ebpl.resume("run", data=blobs())


def test_a_term_of_ones_own_changes_what_is_learned() -> None:
    def entropy(weight: float) -> float:
        register("toy", Method("toy", "toy", lambda settings: [CrossEntropy(), Confident(weight)]))
        training = trainer_of(quick(method="toy", epochs=3, pseudo_labels="none", consistency__batch_size=32))
        training.train()
        del methods._registered["toy"]
        value: float = training.state.progress.history[-1]["entropy"]
        return value

    assert entropy(3.0) < 0.9 * entropy(0.0)


def test_a_method_without_a_curriculum_is_trained_in_one_phase() -> None:
    register("toy", Method("toy", "toy", classifier_terms, pseudo_labels=False))
    run = ebpl.train(blobs(), quick(pseudo_labels="soft"), method="toy", run="run")
    del methods._registered["toy"]
    rows = result(run.path)["metrics"]
    assert isinstance(rows, list)
    assert {row["phase"] for row in rows} == {"initial"}
