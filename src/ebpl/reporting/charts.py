"""The charts of the page, each as a small SVG with words that say what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ebpl.io import write_text
from ebpl.reporting.svg import HEIGHT, WIDTH, Frame, element, number, percent
from ebpl.runs.reader import Row

Floats = NDArray[np.float64]
BINS = 36
MOST_MARKS = 200
"""More phases or healings than that are no picture any more."""


@dataclass(frozen=True)
class Chart:
    """A drawing with its heading, the meaning of its colours, and a sentence."""

    title: str
    drawing: Markup
    legend: tuple[tuple[str, str], ...] = ()
    """Class in the style sheet, and what it stands for."""
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A column of metrics.csv as a line of a chart."""

    column: str
    cls: str
    name: str


def curves(
    title: str, history: Sequence[Row], lines: Sequence[Line], share: bool = False, note: str = ""
) -> Chart | None:
    """Columns of metrics.csv over the epochs, with the curriculum steps and what was healed; None without values."""
    lines = [line for line in lines if any(row.get(line.column) is not None for row in history)]
    values = [row[line.column] for line in lines for row in history if row.get(line.column) is not None]
    if not values:
        return None
    low, high = (0.0, 1.0) if share and max(values) > 0.5 else (min(0.0, *values), max(values))
    if low == high:
        high = low + 1
    frame = Frame((1, max(2, len(history))), (low, high + 0.04 * (high - low) * (not share)))
    frame.y_axis(percent if share else number)
    _phases(frame, history)
    for line in lines:
        frame.line([(i, row.get(line.column)) for i, row in enumerate(history, 1)], line.cls)
    frame.x_axis("epoch", at=_whole_ticks(len(history)))
    legend = [(line.cls, line.name) for line in lines]
    if healed_at(history):
        legend.append(("healed", "recovery from a divergence"))
    named = " and ".join(line.name for line in lines)
    return Chart(title, frame.drawing(f"{title}: {named} over {len(history)} epochs"), tuple(legend), note)


def _whole_ticks(count: int) -> list[int]:
    every = next(step for power in (1, 10, 100, 1000, 10**4, 10**5) for step in (power, 2 * power, 5 * power)
                 if count / step <= 7)  # fmt: skip
    return [1, *range(every if every > 1 else 2, count + 1, every)] if count > 1 else [1]


def _phases(frame: Frame, history: Sequence[Row]) -> None:
    """Bands for the curriculum steps, and a line where training was healed."""
    starts = [i for i, row in enumerate(history, 1) if i == 1 or row.get("phase") != history[i - 2].get("phase")]
    ends = [*starts[1:], len(history) + 1]
    for count, (start, end) in enumerate(zip(starts[:MOST_MARKS], ends, strict=False)):
        left, right = frame.x(max(1.0, start - 0.5)), frame.x(min(len(history), end - 0.5))
        name = str(history[start - 1].get("phase") or "")
        if count % 2:
            shape = {"x": left, "width": max(0.0, right - left), "y": frame.top, "height": frame.bottom - frame.top}
            frame.add("rect", element("title", name), cls="band", **shape)
        words = name.split(" of ")[0]
        if right - left < 6.5 * len(words):
            words = words.removeprefix("step ")
        if len(starts) > 1 and right - left > 6.5 * len(words):
            frame.add("text", words, cls="mark", x=(left + right) / 2, y=frame.top - 6, text_anchor="middle")
    for at in healed_at(history)[:MOST_MARKS]:
        frame.upright(max(1.0, at - 0.5), "healed")


def healed_at(history: Sequence[Row]) -> list[int]:
    """Numbers of the epochs before which training had gone back."""
    counts = [0.0, *[row.get("healed") or 0.0 for row in history]]
    return [i for i in range(1, len(counts)) if counts[i] > counts[i - 1]]


def reliability(bins: Sequence[dict[str, Any]], what: str) -> Chart:
    """Accuracy against confidence; below it how many images are in each bin; bins without any are hatched."""
    top = Frame((0, 1), (0, 1), top=12, bottom=236)
    most = max(each["images"] for each in bins)
    bottom = Frame((0, 1), (0, most * 1.25), top=246, bottom=312)
    hatch = element("path", d="M0,6 L6,0", cls="hatching")
    pattern = element("pattern", hatch, id="empty", width=6, height=6, patternUnits="userSpaceOnUse")
    parts = [element("defs", pattern)]
    top.y_axis(percent, 5)
    for each in bins:
        x, images = (each["above"], each["up_to"]), each["images"]
        where = f"confidence {100 * x[0]:.0f} to {100 * x[1]:.0f} %"
        if not images:
            top.bar(x, (0, 1), "empty-bin", f"{where}: no images")
            continue
        right, said = each["accuracy"], each["confidence"]
        words = f"{where}: {images} images, accuracy {100 * right:.1f} %, mean confidence {100 * said:.1f} %"
        top.bar(x, (0, min(right, said)), "fill a", words)
        if right != said:
            top.bar(x, (min(right, said), max(right, said)), "fill over" if said > right else "fill under", words)
        top.bar(x, (right - 0.004, right + 0.004), "fill ink", words)
        bottom.bar(x, (0, images), "fill quiet", words)
        place = {"x": bottom.x(sum(x) / 2), "y": bottom.y(images) - 3}
        bottom.add("text", _count(images), cls="small", text_anchor="middle", **place)
    diagonal = {"x1": top.x(0), "y1": top.y(0), "x2": top.x(1), "y2": top.y(1)}
    top.add("line", cls="ideal", **diagonal)
    top.add("line", cls="axis", x1=top.left, x2=top.right, y1=top.bottom, y2=top.bottom)
    bottom.add("text", "images", cls="tick", x=bottom.left - 6, y=bottom.bottom - 2, text_anchor="end")
    bottom.x_axis("confidence", percent)
    empty = sum(not each["images"] for each in bins)
    legend = [("a", "accuracy"), ("over", "over-confident")]
    legend += [("under", "under-confident"), ("ideal", "perfect")]
    if empty:
        legend.append(("empty-bin", f"no images ({empty} of {len(bins)} bins)"))
    label = f"Reliability diagram of {what}: accuracy in {len(bins)} bins of confidence"
    drawing = element(
        "svg", *parts, *top.parts, *bottom.parts, viewBox=f"0 0 {WIDTH} 352", role="img", aria_label=label
    )
    return Chart("Accuracy against confidence", drawing, tuple(legend))


def _count(images: int) -> str:
    return str(images) if images < 10_000 else f"{images / 1000:.0f}k"


def risk(coverage: Floats, error: Floats, promised: Floats) -> Chart:
    """Error rate among the most confident images, against how many of all they are."""
    start = len(error) // 50  # the rate among a handful of images jumps up and down
    high = max(float(max(error[start:].max(), promised.max())) * 1.1, 0.01)
    frame = Frame((0, 1), (0, high))
    frame.y_axis(percent)
    frame.add("line", cls="ideal", x1=frame.left, x2=frame.right, y1=frame.y(error[-1]), y2=frame.y(error[-1]))
    frame.line(zip(coverage[start:].tolist(), promised[start:].tolist(), strict=True), "b")
    frame.line(zip(coverage[start:].tolist(), error[start:].tolist(), strict=True), "a")
    frame.x_axis("coverage: share of images, most confident first", percent)
    legend = (("a", "error rate"), ("b", "error rate expected from confidence"), ("ideal", "error rate on all images"))
    return Chart("Error rate against coverage", frame.drawing("Risk against coverage"), legend)


def confidences(values: Floats, what: str) -> Chart:
    """Histogram of confidences, for images without labels."""
    counts, edges = np.histogram(values, bins=20, range=(0, 1))
    frame = Frame((0, 1), (0, max(1.0, 1.1 * counts.max())))
    frame.y_axis()
    for count, low, high in zip(counts.tolist(), edges, edges[1:], strict=False):
        if count:
            words = f"confidence {100 * low:.0f} to {100 * high:.0f} %: {count} images"
            frame.bar((float(low), float(high)), (0, count), "fill a", words)
    frame.upright(float(values.mean()), "limit", f"mean {100 * values.mean():.0f} %")
    frame.x_axis("confidence", percent)
    return Chart(f"Confidence on {what}", frame.drawing(f"Histogram of confidences of {what}"), (("a", what),))


def scores(name: str, training: Floats | None, looked: Floats | None, what: str, limit: float | None) -> Chart | None:
    """Energies, or another score, of training images (from their quantiles) and of those looked at, on one axis."""
    sets = [values[np.isfinite(values)] for values in (training, looked) if values is not None]
    if not sets or not all(len(values) for values in sets):
        return None
    everything = np.concatenate([np.quantile(values, [0.002, 0.998]) for values in sets])
    low, high = float(everything.min()), float(everything.max())
    if limit is not None:
        high = max(high, limit)
    spare = 0.03 * (high - low) or 0.5
    edges = np.linspace(low - spare, high + spare, BINS + 1)
    shares = []
    for values, quantiles in ((training, True), (looked, False)):
        shares.append(None if values is None else _shares(values, edges, quantiles))
    peak = max(float(share.max()) for share in shares if share is not None)
    frame = Frame((float(edges[0]), float(edges[-1])), (0, 1.12 * peak))
    frame.y_axis(percent)
    legend = []
    if shares[0] is not None:
        legend.append(("a", "training images"))
        for share, left, right in zip(shares[0].tolist(), edges, edges[1:], strict=False):
            if share:
                frame.bar((float(left), float(right)), (0, share), "fill a soft", gap=0)
    if shares[1] is not None:
        legend.append(("b", what))
        corners = np.repeat(edges, 2)[1:-1].tolist()
        frame.line(zip(corners, np.repeat(shares[1], 2).tolist(), strict=True), "b")
    if limit is not None:
        frame.upright(limit, "limit", "outliers from here")
    frame.x_axis(name)
    note = (
        "Low: like the training images; high: unlike them. "
        "Images beyond the ends of the axis are counted in the first and last bar."
    )
    drawing = frame.drawing(f"Histogram of the {name} of training images and {what}")
    return Chart(f"{name.capitalize()} of images", drawing, tuple(legend), note)


def _shares(values: Floats, edges: Floats, quantiles: bool) -> Floats:
    """The share of images between two edges; those beyond the ends are in the first and last."""
    values = np.sort(values[np.isfinite(values)])
    if quantiles:
        below = np.interp(edges, values, np.linspace(0, 1, len(values)), left=0, right=1)
    else:
        below = np.searchsorted(values, edges) / len(values)
    below[0], below[-1] = 0, 1
    return np.diff(below)


def steps(rows: Sequence[dict[str, Any]]) -> Chart | None:
    """Share of right pseudo-labels, and the share the model promised, step by step."""
    lines = [
        ("right", "a", "accuracy"),
        ("confidence", "b", "mean confidence"),
        ("kept", "c", "unchanged since the step before"),
    ]
    lines = [line for line in lines if any(row[line[0]] is not None for row in rows)]
    if len(rows) < 2 or not lines:
        return None
    frame = Frame((rows[0]["step"], rows[-1]["step"]), (0, 1))
    frame.y_axis(percent)
    for name, cls, _ in lines:
        frame.line([(row["step"], row[name]) for row in rows], cls)
        for row in rows:
            if row[name] is not None:
                words = element("title", f"step {row['step']}: {100 * row[name]:.1f} %")
                frame.add("circle", words, cls=f"dot {cls}", cx=frame.x(row["step"]), cy=frame.y(row[name]), r=3)
    frame.x_axis("curriculum step", at=[row["step"] for row in rows[:: -(-len(rows) // 10)]])
    legend = tuple((cls, words) for _, cls, words in lines)
    return Chart("Pseudo-labels by step", frame.drawing("Shares of pseudo-labels by step", HEIGHT), legend)


STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 12px; background: #fff } text { fill: #333 }
.heading { font-size: 15px; font-weight: 600 } .tick, .small { font-size: 11px; fill: #666 } .small { font-size: 9px }
.grid { stroke: #e4e4e4 } .axis { stroke: #888 } .ideal { stroke: #222; stroke-dasharray: 4 3 }
.fill.a { fill: #3b6fb6 } .fill.over { fill: #e08a94 } .fill.under { fill: #9cc0ea } .fill.ink { fill: #222 }
.fill.quiet { fill: #999 } .empty-bin { fill: url(#empty) } .hatching { stroke: #ccc }
"""
HEADING, LEGEND, SIDE = 44, 22, 352


def draw_reliability(path: Path, results: Mapping[str, Sequence[dict[str, Any]]]) -> Path:
    """Reliability diagrams of several results side by side, as an SVG file; `results` are titles and their bins."""
    width, height = WIDTH * len(results), HEADING + SIDE + 2 * LEGEND
    parts = [element("style", Markup(STYLE))]
    for column, (title, bins) in enumerate(results.items()):
        chart, total = reliability(bins, title), sum(each["images"] for each in bins) or 1
        right = sum(each["images"] * each["accuracy"] for each in bins if each["images"]) / total
        gaps = [each["images"] * abs(each["accuracy"] - each["confidence"]) for each in bins if each["images"]]
        words = f"{title}: accuracy {100 * right:.1f} %, ECE {100 * sum(gaps) / total:.1f} %"
        middle = WIDTH * column + WIDTH / 2
        parts.append(element("text", words, cls="heading", x=middle, y=26, text_anchor="middle"))
        inner = {"x": WIDTH * column, "y": HEADING, "width": WIDTH, "height": SIDE}
        parts.append(Markup(str(chart.drawing).replace("<svg ", "<svg {} ", 1)).format(_attributes(inner)))
    legend = [("a", "accuracy"), ("over", "over-confident by"), ("under", "under-confident by")]
    for i, (cls, words) in enumerate(legend):
        x = width / 2 - 210 + 150 * i
        parts.append(element("rect", cls=f"fill {cls}", x=x, y=height - 30, width=12, height=12))
        parts.append(element("text", words, x=x + 18, y=height - 20))
    drawn = element("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=width)
    write_text(path, str(drawn) + "\n")
    return path


def _attributes(values: Mapping[str, object]) -> Markup:
    return Markup(" ").join(Markup('{}="{}"').format(name, value) for name, value in values.items())
