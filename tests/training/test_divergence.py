import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import ebpl
from ebpl.config import Settings
from ebpl.config.presets import PRESETS, preset
from ebpl.errors import DivergedError
from ebpl.training import divergence as limits
from ebpl.training.divergence import Diverged, Divergence
from tests.helpers import ROOT, quick


@pytest.mark.parametrize(("loss", "gap"), [(math.nan, 0.0), (math.inf, 0.0), (1.0, math.nan), (1.0, 51.0)])
def test_bad_numbers_are_noticed(loss: float, gap: float) -> None:
    with pytest.raises(Diverged):
        Divergence.of(preset("standard")).check(loss, gap)


def test_a_state_near_the_limit_is_not_one_to_go_back_to() -> None:
    divergence = Divergence.of(preset("standard", divergence__max_energy_gap=50.0))
    assert divergence.is_healthy(4.9)
    assert not divergence.is_healthy(20.0)
    divergence.check(1.0, 20.0)


def test_good_numbers_pass() -> None:
    Divergence.of(preset("standard")).check(-3.0, 5.0)


def test_each_recovery_is_more_careful_than_the_last() -> None:
    settings = preset("paper", learning_rate=0.01, sgld__steps=10, divergence__retries=2)
    divergence = Divergence.of(settings)
    assert divergence.careful(settings) == settings
    first = divergence.recover("it ran away", "initial", 3)
    assert "initial" in first
    assert "it ran away" in first
    careful = divergence.careful(settings)
    assert (divergence.learning_rate, careful.sgld.steps, careful.energy.penalty) == (0.005, 15, 0.0)
    assert careful.sgld.clamp_samples
    assert careful.optim.gradient_clip == 1.0
    assert "penalty" not in first
    second = divergence.recover("again", "initial", 3)
    careful = divergence.careful(settings)
    assert (divergence.learning_rate, careful.sgld.steps, careful.energy.penalty) == (0.0025, 23, 0.5)
    assert careful.energy.center == 1.0
    assert "an energy penalty" in second
    with pytest.raises(DivergedError, match=r"recovered 2 times before and stops now.*--learning-rate"):
        divergence.recover("once more", "step 1 of 4", 1)
    assert [event["reason"] for event in divergence.events] == ["it ran away", "again"]


def test_a_tighter_clip_of_the_users_is_kept() -> None:
    settings = preset("standard", optim__gradient_clip=0.1)
    assert recovered(settings).optim.gradient_clip == pytest.approx(0.1)


def recovered(settings: Settings) -> Settings:
    """The settings after the second recovery, from which on there is a penalty."""
    divergence = Divergence.of(settings)
    divergence.recover("x", "initial", 1)
    divergence.recover("x", "initial", 1)
    return divergence.careful(settings)


def test_after_one_recovery_the_energy_model_is_what_it_was() -> None:
    for name in PRESETS:
        settings = preset(name)
        divergence = Divergence.of(settings)
        divergence.recover("x", "initial", 1)
        assert divergence.careful(settings).energy == settings.energy


def lowest(settings: Settings) -> float:
    """The energy at which the density's terms of an image are least: its likelihood, and the penalty."""
    energy = settings.energy
    found = minimize_scalar(lambda at: energy.weight * at + energy.penalty * (at - energy.center) ** 2, bracket=(-1, 1))
    return float(found.x)


@pytest.mark.parametrize("name", PRESETS)
def test_after_two_recoveries_images_of_every_preset_are_pulled_to_an_energy_of_zero(name: str) -> None:
    careful = recovered(preset(name))
    assert careful.energy.penalty > 0
    assert lowest(careful) == pytest.approx(0, abs=1e-6)


@given(st.floats(0.01, 20), st.floats(0, 20), st.floats(-5, 5))
def test_after_two_recoveries_images_are_pulled_to_zero_whatever_weight_and_penalty_were(
    weight: float, penalty: float, center: float
) -> None:
    settings = preset("standard", {"energy.weight": weight, "energy.penalty": penalty, "energy.center": center})
    careful = recovered(settings)
    assert careful.energy.weight == weight
    assert careful.energy.penalty >= max(penalty, 0.5 * weight)  # bounded at least as much as before, and always
    assert lowest(careful) == pytest.approx(0, abs=1e-4)


def test_without_a_weight_there_is_nothing_to_pull_against() -> None:
    careful = recovered(preset("standard", energy__weight=0.0, energy__penalty=0.0))
    assert (careful.energy.penalty, careful.energy.center) == (0.0, 0.0)
    assert lowest(recovered(preset("standard", energy__weight=0.0, energy__penalty=2.0))) == pytest.approx(0, abs=1e-6)


def test_before_any_recovery_the_presets_with_a_penalty_pull_images_to_zero_too() -> None:
    for name in PRESETS:
        settings = preset(name)
        if settings.energy.penalty:
            assert lowest(settings) == pytest.approx(0, abs=1e-6), name


def test_its_state_survives_a_checkpoint() -> None:
    divergence = Divergence.of(preset("standard"))
    divergence.recover("x", "initial", 1)
    assert Divergence(**divergence.state()) == divergence


def test_an_epoch_that_ends_far_worse_than_guessing_is_a_divergence() -> None:
    watch = Divergence.of(Settings())
    chance = math.log(10)
    watch.check_epoch(1.9 * chance, 10, last=True)
    watch.check_epoch(90 * chance, 10, last=False)
    for times, last in ((2.1, True), (110.0, False)):
        with pytest.raises(Diverged, match="guessing"):
            watch.check_epoch(times * chance, 10, last)
    assert watch.is_healthy(0.0, chance, 10)
    assert not watch.is_healthy(0.0, 3 * chance, 10)


def test_weights_are_said_to_be_kept_only_where_there_are_some() -> None:
    for kept, said in ((True, "up to the last good epoch are kept"), (False, "There are no weights yet.")):
        with pytest.raises(DivergedError, match=said):
            Divergence.of(Settings().changed(divergence__retries=0)).recover("reason", "initial", 1, kept)


def test_a_baseline_at_an_absurd_rate_stops_with_the_reason() -> None:
    absurd = quick(method="curriculum-labeling", learning_rate=1.0, optim__gradient_clip=0.0, divergence__retries=0)
    with pytest.raises(DivergedError, match=r"cross-entropy is .* would be guessing.*There are no weights yet"):
        ebpl.train("digits", absurd.changed(epochs=4), run="run")
    assert not Path("run/best.safetensors").exists()
    assert not Path("run/test_metrics.json").exists()


def test_no_recorded_run_of_any_preset_comes_near_the_limit() -> None:
    """265 runs on six datasets."""
    seen = 0
    for path in (ROOT / "results").rglob("*.json"):
        found = json.loads(path.read_text()).get("result")
        if isinstance(found, dict) and "images" in found and "cross_entropy" in found.get("curves", {}):
            chance = math.log(len(found["images"]["labelled"]))
            assert found["curves"]["cross_entropy"][-1] < limits.WORSE_THAN_CHANCE * chance / 2
            assert max(found["curves"]["cross_entropy"]) < limits.FAR_WORSE * chance / 10
            seen += 1
    assert seen > 200
