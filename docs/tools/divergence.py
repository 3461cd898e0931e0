"""How training recovers from divergence, from the constants that it uses."""

from __future__ import annotations

from docs.tools.text import table
from ebpl.config import Settings
from ebpl.training.divergence import (
    CHECK_EVERY,
    CLIP,
    FAR_WORSE,
    HEALTHY,
    PENALTY,
    PENALTY_FROM,
    RATE_FACTOR,
    RUINED,
    SAMPLING_FACTOR,
    WORSE_THAN_CHANCE,
)


def changes() -> str:
    """What is changed when training recovers."""
    again = f"from recovery {PENALTY_FROM} on"
    rows = [
        ["learning rate", f"times {RATE_FACTOR:g}", "every time"],
        ["`sgld.steps`", f"times {SAMPLING_FACTOR:g}, rounded up", "every time"],
        ["random numbers", "new ones", "every time"],
        ["`sgld.clamp_samples`", "true", "from the first time on"],
        ["`optim.gradient_clip`", f"at most {CLIP:g}", "from the first time on"],
        ["`energy.penalty`", f"at least {PENALTY:g} times `energy.weight`", again],
        ["`energy.center`", "`energy.weight` / (2 · `energy.penalty`)", again],
    ]
    return table(["what", "new value", "when"], rows)


def limits() -> str:
    """When training counts as diverged, with the default values."""
    chosen = Settings().divergence
    gap = chosen.max_energy_gap
    return (
        f"By default the losses are checked every {CHECK_EVERY} updates. Training counts as diverged when the mean "
        f"energies of images and samples are more than {gap:g} apart (`divergence.max_energy_gap`), or when the loss "
        "is not a finite number, or when the mean cross-entropy of an epoch is more than "
        f"{FAR_WORSE:g} times that of guessing (in the last epoch of a phase {WORSE_THAN_CHANCE:g} times). After the "
        f"last update of an epoch labelled images are predicted: a cross-entropy of more than {RUINED:g} times that of "
        "guessing is a divergence too. Training goes back to the end of an epoch in which the energies were at most "
        f"{HEALTHY * gap:g} apart and neither cross-entropy was above {WORSE_THAN_CHANCE:g} times that of guessing, "
        "or to the start if there is none, and stops with an error after "
        f"{chosen.retries} recoveries (`divergence.retries`)."
    )
