"""The paper's figures from the records, as PNG and SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from ebpl.data.dataset import ImageSet
from ebpl.io import write_bytes
from ebpl.methods import get_method
from ebpl.metrics import spread
from ebpl.training.relabel import phases
from experiments.grid import FEW_LABELS, PAPER_METHODS, PSEUDO_LABELS, Found, forms, methods_of
from experiments.overview import reported
from experiments.results_store import Record, details, digest, recovered
from experiments.table import count, title_of

COLORS = {"curriculum-labeling": "#c2693c", "ebpl": "#3b6fb6"}
MORE_COLORS = ("#4f9d69", "#8d6fb0", "#b8a13a", "#7f7f7f", "#c05a8e")
"""Of methods that are not the paper's."""
LINES = {"none": ":", "hard": "--", "soft": "-"}


def _style(method: str, kind: str, place: int) -> dict[str, Any]:
    """How a method that stands at this place among those shown is drawn."""
    color = COLORS.get(method, MORE_COLORS[place % len(MORE_COLORS)])
    return {"color": color, "linestyle": LINES[kind], "marker": "o", "capsize": 3}


def _methods(pairs: Found, data: str) -> list[str]:
    """The methods of which there is something to draw for these data."""
    return methods_of([cell for cell, _ in pairs if cell.data == data])


def _of(pairs: Found, data: str, method: str, kind: str) -> list[Record]:
    """The records of one dataset, method and form of pseudo-labels."""
    wanted = (data, method, kind)
    return [
        record
        for cell, record in pairs
        if (cell.data, cell.settings.method, cell.settings.curriculum.pseudo_labels) == wanted
    ]


def labels_curve(data: str, pairs: Found, _: ImageSet | None) -> Any:
    """Accuracy and ECE against the number of labels per class; a line for each method and form of pseudo-labels."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8))
    for place, method in enumerate(_methods(pairs, data)):
        for kind in forms(method):
            points = []
            for few in FEW_LABELS:
                own = [pair for pair in pairs if pair[0].settings.data.labels_per_class == few]
                metrics = [record["result"]["metrics"] for record in _of(own, data, method, kind)]
                if metrics:
                    points.append((few, spread(metrics)))
            for axis, name in zip(axes, ("accuracy", "ece"), strict=True):
                if points:
                    x = [few for few, _ in points]
                    y, deviation = ([100 * values[name][i] for _, values in points] for i in (0, 1))
                    label = f"{get_method(method).title}, {kind}"
                    axis.errorbar(x, y, deviation, label=label, **_style(method, kind, place))
    for axis, title in zip(axes, ("accuracy %", "ECE %"), strict=True):
        axis.set(xlabel="labels per class", ylabel=title, xticks=FEW_LABELS)
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(data)
    return figure


def reliability(data: str, pairs: Found, _: ImageSet | None) -> Any:
    """Accuracy in each bin of confidence for each method and form, over the images of all seeds together."""
    methods = list(dict.fromkeys([*PAPER_METHODS, *_methods(pairs, data)]))
    size = (9, 3.2 * len(methods))
    figure, axes = plt.subplots(len(methods), 3, figsize=size, sharex=True, sharey=True)
    for line, method in zip(axes, methods, strict=True):
        for axis, kind in zip(line, PSEUDO_LABELS, strict=True):
            chosen = _of(pairs, data, method, kind)
            _bins(axis, [record["result"] for record in chosen])
            title = f"{get_method(method).title}, {kind}"
            if chosen:
                ece = spread([record["result"]["metrics"] for record in chosen])["ece"][0]
                title += f"\nECE {100 * ece:.1f} % (n = {count(len(chosen), sum(map(recovered, chosen)))})"
            axis.set_title(title, fontsize=10)
            axis.plot([0, 1], [0, 1], "--", color="#222222", linewidth=1)
            axis.set(xlim=(0, 1), ylim=(0, 1))
    for axis in axes[-1]:
        axis.set_xlabel("confidence")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy")
    figure.suptitle(data)
    return figure


def _bins(axis: Any, results: Sequence[dict[str, Any]]) -> None:
    """Bars of accuracy, the gap to the mean confidence above or below, and bins without images hatched."""
    if not results:
        axis.text(0.5, 0.5, "not measured", ha="center", va="center", color="#888888")
        return
    for bins in zip(*(result["reliability"] for result in results), strict=True):
        low, high = bins[0]["above"], bins[0]["up_to"]
        place = {"x": (low + high) / 2, "width": high - low, "edgecolor": "white"}
        images = sum(each["images"] for each in bins)
        if not images:
            axis.bar(**{**place, "edgecolor": "#dddddd"}, height=1, facecolor="none", hatch="///")
            continue
        right, said = (
            sum(each["images"] * (each[name] or 0) for each in bins) / images for name in ("accuracy", "confidence")
        )
        axis.bar(**place, height=right, color="#3b6fb6")
        axis.bar(**place, height=said - right, bottom=right, color="#e08a94" if said > right else "#9cc0ea")


def pseudo_label_accuracy(data: str, pairs: Found, _: ImageSet | None) -> Any:
    """The share of right pseudo-labels at each step, for each method and form."""
    figure, axis = plt.subplots(figsize=(5, 3.8))
    for place, method in enumerate(_methods(pairs, data)):
        for kind in ("hard", "soft"):
            chosen = [record["result"].get("pseudo_labels") or [] for record in _of(pairs, data, method, kind)]
            by_step = [
                {str(step["step"]): step["accuracy"] for step in steps if step["accuracy"] is not None}
                for steps in chosen
                if steps
            ]
            if by_step and all(each.keys() == by_step[0].keys() for each in by_step):
                values = spread(by_step)
                y, deviation = ([100 * value[i] for value in values.values()] for i in (0, 1))
                label = f"{get_method(method).title}, {kind}"
                axis.errorbar([int(step) for step in values], y, deviation, label=label, **_style(method, kind, place))
    if not axis.has_data():
        plt.close(figure)
        return None
    axis.set(xlabel="step", ylabel="right pseudo-labels %", title=data)
    axis.legend(fontsize=8, frameon=False)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def training_curves(data: str, pairs: Found, _: ImageSet | None) -> Any:
    """Accuracy and ECE on the validation images, which had no part in it, while training: a line for each seed."""
    own = [(cell.settings, record["result"].get("curves", {})) for cell, record in pairs if cell.data == data]
    drawn = [(settings, curves) for settings, curves in own if "validation_ece" in curves]
    if not drawn:
        return None
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4))
    begun = list(accumulate(phase.epochs for phase in phases(drawn[0][0])))[:-1]
    for axis, name in zip(axes, ("accuracy", "ece"), strict=True):
        for settings, curves in drawn:
            values = [100 * value for value in curves[f"validation_{name}"]]
            axis.plot(range(1, len(values) + 1), values, label=f"seed {settings.seed}", linewidth=1.4)
        for epoch in begun:
            axis.axvline(epoch, color="#bbbbbb", linewidth=0.8, linestyle="--", zorder=0)
        axis.set(xlabel="epoch (dashed: a step begins)", ylabel=title_of(name))
    axes[1].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(data)
    return figure


def minutes_curve(data: str, lines: Mapping[str, tuple[float, Sequence[Mapping[str, Sequence[float]]]]]) -> Any:
    """Mean accuracy and ECE on the validation images against minutes; a line for each method.

    `lines` are the minutes of a whole training and the curves of each seed, by method; None where one has no curves.
    """
    if not all("validation_ece" in each for _, curves in lines.values() for each in curves):
        return None
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4))
    for place, (method, (minutes, curves)) in enumerate(lines.items()):
        for axis, name in zip(axes, ("accuracy", "ece"), strict=True):
            values = 100 * np.array([each[f"validation_{name}"] for each in curves])
            x = minutes * np.arange(1, values.shape[1] + 1) / values.shape[1]
            style = {name: value for name, value in _style(method, "soft", place).items() if name == "color"}
            axis.plot(x, values.mean(0), label=f"{get_method(method).title}, n = {len(values)}", **style)
            axis.fill_between(x, values.min(0), values.max(0), alpha=0.15, linewidth=0, **style)
    for axis, name in zip(axes, ("accuracy", "ece"), strict=True):
        axis.set(xlabel="minutes (shaded: lowest to highest seed)", ylabel=title_of(name))
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"{data}, validation images")
    return figure


def samples(data: str, pairs: Found, _: ImageSet | None) -> Any:
    """Samples from the energy model after training."""
    for cell, record in reversed(pairs):
        drawn = details(record).get("samples") if cell.data == data and cell.settings.method == "ebpl" else None
        if drawn is not None:
            side = math.isqrt(len(drawn))
            figure, axes = plt.subplots(side, side, figsize=(4.5, 4.8))
            for axis, image in zip(axes.flat, drawn, strict=False):
                _picture(axis, image)
            figure.suptitle(
                f"{data}: samples, {cell.settings.curriculum.pseudo_labels}, seed {cell.settings.seed}", fontsize=10
            )
            return figure
    return None


def misclassified(data: str, pairs: Found, images: ImageSet | None) -> Any:
    """Test images that both methods get wrong, those the baseline is surest of first, with both confidences."""
    both = _both(data, pairs, "test_labels")
    if not both or images is None or images.test is None:
        return None
    truth = images.test.labels
    if any(len(found["test_labels"]) != len(truth) for found in both.values()):
        return None
    wrong = np.flatnonzero(np.all([found["test_labels"] != truth for found in both.values()], axis=0) & (truth >= 0))
    surest = wrong[np.argsort(-both["curriculum-labeling"]["test_confidences"][wrong], kind="stable")][:10]
    if not len(surest):
        return None
    figure, axes = plt.subplots(2, 5, figsize=(10, 5.6))
    for axis in axes.flat:
        axis.axis("off")
    for axis, i in zip(axes.flat, surest, strict=False):
        _picture(axis, images.test.pixels[i])
        said = [
            f"{get_method(method).title}: {100 * found['test_confidences'][i]:.0f} % "
            f"({_short(images.classes[int(found['test_labels'][i])])})"
            for method, found in both.items()
        ]
        axis.set_title("\n".join([f"is {_short(images.classes[truth[i]])}", *said]), fontsize=8)
    figure.suptitle(f"{data}: test images that both methods get wrong")
    return figure


def first_selection(data: str, pairs: Found, images: ImageSet | None) -> Any:
    """t-SNE of training images: all by their true class, those that each method selects first by their pseudo-label."""
    both = _both(data, pairs, "selected")
    if not both or images is None:
        return None
    from sklearn.manifold import TSNE

    chosen = np.unique(np.concatenate([found["selected"] for found in both.values()]))
    known = np.flatnonzero(images.train.labels >= 0)
    rest = np.setdiff1d(known, chosen)
    numbers = np.random.default_rng(0)
    shown = np.sort(np.concatenate([_some(chosen, numbers), _some(rest, numbers)]))
    pixels = images.train.pixels[shown].reshape(len(shown), -1) / 255.0
    places = TSNE(random_state=0, init="pca", perplexity=min(30, len(shown) // 4)).fit_transform(pixels)
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.4))
    colors = plt.get_cmap("tab20")
    truth = images.train.labels[shown]
    axes[0].scatter(*places.T, s=5, c=colors(truth % 20))
    axes[0].set_title("true classes")
    for axis, (method, found) in zip(axes[1:], both.items(), strict=True):
        label = dict(zip(found["selected"].tolist(), found["selected_labels"].tolist(), strict=True))
        inside = np.array([int(i) in label for i in shown])
        given = np.array([label.get(int(i), 0) for i in shown])
        axis.scatter(*places[~inside].T, s=3, c="#e4e4e4")
        axis.scatter(*places[inside].T, s=6, c=colors(given[inside] % 20))
        right = np.mean(given[inside] == truth[inside])
        axis.set_title(f"{get_method(method).title}, first selection: {100 * right:.0f} % right")
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    figure.suptitle(f"{data}: t-SNE of {len(shown)} training images")
    return figure


def _some(index: Any, numbers: Any, most: int = 1000) -> Any:
    return index if len(index) <= most else numbers.choice(index, most, replace=False)


def _both(data: str, pairs: Found, needed: str) -> dict[str, dict[str, Any]] | None:
    """The details of the paper's two methods with the same pseudo-labels: soft ones rather than hard ones or none."""
    for kind in reversed(PSEUDO_LABELS):
        found: dict[str, dict[str, Any]] = {}
        for cell, record in pairs:
            if (
                cell.data == data
                and cell.settings.curriculum.pseudo_labels == kind
                and needed in (arrays := details(record))
            ):
                found.setdefault(cell.settings.method, arrays)
        if all(method in found for method in PAPER_METHODS):
            return {method: found[method] for method in PAPER_METHODS}
    return None


def _picture(axis: Any, image: Any) -> None:
    axis.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
    axis.axis("off")


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


FIGURES: dict[str, dict[str, Callable[[str, Found, ImageSet | None], Any]]] = {
    "table1": {
        "reliability": reliability,
        "pseudo-labels": pseudo_label_accuracy,
        "samples": samples,
        "misclassified": misclassified,
        "first-selection": first_selection,
    },
    "labels": {"labels": labels_curve},
    "best": {"curves": training_curves, "pseudo-labels": pseudo_label_accuracy},
    "parts": {},
    "ablation": {},
}


def draw(folder: Path, experiment: str, pairs: Found, images: Callable[[str], ImageSet | None]) -> list[Path]:
    """All figures of an experiment, for each dataset with a record; `images` gives a dataset, where it is there.

    Those of the paper's table are of what it reports; other runs are shown where only they have single images. Each
    file says in its metadata which results it was drawn from.
    """
    written, first = [], pairs
    if experiment == "table1":
        chosen = set(reported(*map(list, zip(*pairs, strict=True)))) if pairs else set()
        first = [pair for pair in pairs if pair[0] in chosen]
    for data in dict.fromkeys(cell.data for cell, _ in pairs):
        source = digest([record for cell, record in pairs if cell.data == data])
        for name, make in FIGURES[experiment].items():
            figure = make(data, first, images(data)) or make(data, pairs, images(data))
            if figure is None:  # no record to draw it from
                continue
            written += save(figure, folder / f"{experiment}-{name}-{data}", source)
    return written


def save(figure: Any, path: Path, source: str) -> list[Path]:
    """Write a figure as PNG and SVG, with what it was drawn from in the metadata; returns the paths."""
    figure.tight_layout()
    written = []
    for kind in ("png", "svg"):
        drawn = io.BytesIO()
        more = {"Source": source} | ({"Date": None} if kind == "svg" else {})
        figure.savefig(drawn, dpi=120, format=kind, metadata=more)
        written.append(path.with_name(f"{path.name}.{kind}"))
        write_bytes(written[-1], drawn.getbuffer())
    plt.close(figure)
    return written
