"""EBPL: a classifier and a Gaussian energy-based model, trained together and coupled.

Toba, Uchida, Hayashi, "Pseudo-label Learning with Calibrated Confidence Using an Energy-based Model", equation (3).
"""

from __future__ import annotations

from ebpl.config import Settings
from ebpl.methods import Method
from ebpl.training.losses import LossTerm, classifier_terms, energy_terms


def _terms(settings: Settings) -> list[LossTerm]:
    cross_entropy, *others = classifier_terms(settings)
    return [cross_entropy, *energy_terms(settings), *others]


METHOD = Method("EBPL", "a classifier coupled to an energy-based model of all images", _terms)
