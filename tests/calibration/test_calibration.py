from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import ebpl
from ebpl import calibration
from ebpl.calibration import (
    EVIDENCE,
    MAX_DRIFT,
    MIN_HOLDOUT,
    PRIOR_SCALE,
    CalibrationCheck,
    apply_temperature,
    holdout_counts,
    holdout_mask,
    revalidate_temperature,
    scale_classifier,
    warnings_of,
)
from ebpl.config import find
from ebpl.errors import RunError
from ebpl.models.predictions import predict
from ebpl.runs import Run
from ebpl.terminal import Silent
from ebpl.training import checkpoint
from ebpl.training.callbacks import Callback
from tests.helpers import architecture, blobs, quick, random_images, trainer_of

HOLDOUT = {"curriculum.calibration_holdout": 0.4}


def drawn(count: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Posteriors, and labels drawn from them: a confidence that is right."""
    random = np.random.default_rng(seed)
    powers = np.exp(3 * random.normal(size=(count, 5)))
    probabilities = powers / powers.sum(1, keepdims=True)
    return probabilities, np.array([random.choice(5, p=row) for row in probabilities])


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the few labels of small data wait."""
    monkeypatch.setattr(calibration, "MIN_HOLDOUT", 1)


def prove(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """Let whatever labels wait prove this temperature, once and for all."""
    monkeypatch.setattr(calibration, "MAX_DRIFT", 1e9)
    found = CalibrationCheck.of

    def proven(given: NDArray[np.float64], labels: NDArray[np.int64]) -> CalibrationCheck:
        return replace(found(given, labels), temperature=temperature)

    monkeypatch.setattr(CalibrationCheck, "of", staticmethod(proven))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_a_share_of_every_class_waits_and_no_class_is_left_without_labels(share: float) -> None:
    counts = [1, 4, 35, 500]
    labels = np.repeat(np.arange(4), counts)
    waits = holdout_mask(labels, share, seed=3)
    assert [int(waits[labels == c].sum()) for c in range(4)] == [int(share * n) for n in counts]
    np.testing.assert_array_equal(waits, holdout_mask(labels, share, seed=3))


def test_another_seed_lets_others_wait() -> None:
    labels = np.repeat(np.arange(4), 100)
    assert (holdout_mask(labels, 0.3, seed=0) != holdout_mask(labels, 0.3, seed=1)).any()


@pytest.mark.parametrize(("a_class", "waits"), [(MIN_HOLDOUT, True), (MIN_HOLDOUT - 1, False)])
def test_where_too_few_would_wait_none_does_and_that_is_told(a_class: int, waits: bool) -> None:
    assert holdout_mask(np.repeat(np.arange(5), a_class), 0.2, seed=0).any() == waits
    images = random_images(5 * a_class + 20, 8, 8)
    labels = np.append(np.repeat(np.arange(5), a_class), np.full(20, -1))
    data = ebpl.from_arrays(images, labels)
    chosen = quick(curriculum__calibration_holdout=0.2, epochs=1, pseudo_labels="none", validation_fraction=0.0)
    run = ebpl.train(data, chosen, run="run")
    told = Path("run/train.log").read_text()
    assert (
        f"{a_class} of these labels are held out to check the calibration, and without steps stay so" in told
    ) == waits
    assert (f"no labels are held out to check the calibration: that takes at least {MIN_HOLDOUT}" in told) != waits
    assert (run.metrics()["check"] is not None) == waits


@pytest.mark.parametrize("wrong_by", [0.5, 2.0])
def test_a_confidence_that_is_wrong_is_proven_wrong_and_mended(wrong_by: float) -> None:
    probabilities, labels = drawn(400)
    wrong = apply_temperature(probabilities, wrong_by)
    check = CalibrationCheck.of(wrong, labels)
    right = float((probabilities.argmax(1) == labels).mean())
    assert check.images == 400
    assert check.accuracy == pytest.approx(right)
    assert check.confidence == pytest.approx(wrong.max(1).mean())
    assert check.proof > EVIDENCE
    assert check.temperature == pytest.approx(1 / wrong_by, rel=0.2)
    mended = apply_temperature(wrong, check.temperature)
    assert abs(mended.max(1).mean() - right) < 0.3 * abs(wrong.max(1).mean() - right)


def test_the_temperature_is_the_likeliest_one() -> None:
    probabilities, labels = drawn(300)
    wrong = apply_temperature(probabilities, 1.7)

    def loss(logarithm: float) -> float:
        likelihood = np.log(apply_temperature(wrong, np.exp(logarithm))[np.arange(300), labels]).sum()
        return float(-likelihood - norm.logpdf(logarithm, scale=PRIOR_SCALE))

    best = minimize_scalar(loss, bounds=(-1, 1), method="bounded")
    check = CalibrationCheck.of(wrong, labels)
    assert np.log(check.temperature) == pytest.approx(best.x, abs=0.02)
    assert check.proof == pytest.approx(loss(0) - best.fun, abs=0.05)


def test_a_confidence_that_is_right_is_left_alone_nine_times_out_of_ten() -> None:
    left_alone = [CalibrationCheck.of(*drawn(100, seed)).temperature == 1 for seed in range(100)]
    assert np.mean(left_alone) > 0.9


def test_few_labels_that_are_all_right_make_nothing_certain() -> None:
    probabilities = np.tile([0.6, 0.2, 0.2], (4, 1))
    assert CalibrationCheck.of(probabilities, np.zeros(4, int)).temperature == 1
    many = CalibrationCheck.of(np.repeat(probabilities, 3, axis=0), np.zeros(12, int))
    assert 0.4 < many.temperature < 1


def test_certain_predictions_that_are_wrong_are_counted_too() -> None:
    check = CalibrationCheck.of(np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1]))
    assert np.isfinite(check.proof)
    assert check.temperature > 1


def test_a_few_sure_mistakes_do_not_make_a_timid_model_more_timid() -> None:
    probabilities = np.tile([0.85, 0.15], (60, 1))
    probabilities[:3] = [1 - 1e-9, 1e-9]
    labels = np.array([1] * 3 + [0] * 57)
    check = CalibrationCheck.of(probabilities, labels)
    assert check.accuracy > check.confidence
    assert check.proof > EVIDENCE
    assert check.temperature == 1


@pytest.mark.usefixtures("few_are_enough")
def test_a_method_that_begins_its_steps_with_fresh_weights_lets_no_label_wait() -> None:
    for kind in ("none", "soft"):
        baseline = quick(method="curriculum-labeling", pseudo_labels=kind, curriculum__steps=1, **HOLDOUT)
        assert ebpl.train(blobs(), baseline, run=kind).metrics()["check"] is None
        assert "no labels are held out" in (log := Path(kind, "train.log").read_text())
        assert "fresh weights" in log


def test_labels_never_go_to_other_images_when_others_wait_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs()
    monkeypatch.setattr(calibration, "MIN_HOLDOUT", 1)
    ebpl.train(data, quick(**HOLDOUT), run="run")
    monkeypatch.setattr(calibration, "MIN_HOLDOUT", 100)
    with pytest.raises(RunError, match=r"does not fit this run \(its labels are of other images\)"):
        trainer_of(quick(**HOLDOUT), data).train(checkpoint.load(Run("run").checkpoints, print))


def test_the_help_says_how_many_must_wait() -> None:
    assert f"{MIN_HOLDOUT} labels or more" in find("curriculum.calibration_holdout").help


def test_a_correction_is_dropped_once_the_steps_have_moved_the_confidence_far() -> None:
    probabilities, _ = drawn(200)
    check = revalidate_temperature(CalibrationCheck(100, 0.9, 0.7, 9.0, 0.5), probabilities)
    at_first, corrected = probabilities.max(1).mean(), apply_temperature(probabilities, 0.5).max(1).mean()
    assert (check.at_first, check.corrected) == pytest.approx((at_first, corrected))
    for temperature in (1.2, 1.0, 0.9):  # further away, or not far
        check = revalidate_temperature(check, apply_temperature(probabilities, temperature))
        assert check.temperature == 0.5
    check = revalidate_temperature(check, apply_temperature(probabilities, 0.6))
    assert check.temperature == 1
    assert check.moved > MAX_DRIFT * (corrected - at_first)
    assert f"The steps have moved it by +{100 * check.moved:.1f} points since" in str(check)
    assert revalidate_temperature(check, probabilities) == check  # what was dropped stays so


def test_what_is_left_alone_is_not_looked_at_again() -> None:
    check = CalibrationCheck(100, 0.9, 0.89, 0.1, 1.0)
    assert revalidate_temperature(check, np.full((5, 2), 0.5)) == check
    corrected = CalibrationCheck(100, 0.9, 0.7, 9.0, 0.5)
    assert revalidate_temperature(corrected, np.zeros((0, 2))) == corrected  # there are no unlabelled images


def test_held_out_labels_are_counted_by_class_and_none_where_they_are_too_few() -> None:
    assert holdout_counts([500, 35, 4], 0.2) == [100, 7, 0]
    assert holdout_counts([499, 4], 0.2) == [0, 0]
    assert holdout_counts([1000, 1000], 0.3) == [300, 300]  # 0.3 * 1000 is a little less than 300


def test_an_initial_training_that_was_too_short_does_not_make_the_model_too_sure() -> None:
    steps = {"curriculum.calibration_holdout": 0.2, "curriculum.steps": 2, "curriculum.epochs": 6}
    run = ebpl.train("digits", preset="quick", set=steps, labels_per_class=60, epochs=2, run="run")
    check = run.metrics()["check"]
    assert check["images"] == 120
    assert check["proof"] > EVIDENCE
    assert check["moved"] > MAX_DRIFT * (check["corrected"] - check["at_first"]) > 0
    assert check["temperature"] == 1
    told = Path("run/train.log").read_text()
    assert "under-confident, so class scores are divided by a temperature of" in told
    assert "so the temperature is not applied" in told


def test_what_was_found_is_told() -> None:
    assert str(CalibrationCheck(102, 0.931, 0.845, 5.8, 0.62)) == (
        "Accuracy on 102 held-out labels is 93.1 % at a mean confidence of 84.5 %: "
        "under-confident, so class scores are divided by a temperature of 0.62."
    )
    assert str(CalibrationCheck(80, 0.8, 0.9, 3.0, 1.5)).endswith(
        "90.0 %: over-confident, so class scores are divided by a temperature of 1.50."
    )
    assert str(CalibrationCheck(16, 0.875, 0.85, 0.1, 1.0)).endswith("85.0 %: no evidence against the calibration.")


def test_what_was_written_down_is_read_with_suspicion() -> None:
    check = CalibrationCheck(102, 0.931, 0.845, 5.8, 0.62)
    assert CalibrationCheck.stored(asdict(check)) == check
    for wrong in (None, "check", {}, {**asdict(check), "more": 1}, {**asdict(check), "accuracy": "<b>"}):
        assert CalibrationCheck.stored(wrong) is None
    for temperature in (0.0, -1.0, float("nan")):
        assert CalibrationCheck.stored({**asdict(check), "temperature": temperature}) is None


def test_scaled_weights_give_the_posterior_at_the_temperature_and_the_same_energies() -> None:
    model = architecture().build().initialise(torch.Generator().manual_seed(0))
    before = predict(model, random_images(20, 8, 8))
    model.load_state_dict(scale_classifier(model.state_dict(), 0.5))
    after = predict(model, random_images(20, 8, 8))
    np.testing.assert_allclose(after.probabilities, apply_temperature(before.probabilities, 0.5), rtol=1e-5)
    np.testing.assert_array_equal(after.energies, before.energies)


@pytest.mark.usefixtures("few_are_enough")
def test_labels_that_wait_are_not_learned_from_before_the_first_step() -> None:
    data = blobs()
    training = trainer_of(quick(curriculum__steps=1, **HOLDOUT), data)
    images = training.training_set
    assert (images.labeled, images.held_out) == (15, 6)
    taught: dict[int, set[int]] = {0: set(), 1: set()}

    class Watch(Callback):
        def updates(self, count: int, where: str, facts: dict[str, float]) -> None:
            taught[training.state.progress.phase] |= set(training.step.positions["labeled"].tolist())

    training.callbacks = [Watch()]
    training.check_every = 1
    training.train()
    assert taught[0] == set(range(9))
    assert taught[1] & set(range(9, 15))
    labels = images.targets[:15].argmax(1)
    assert labels[9:].bincount().tolist() == [2, 2, 2]


@pytest.mark.usefixtures("few_are_enough")
def test_what_is_kept_is_corrected_and_what_is_learned_from_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs()
    runs = {}
    for name, temperature in (("corrected", 0.5), ("as it is", 1.0)):
        prove(monkeypatch, temperature)
        runs[name] = ebpl.train(data, quick(**HOLDOUT), run=name)
    results = {name: run.metrics() for name, run in runs.items()}
    check = results["corrected"]["check"]
    assert (check["images"], check["temperature"]) == (6, 0.5)
    alone = dict.fromkeys(("at_first", "corrected", "moved"), 0.0)  # nothing to look at again
    assert results["as it is"]["check"] == {**check, "temperature": 1.0, **alone}
    assert data.test is not None
    raw, kept = (
        predict(runs[name].load_model()[0], data.test.pixels).probabilities for name in ("as it is", "corrected")
    )
    np.testing.assert_allclose(kept, apply_temperature(raw, check["temperature"]), rtol=1e-4, atol=1e-7)
    confidence = kept.max(1).mean() - (kept.argmax(1) == data.test.labels).mean()
    for which in (results["corrected"], results["corrected"]["last"]):
        assert which["metrics"]["overconfidence"] == pytest.approx(confidence, abs=1e-5)
    listed = [Path(name, "pseudo_labels", "step-4.csv").read_text() for name in runs]
    assert listed[0] == listed[1]
    told = Path("corrected/train.log").read_text()
    assert "6 of these labels are held out to check the calibration until the first step" in told
    assert "Accuracy on 6 held-out labels is" in told


@pytest.mark.usefixtures("few_are_enough")
def test_a_run_that_was_stopped_remembers_what_the_labels_have_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    prove(monkeypatch, 0.5)
    whole = ebpl.train(blobs(), quick(**HOLDOUT), run="whole")

    class Stop(Silent):
        def epoch(self, line: str) -> None:
            if line.startswith("step 2"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ebpl.train(blobs(), quick(**HOLDOUT), run="stopped", progress=Stop())
    resumed = ebpl.resume("stopped", data=blobs())
    assert resumed.metrics()["check"] == whole.metrics()["check"]
    assert resumed.metrics()["metrics"] == whole.metrics()["metrics"]


class Saved(Callback):
    """Keeps the newest checkpoint."""

    def checkpoint(self, epochs_done: int, state: dict[str, object]) -> None:
        self.state = state


@pytest.mark.usefixtures("few_are_enough")
def test_a_check_from_a_stranger_is_looked_at() -> None:
    saved = Saved()
    settings = quick(pseudo_labels="none", **HOLDOUT)
    trainer_of(settings, blobs(), saved).train()
    assert isinstance(saved.state["check"], dict)
    saved.state["check"]["temperature"] = -1.0
    with pytest.raises(RunError, match="check is not what it should be"):
        trainer_of(settings).train(saved.state)


def test_checkpoints_of_before_there_was_a_check_go_on() -> None:
    saved = Saved()
    settings = quick(pseudo_labels="none")
    trainer_of(settings, blobs(), saved).train()
    del saved.state["check"]
    training = trainer_of(settings)
    training.train(saved.state)
    assert training.state.progress.check is None
    assert training.state.temperature == 1


def test_a_training_that_a_time_limit_left_half_done_is_warned_of() -> None:
    (told,) = warnings_of({"updates": {"made": 10, "of": 100}})
    assert told == "The time limit left 10 % of the updates of the settings: allow more time."
    for updates in ({"made": 60, "of": 100}, {"made": 0, "of": 0}, {"made": None}, None, 3):
        assert warnings_of({"updates": updates}) == []


@pytest.mark.parametrize(("accuracy", "over", "images", "warned"), [(1.0, -0.45, 2, False), (1.0, -0.45, 40, True)])
def test_a_few_images_do_not_show_that_a_confidence_is_wrong(
    accuracy: float, over: float, images: int, warned: bool
) -> None:
    metrics = {"accuracy": accuracy, "overconfidence": over}
    told = warnings_of({"metrics": metrics, "images": {"test": images}})
    assert any("under-confident" in each for each in told) == warned


def test_images_of_one_class_are_not_compared_with_naming_it() -> None:
    result = {"metrics": {"accuracy": 0.8, "overconfidence": 0.0}, "images": {"test": 16}}
    assert warnings_of({**result, "majority_share": 1.0}) == []
    assert "not clearly better" in warnings_of({**result, "majority_share": 0.75})[0]
