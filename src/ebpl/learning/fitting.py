"""A schedule that fits a time limit: epochs of fewer updates, so that every phase keeps its share."""

from __future__ import annotations

from ebpl.data.images import ImageSet
from ebpl.errors import UsageError
from ebpl.learning.curriculum import phases
from ebpl.learning.timing import Timing, time_training
from ebpl.settings import Settings

MARGIN = 0.9
"""Part of the time that is planned with; machines have other things to do as well."""


def fit_to_time(data: ImageSet, settings: Settings, limit: float) -> tuple[Settings, Timing]:
    """Settings whose training takes no longer than `limit` seconds here, and how long those given would have taken.

    A training that fits is left as it is.
    """
    timing = time_training(data, settings)
    if timing.seconds <= limit:
        return settings, timing
    epochs = sum(phase.epochs for phase in phases(settings))
    beside = timing.seconds - timing.updates * timing.update  # the start, and predictions
    updates = int((MARGIN * limit - beside) / timing.update / epochs)
    if updates < 1:
        least = (beside + epochs * timing.update) / MARGIN
        raise UsageError(
            f"Nothing of use can be trained in {limit:.0f} s here: at least {least:.0f} s are needed with these "
            "settings. Allow more time, or choose a smaller network (--preset quick, --width) or fewer --sgld-steps."
        )
    shorter = settings.changed(epoch_updates=updates, warm_up=min(settings.warm_up, updates * settings.epochs // 8))
    return shorter, timing
