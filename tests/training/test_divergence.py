import math

import pytest

from ebpl.config.presets import preset
from ebpl.errors import DivergedError
from ebpl.training.divergence import Guard, Diverged


@pytest.mark.parametrize(("loss", "gap"), [(math.nan, 0.0), (math.inf, 0.0), (1.0, math.nan), (1.0, 51.0)])
def test_bad_numbers_are_noticed(loss: float, gap: float) -> None:
    with pytest.raises(Diverged):
        Guard.of(preset("standard")).look(loss, gap)


def test_a_state_near_the_limit_is_not_one_to_go_back_to() -> None:
    guard = Guard.of(preset("standard", divergence__max_energy_gap=50.0))
    assert guard.is_healthy(4.9)
    assert not guard.is_healthy(20.0)
    guard.look(1.0, 20.0)


def test_good_numbers_pass() -> None:
    Guard.of(preset("standard")).look(-3.0, 5.0)


def test_each_healing_is_more_careful_than_the_last() -> None:
    settings = preset("paper", learning_rate=0.01, sgld__steps=10, divergence__retries=2)
    guard = Guard.of(settings)
    assert guard.careful(settings) == settings
    first = guard.heal("it ran away", "initial", 3)
    assert "initial" in first
    assert "it ran away" in first
    careful = guard.careful(settings)
    assert (guard.learning_rate, careful.sgld_steps, careful.energy_penalty) == (0.005, 15, 0.5)
    assert careful.clamp_samples
    assert careful.energy_center == 1.0
    assert careful.gradient_clip == 1.0
    guard.heal("again", "initial", 3)
    assert (guard.learning_rate, guard.sgld_steps) == (0.0025, 23)
    with pytest.raises(DivergedError, match=r"healed 2 times before and gives up.*--learning-rate"):
        guard.heal("once more", "step 1 of 4", 1)
    assert [event["reason"] for event in guard.events] == ["it ran away", "again"]


def test_a_tighter_clip_of_the_users_is_kept() -> None:
    settings = preset("standard", optim__gradient_clip=0.1)
    guard = Guard.of(settings)
    guard.heal("x", "initial", 1)
    assert guard.careful(settings).gradient_clip == pytest.approx(0.1)


def test_its_state_survives_a_checkpoint() -> None:
    guard = Guard.of(preset("standard"))
    guard.heal("x", "initial", 1)
    assert Guard(**guard.state()) == guard
