"""Sections of the page about labels: those that may be wrong, what more of them would bring, and pseudo-labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebpl.labeling.label_errors import find_label_errors
from ebpl.labeling.learning_curve import LearningCurve, more_labels
from ebpl.reporting import charts
from ebpl.reporting.charts import Chart
from ebpl.reporting.report_data import Context, percent, things
from ebpl.reporting.svg import Frame, data_uri
from ebpl.reporting.svg import percent as on_axis
from ebpl.runs.reader import Row, Step
from ebpl.training.relabel import described_counts

Section = dict[str, Any]
SHOWN = 24
"""Pictures of doubtful labels."""


def doubtful_labels(context: Context) -> Section | None:
    """The labels that the others contradict most, as pictures with the given and the suggested class."""
    known = context.sight.labelled if context.sight else None
    if known is None:
        return None
    check, places = find_label_errors(known), {int(at): i for i, at in enumerate(known.positions)}
    if not check.labels and not check.errors:
        return None
    shown = [
        {
            "uri": data_uri(known.images.pixels[places[error.index]]),
            "name": error.image,
            "given": error.given,
            "suggested": error.suggested,
            "p_given": percent(error.p_given, 0),
            "p_suggested": percent(error.p_suggested, 0),
            "copy_of": error.copy,
        }
        for error in check.errors[:SHOWN]
    ]
    return {
        "pictures": shown,
        "count": len(check.errors),
        "copies": sum(bool(error.copy) for error in check.errors),
        "labels": things(check.labels, "label"),
        "features": check.features,
        "accuracy": percent(check.accuracy, 0),
    }


def learned(context: Context) -> Section | None:
    """The learning curve, and what the next labels are likely to bring."""
    known = context.sight.labelled if context.sight else None
    if known is None:
        return None
    curve, sentence = more_labels(known)
    return {"chart": _chart(curve) if curve else None, "sentence": sentence}


def _chart(curve: LearningCurve) -> Chart:
    """Measured accuracies, the law that was fitted, and what it says beyond the labels that there are."""
    ends = [*curve.accuracies, *(low for _, _, low, _ in curve.curve), *(high for *_, high in curve.curve)]
    low, high = max(0.0, min(ends) - 0.02), min(1.0, max(ends) + 0.02)
    frame = Frame((0, curve.curve[-1][0]), (low, high))
    frame.y_axis(on_axis)
    sides = [(n, high) for n, _, _, high in curve.curve] + [(n, low) for n, _, low, _ in reversed(curve.curve)]
    frame.add("polygon", cls="fill a soft", points=" ".join(f"{frame.x(n):.1f},{frame.y(y):.1f}" for n, y in sides))
    frame.line([(n, mean) for n, mean, _, _ in curve.curve], "a")
    for n, accuracy in zip(curve.sizes, curve.accuracies, strict=True):
        frame.add("circle", cls="dot b", cx=frame.x(n), cy=frame.y(accuracy), r=3.5)
    frame.upright(curve.labels, "limit", "labels now")
    frame.x_axis("labels")
    legend = (("b", "measured with fewer labels"), ("a", "fitted, with the interval of nine in ten"))
    note = "Of logistic regression on the features, by cross-validation. Training uses unlabelled images as well."
    drawn = frame.drawing(f"Learning curve: accuracy by the number of labels, up to {curve.curve[-1][0]}")
    return Chart("Accuracy by the number of labels", drawn, legend, note)


def pseudo_labels(steps: Sequence[Step], history: Sequence[Row], classes: Sequence[str]) -> Section:
    """Step by step: how many, of which classes, how sure, how many right, changed, and left out as outliers."""
    left_out = {str(row.get("phase")).split(" of ")[0]: int(row.get("rejected") or 0) for row in history}
    rows = [
        {
            "step": step.step,
            "images": step.images,
            "confidence": step.confidence,
            "right": step.right / step.known if step.known else None,
            "known": step.known,
            "again": step.again,
            "changed": step.changed,
            "left_out": left_out.get(f"step {step.step}", 0),
            "classes": described_counts({**dict.fromkeys(classes, 0), **step.counts}),
            "kept": 1 - step.changed / step.again if step.again else None,
        }
        for step in steps
    ]
    rejected = any(row["left_out"] for row in rows)
    return {
        "rows": rows,
        "chart": charts.steps(rows),
        "truth": any(step.known for step in steps),
        "rejected": rejected,
    }
