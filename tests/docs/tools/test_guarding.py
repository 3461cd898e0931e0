from docs.tools.guarding import changes, limits
from ebpl.config import Settings
from ebpl.training.divergence import Guard


def test_what_is_said_of_the_guard_is_what_it_does() -> None:
    settings = Settings()
    guard = Guard.of(settings)
    guard.heal("a reason", "initial", 1)
    careful = guard.careful(settings)
    text = changes()
    assert f"times {guard.learning_rate / settings.optim.learning_rate:g} " in text
    assert f"times {guard.sgld_steps / settings.sgld.steps:g}," in text
    assert f"norm of {careful.gradient_clip:g} " in text
    assert f"weight of {careful.energy_penalty:g} " in text
    assert careful.clamp_samples
    assert careful.energy_center == 1 / (2 * careful.energy_penalty)


def test_its_limits_are_the_defaults() -> None:
    settings = Settings()
    healthy = max(gap for gap in range(100) if Guard.of(settings).is_healthy(gap))
    assert f"no more than {healthy} apart" in limits()
    assert f"after {settings.divergence.retries} tries" in limits()
