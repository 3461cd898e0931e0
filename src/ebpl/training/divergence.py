"""Divergence: noticed early, and answered by going back to a good state and continuing more carefully."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ebpl.calibration.class_mix import reweight
from ebpl.config import Settings
from ebpl.errors import DivergedError
from ebpl.metrics.calibration import negative_log_likelihood
from ebpl.training.distributed import predict_together

if TYPE_CHECKING:
    from ebpl.training.train_state import TrainState
    from ebpl.training.training_set import TrainingSet

CHECK_EVERY = 10
"""Updates between two looks at the losses and energies."""
RATE_FACTOR = 0.5
CLIP = 1.0
PENALTY = 0.5
"""Of the weight of the density."""
PENALTY_FROM = 2
"""The recovery from which on there is a penalty."""
HEALTHY = 0.1
SAMPLING_FACTOR = 1.5
WORSE_THAN_CHANCE = 2.0
"""A mean cross-entropy of this many times that of guessing is no end of a phase. In 265 recorded runs it was 0.84 at
most."""
FAR_WORSE = 100.0
"""The same in the middle of a phase, where it was 2.6 at most."""
RUINED = 10.0
"""And this many times it after the last update of an epoch, for labelled images, is the work of that update."""
LOOKED_AT = 256
"""Labelled images that are predicted after the last update of an epoch."""


class Diverged(Exception):
    """Internal signal: this stretch of training diverged; the text is the reason."""


@dataclass
class Divergence:
    """Counts divergences and holds what was changed because of them; part of every checkpoint."""

    retries: int
    max_gap: float
    learning_rate: float
    sgld_steps: int
    healed: int = 0
    """How often this run has recovered; also makes the random numbers of a retry new."""
    events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Settings) -> Divergence:
        """As it is at the start of a run."""
        limits = settings.divergence
        return cls(limits.retries, limits.max_energy_gap, settings.optim.learning_rate, settings.sgld.steps)

    def check(self, loss: float, widest_gap: float) -> None:
        """Raise `Diverged` if the loss is not a number or the energies of images and samples have come apart."""
        if not (math.isfinite(loss) and math.isfinite(widest_gap)):
            raise Diverged("the loss is not a finite number")
        if widest_gap > self.max_gap:
            raise Diverged(f"the energies of images and samples are {widest_gap:.3g} apart (limit {self.max_gap:g})")

    def check_epoch(self, cross_entropy: float, classes: int, last: bool, now: float = 0.0) -> None:
        """Raise `Diverged` if the mean cross-entropy of an epoch, the last of its phase or another, is absurd.

        `now` is that of labelled images after its last update.
        """
        chance = math.log(classes)
        if cross_entropy > (WORSE_THAN_CHANCE if last else FAR_WORSE) * chance:
            raise Diverged(f"the cross-entropy is {cross_entropy:.3g}, and {chance:.3g} would be guessing")
        if now > RUINED * chance:
            raise Diverged(f"after the last update the cross-entropy is {now:.3g}, and {chance:.3g} would be guessing")

    def is_healthy(self, widest_gap: float, cross_entropy: float = 0.0, classes: int = 2) -> bool:
        """Whether a state may be gone back to: far from the limit, since divergence begins before it is noticed."""
        return widest_gap <= HEALTHY * self.max_gap and cross_entropy <= WORSE_THAN_CHANCE * math.log(classes)

    def careful(self, settings: Settings) -> Settings:
        """The settings to continue with: as given, or more careful once the run has recovered from a divergence.

        Divergence is a race that the sampler loses: the energies move faster than the chains can follow, or become so
        steep that a step overshoots. Clamped samples cannot fly off, and from the second time on a penalty on squared
        energies bounds how far apart images and samples can be pushed; its centre pulls the energies of images to
        zero. Not the first time, since with it the energy model is no longer a likelihood.
        """
        changes: dict[str, Any] = {"sgld.steps": self.sgld_steps}
        if self.healed:
            clip = min(settings.optim.gradient_clip or CLIP, CLIP)
            changes |= {"sgld.clamp_samples": True, "optim.gradient_clip": clip}
        if self.healed >= PENALTY_FROM:
            weight = settings.energy.weight
            penalty = max(settings.energy.penalty, PENALTY * weight)
            changes |= {"energy.penalty": penalty, "energy.center": weight / (2 * penalty) if penalty else 0.0}
        return settings.changed(changes)

    def recover(self, reason: str, phase: str, epoch: int, kept: bool = True) -> str:
        """Note a divergence and become more careful; returns the sentence for the log. Gives up after `retries`.

        `kept` says whether there are weights of an earlier epoch.
        """
        if self.healed >= self.retries:
            rest = (
                "Weights and checkpoints up to the last good epoch are kept." if kept else "There are no weights yet."
            )
            raise DivergedError(
                f"Training diverged in phase {phase!r}, epoch {epoch}: {reason}. It recovered {self.healed} "
                f"time{'s' * (self.healed != 1)} before and stops now. {rest} "
                "Start again with a lower --learning-rate, or with --set sgld.steps=N of more steps, --set "
                "sgld.clamp_samples=true and --set optim.gradient_clip=1; --set divergence.retries=N allows more "
                "recoveries."
            )
        self.healed += 1
        self.learning_rate *= RATE_FACTOR
        self.sgld_steps = math.ceil(self.sgld_steps * SAMPLING_FACTOR)
        event = {"phase": phase, "epoch": epoch, "reason": reason}
        self.events.append({**event, "learning_rate": self.learning_rate, "sgld_steps": self.sgld_steps})
        return (
            f"diverged in phase {phase!r}, epoch {epoch}: {reason}. Going back to the last good state, and on with "
            f"learning rate {self.learning_rate:.3g}, {self.sgld_steps} SGLD steps, clamped samples, a clipped "
            f"gradient{', an energy penalty' * (self.healed >= PENALTY_FROM)} and new random numbers (retry "
            f"{self.healed} of {self.retries})"
        )

    def state(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return asdict(self)


def entropy_now(state: TrainState, images: TrainingSet, dtype: torch.dtype) -> float:
    """The cross-entropy of labelled images for the weights as they are.

    The losses of an epoch are those before its updates. What its last update has ruined would diverge again whenever
    training went back to it.
    """
    some = np.linspace(0, images.labeled - 1, min(images.labeled, LOOKED_AT)).astype(int)
    found = predict_together(state.model, images.inputs[some], dtype, state.ranks).probabilities
    of_labels = reweight(np.nan_to_num(found), -state.model.log_mix.double().cpu().numpy())
    return negative_log_likelihood(of_labels, images.labels[some])
