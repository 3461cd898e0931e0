"""The guard: notices training that runs away, and decides how to go on more carefully."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from ebpl.errors import DivergedError
from ebpl.settings import Settings

RATE_FACTOR = 0.5
CLIP = 1.0
PENALTY = 0.5
HEALTHY = 0.1
SAMPLING_FACTOR = 1.5


class RanAway(Exception):
    """Internal signal: this stretch of training diverged, with the reason in words."""


@dataclass
class Guard:
    """Counts divergences and holds what was learned from them; part of every checkpoint."""

    tries: int
    gap: float
    learning_rate: float
    sgld_steps: int
    healed: int = 0
    """How often this run was healed; also makes the random numbers of a retry new."""
    events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Settings) -> Guard:
        """A guard at the start of a run."""
        return cls(settings.guard_tries, settings.guard_gap, settings.learning_rate, settings.sgld_steps)

    def look(self, loss: float, widest_gap: float) -> None:
        """Raise `RanAway` if the loss is not a number or the energies of images and samples have come apart."""
        if not (math.isfinite(loss) and math.isfinite(widest_gap)):
            raise RanAway("the loss is not a finite number")
        if widest_gap > self.gap:
            raise RanAway(f"the energies of images and samples are {widest_gap:.3g} apart (limit {self.gap:g})")

    def is_healthy(self, widest_gap: float) -> bool:
        """Whether a state may be gone back to: far from the limit, since running away begins before it is noticed."""
        return widest_gap <= HEALTHY * self.gap

    def careful(self, settings: Settings) -> Settings:
        """The settings to go on with: as given, or more careful once the run has been healed.

        Divergence is a race that the sampler loses: the energies move faster than the chains can follow, or become so
        steep that a step overshoots. The penalty on squared energies bounds how far apart images and samples can be
        pushed, and clamped samples cannot fly off.
        """
        settings = settings.changed(sgld_steps=self.sgld_steps)
        if self.healed:
            clip = min(settings.gradient_clip or CLIP, CLIP)
            penalty = max(settings.energy_penalty, PENALTY)
            center = max(settings.energy_center, 1 / (2 * penalty))  # which pulls the images' energies to zero
            settings = settings.changed(
                clamp_samples=True, gradient_clip=clip, energy_penalty=penalty, energy_center=center
            )
        return settings

    def heal(self, reason: str, phase: str, epoch: int) -> str:
        """Note a divergence and become more careful; returns the sentence for the log. Gives up after `tries`."""
        if self.healed >= self.tries:
            raise DivergedError(
                f"Training diverged in phase {phase!r}, epoch {epoch}: {reason}. It was healed {self.healed} "
                f"time{'s' * (self.healed != 1)} before and gives up now. Weights and checkpoints up to the last good "
                "epoch are kept. Start again with a lower --learning-rate, more --sgld-steps, --clamp-samples and "
                "--gradient-clip 1, or allow more tries with --guard-tries."
            )
        self.healed += 1
        self.learning_rate *= RATE_FACTOR
        self.sgld_steps = math.ceil(self.sgld_steps * SAMPLING_FACTOR)
        event = {"phase": phase, "epoch": epoch, "reason": reason}
        self.events.append({**event, "learning_rate": self.learning_rate, "sgld_steps": self.sgld_steps})
        return (
            f"diverged in phase {phase!r}, epoch {epoch}: {reason}. Going back to the last good state, and on with "
            f"learning rate {self.learning_rate:.3g}, {self.sgld_steps} SGLD steps, clamped samples, a "
            f"clipped gradient, an energy penalty and new random numbers (try {self.healed} of {self.tries})"
        )

    def state(self) -> dict[str, Any]:
        """The guard as plain values, for a checkpoint."""
        return asdict(self)
