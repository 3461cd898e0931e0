"""Sections of the page about classes: results of each, prediction sets, and the class mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebpl.calibration.conformal import cross_fitted, measure_sets
from ebpl.inference.class_mix import used_mix
from ebpl.inference.evaluate import LEAST_FOR_SETS, SET_COVERAGE, class_rows
from ebpl.metrics import classification
from ebpl.reporting.report_data import Context, Seen, count, interval, percent
from ebpl.runs.reader import Stored, finite

Section = dict[str, Any]
MOST_MATRIX, MOST_CLASSES, MOST_ROWS = 20, 200, 20
"""Classes in the confusion matrix, in the table of results, and in those of prediction sets and of the class mix."""


def by_class(seen: Seen, classes: Sequence[str]) -> Section:
    """The table of classes, the confusion matrix, and what is mixed up most often."""
    probabilities, labels = seen.truth
    matrix = classification.confusion(probabilities, labels)
    rows = [_class_row(row) for row in class_rows(probabilities, labels, classes)]
    if len(rows) > MOST_CLASSES:
        rows = sorted(rows, key=lambda row: float(row["share"]) if row["known"] else 2.0)[:MOST_CLASSES]
    wrong = matrix - np.diag(np.diag(matrix))
    worst = [divmod(int(i), len(classes)) for i in np.argsort(-wrong, axis=None, kind="stable")[:5]]
    mixed = [
        {"is": classes[i], "said": classes[j], "times": int(wrong[i, j]), "of": int(matrix[i].sum())}
        for i, j in worst
        if wrong[i, j]
    ]
    shown = matrix if len(classes) <= MOST_MATRIX else None
    totals = np.maximum(1, matrix.sum(1, keepdims=True))
    return {
        "rows": rows,
        "left_out": len(classes) - len(rows),
        "mixed": mixed,
        "matrix": None if shown is None else np.stack([shown, np.round(100 * shown / totals)], 2).tolist(),
    }


def stored_classes(stored: Stored) -> Section | None:
    """The table of classes that the run wrote when it ended."""
    found = stored.result.get("by_class")
    rows = []
    for row in found[:MOST_CLASSES] if isinstance(found, list) else ():
        if not isinstance(row, dict) or finite(row.get("images")) is None or _ends(row, "recall") is None:
            return None
        rows.append(_class_row(row))
    left_out = max(0, len(found) - len(rows)) if isinstance(found, list) else 0
    return {"rows": rows, "left_out": left_out, "mixed": [], "matrix": None} if rows else None


def _class_row(row: dict[str, Any]) -> Section:
    """A line of the table of classes; what a run of an older version did not write is a dash."""
    said, sure, precise = row.get("predicted"), finite(row.get("confidence")), _ends(row, "precision")
    beyond = said and sure is not None and precise is not None and not precise[0] <= sure <= precise[1]
    score, there = finite(row.get("f_score")), finite(row.get("images")) or 0.0
    return {
        "name": str(row.get("class")),
        "images": count(there),
        "recall": percent(finite(row.get("recall"))),
        "recall_interval": interval(ends) if there and (ends := _ends(row, "recall")) else "",
        "precision": percent(finite(row.get("precision"))),
        "precision_interval": interval(precise) if said and precise else "",
        "confidence": percent(sure),
        "off": ("over" if sure > precise[1] else "under") if beyond and sure is not None and precise else "",
        "f_score": percent(score),
        "share": score or 0.0,
        "known": score is not None,
    }


def _ends(row: dict[str, Any], name: str) -> tuple[float, float] | None:
    """The interval of a measure of a class; None where it is none."""
    ends = row.get(f"{name}_interval")
    low, high = map(finite, ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
    return None if low is None or high is None else (low, high)


def prediction_sets(seen: Seen, classes: Sequence[str]) -> Section | None:
    """Coverage and size of prediction sets, over all and by class; None where there are too few labels."""
    probabilities, labels = seen.truth
    if len(labels) < LEAST_FOR_SETS:
        return None
    found = measure_sets(cross_fitted(probabilities, labels, SET_COVERAGE), labels, classes)
    rows = [row for row in found["by_class"] if row["images"]]
    for row in [found, *rows]:
        row["interval"], row["size"] = interval(row["coverage_interval"]), f"{row['mean_size']:.2f}"
    lowest = sorted(rows, key=lambda row: row["coverage"])[:MOST_ROWS]
    return {**found, "rows": lowest, "left_out": len(rows) - len(lowest), "wanted": SET_COVERAGE}


def class_mix(context: Context) -> Section | None:
    """The mix of the labels, the one that probabilities are for, and that of the images that were measured on."""
    mix = used_mix(context.stored.result, context.class_mix)
    if mix is None:
        return None
    seen, counts = context.measured, np.zeros(0, np.int64)
    if seen and context.classes == mix.classes:
        counts = np.bincount(seen.truth[1], minlength=len(mix.classes))
    order = np.argsort(-np.array(mix.shares), kind="stable")[:MOST_ROWS].tolist()
    rows = [
        {
            "name": mix.classes[i],
            "labels": count(mix.labels[i]),
            "share": percent(mix.label_shares[i]),
            "used": percent(mix.shares[i]),
            "interval": interval(mix.interval[i]) if mix.interval else "",
            "measured": percent(counts[i] / counts.sum()) if counts.any() else "",
        }
        for i in order
    ]
    return {
        "rows": rows,
        "left_out": len(mix.classes) - len(rows),
        "sentences": mix.sentences(),
        "what": seen.what if seen and counts.any() else "",
        "elsewhere": bool(counts.any()) and mix.differs_from(counts.tolist()),
    }
