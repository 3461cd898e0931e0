from docs.tools.divergence import changes, limits
from ebpl.config import Settings
from ebpl.training.divergence import Divergence


def test_what_is_said_of_a_recovery_is_what_it_does() -> None:
    settings = Settings()
    state = Divergence.of(settings)
    state.recover("a reason", "initial", 1)
    careful = state.careful(settings)
    text = changes()
    assert f"times {state.learning_rate / settings.optim.learning_rate:g} " in text
    assert f"times {state.sgld_steps / settings.sgld.steps:g}," in text
    assert f"at most {careful.optim.gradient_clip:g} " in text
    assert careful.energy == settings.energy
    state.recover("again", "initial", 1)
    careful = state.careful(settings)
    assert "from recovery 2 on" in text
    assert f"at least {careful.energy.penalty / settings.energy.weight:g} times" in text
    assert careful.sgld.clamp_samples
    assert careful.energy.center == careful.energy.weight / (2 * careful.energy.penalty)


def test_its_limits_are_the_defaults() -> None:
    chosen = Settings().divergence
    healthy = max(gap for gap in range(100) if Divergence.of(Settings()).is_healthy(gap))
    assert f"more than {chosen.max_energy_gap:g} apart" in limits()
    assert f"at most {healthy} apart" in limits()
    assert f"after {chosen.retries} recoveries" in limits()
