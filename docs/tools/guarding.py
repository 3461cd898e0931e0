"""What the guard does to a run that ran away, as Markdown, from what it is made of."""

from __future__ import annotations

from docs.tools.text import table
from ebpl.config import Settings
from ebpl.training.divergence import CLIP, HEALTHY, PENALTY, RATE_FACTOR, SAMPLING_FACTOR


def changes() -> str:
    """How a healed run goes on."""
    rows = [
        ["learning rate", f"times {RATE_FACTOR:g}", "every time"],
        ["sampling steps", f"times {SAMPLING_FACTOR:g}, rounded up", "every time"],
        ["samples", "kept inside the range of images", "from the first time on"],
        ["gradient", f"clipped at a norm of {CLIP:g} at most", "from the first time on"],
        ["penalty on energies", f"a weight of {PENALTY:g} at least, around 1 / (2 · weight)", "from the first time on"],
        ["random numbers", "new ones", "every time"],
    ]
    return table(["what", "how it goes on", "when"], rows)


def limits() -> str:
    """When the guard steps in, in a sentence, with the defaults."""
    settings = Settings()
    return (
        f"By default it looks every {settings.guard_every} updates, takes energies that are more than "
        f"{settings.divergence.max_energy_gap:g} apart for running away, goes back to states in which they were no more than "
        f"{HEALTHY * settings.divergence.max_energy_gap:g} apart, and gives up after {settings.divergence.retries} tries."
    )
