"""JEM: a classifier whose scores are the energy of its inputs, E(x) = -log sum_c exp(score_c(x)).

Grathwohl et al. 2020, "Your Classifier is Secretly an Energy Based Model and You Should Treat it Like One", equation
(7). The density is that of all images: where some have no label, it learns from them as well.
"""

from __future__ import annotations

from ebpl.config import Settings
from ebpl.errors import UsageError
from ebpl.methods import Method
from ebpl.training.losses import Density, LossTerm, supervised_terms


class ScoreDensity(Density):
    """Negative log-likelihood of the energy of the classifier's scores."""

    gaussian = False


def _terms(settings: Settings) -> list[LossTerm]:
    if settings.model.encoder:
        raise UsageError(
            "The method jem samples images, and scores of an encoder's features have no bounded energy. Use --method "
            "ebpl, whose energies are those of Gaussians, or a preset without an encoder, such as best."
        )
    chosen = settings.energy
    density = ScoreDensity(chosen.weight, chosen.penalty, chosen.center, clamped=chosen.clamp_images)
    cross_entropy, *others = supervised_terms(settings)
    return [cross_entropy, density, *others]


METHOD = Method(
    "JEM",
    "a classifier whose scores are the energy of images (Grathwohl et al. 2020)",
    _terms,
    pseudo_labels=False,
    takes_features=False,
)
