"""Metrics reference: each metric of the registry, defined by the docstring of the function that computes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from docs.tools.text import code, table
from ebpl.metrics import METRICS, Metric, calibration, classification

IN_REPORT: dict[str, Callable[..., Any]] = {
    "ECE by chance": calibration.calibration_error_by_chance,
    "precision, recall": classification.by_class,
    "range of an accuracy": classification.wilson_interval,
    "risk against coverage": calibration.risk_coverage,
}
COUNT = "Number of labelled images that the metrics are computed on."


def metrics() -> str:
    """What `ebpl evaluate` and the result of a run hold."""
    heads = ["name", "in tables", "definition", "better"]
    return table(heads, [_row(metric) for metric in METRICS.values()])


def report_metrics() -> str:
    """What the report shows in addition."""
    return table(["in the report", "definition"], [[name, definition(each)] for name, each in IN_REPORT.items()])


def _row(metric: Metric) -> list[str]:
    if metric.name == "images":
        return [code(metric.name), metric.title, COUNT, ""]
    better = "near 0" if metric.name == "overconfidence" else "lower" if metric.lower_is_better else "higher"
    return [code(metric.name), metric.title, definition(metric.compute), better]


def definition(function: Callable[..., Any]) -> str:
    """The prose of a docstring, without its examples.

    >>> definition(calibration.brier_score)
    'Mean squared distance of the probabilities from the one-hot truth, summed over the classes.'
    """
    inner = function.func if isinstance(function, partial) else function
    return " ".join((inspect.getdoc(inner) or "").split("\n\n>>>")[0].split())
