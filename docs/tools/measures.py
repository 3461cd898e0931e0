"""Every measure as Markdown, defined by the function that computes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from docs.tools.text import code, table
from ebpl.metrics import NAMES, calibration, classification

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "accuracy": classification.accuracy,
    "f_score": classification.macro_f_score,
    "ece": calibration.expected_calibration_error,
    "ece_10_bins": calibration.expected_calibration_error,
    "adaptive_ece": calibration.adaptive_calibration_error,
    "classwise_ece": calibration.classwise_calibration_error,
    "overconfidence": calibration.overconfidence,
    "nll": calibration.negative_log_likelihood,
    "brier": calibration.brier_score,
    "aurc": calibration.area_under_risk_coverage,
}
OTHERS: dict[str, Callable[..., Any]] = {
    "ECE by chance": calibration.calibration_error_by_chance,
    "precision, recall": classification.by_class,
    "range of an accuracy": classification.wilson_interval,
    "risk against coverage": calibration.risk_coverage,
}


def measures() -> str:
    """What `ebpl evaluate` and a run's result hold."""
    rows = [[code(name), NAMES[name], definition(function)] for name, function in FUNCTIONS.items()]
    first = [code("images"), NAMES["images"], "How many images it was measured on."]
    return table(["name", "in tables", "definition"], [first, *rows])


def others() -> str:
    """What the report shows beside them."""
    return table(["in the report", "definition"], [[name, definition(each)] for name, each in OTHERS.items()])


def definition(function: Callable[..., Any]) -> str:
    """The prose of a docstring, without its examples.

    >>> definition(calibration.brier_score)
    'Mean squared distance of the probabilities from the one-hot truth, summed over the classes.'
    """
    return " ".join((inspect.getdoc(function) or "").split("\n\n>>>")[0].split())
