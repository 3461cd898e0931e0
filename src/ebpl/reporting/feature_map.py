"""The map of features: images as dots, similar ones close together, with pictures of those worth a look."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ebpl.models.outliers import OutlierLimit
from ebpl.reporting.report_data import (
    TRAINING,
    Context,
    Seen,
    count,
    outlier_scores,
    percent,
    score_name,
    things,
)
from ebpl.reporting.svg import element, short

MOST, LEAST = 1600, 8
"""Images on the map; fewer than the least are no map."""
MARKED = 24
"""Doubtful images that are marked, and outlying ones; at most every tenth image."""
PICTURES, SIZE, QUALITY = 250, 64, 70
"""How many dots have a picture, its height and width at most, and its quality as a JPEG."""
COLORS, NAMED = 10, 30
"""Colours of classes, which repeat, and most names of classes on the map."""
WIDTH, HEIGHT, MARGIN = 800.0, 640.0, 20.0
PERPLEXITY, UPDATES = 20.0, 500
"""Of t-SNE: about how many neighbours of an image count, and how long it runs. Longer looks the same."""
KINDS = ("outlying", "doubtful", "labelled", "other")
"""Of dots, as the style sheet calls them: the first come first where not all can have a picture."""
LETTER, LINE = 0.026, 0.07
"""Width and height of a letter on a phone, as shares of the map."""


@dataclass(frozen=True)
class Dot:
    """An image on the map."""

    seen: Seen
    i: int
    kind: str
    x: float
    y: float
    """Shares of the width and height of the map, from its left and top."""
    said: str
    """The predicted class."""
    color: int

    @property
    def name(self) -> str:
        """What the image is called."""
        return self.seen.images.paths[self.i] if self.seen.images.paths else f"no. {self.seen.positions[self.i]}"

    @property
    def confidence(self) -> str:
        """In the predicted class."""
        return percent(float(self.seen.predictions.confidences[self.i]))

    @property
    def uri(self) -> str:
        """A small picture."""
        from PIL import Image

        pixels = self.seen.images.pixels[self.i]
        image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
        image.thumbnail((SIZE, SIZE), Image.Resampling.BOX)
        packed = io.BytesIO()
        image.save(packed, "JPEG", quality=QUALITY, optimize=True)
        return "data:image/jpeg;base64," + base64.b64encode(packed.getvalue()).decode("ascii")


def feature_map(context: Context) -> dict[str, Any] | None:
    """A drawing of dots, dots with a picture, names of classes, and what is to be seen in words."""
    sight, others = context.sight, context.pool or context.looked
    if sight is None or others is None or others.features is None:
        return None
    known, classes = sight.known, context.classes
    limit = context.outlier_limit
    at = _chosen(others, known, limit)
    parts = [(others, at), *([(known, np.arange(len(known.images)))] if known else [])]
    if sum(len(index) for _, index in parts) < LEAST:
        return None
    places = layout(np.concatenate([seen.features[index] for seen, index in parts if seen.features is not None]))
    if places is None:
        return None
    kinds = [*_kinds(others, at, limit), *["labelled"] * (len(places) - len(at))]
    images = [(seen, int(i)) for seen, index in parts for i in index]
    dots = []
    for (seen, i), kind, (x, y) in zip(images, kinds, _on_paper(places).tolist(), strict=True):
        said = int(seen.predictions.labels[i])
        dots.append(Dot(seen, i, kind, x, y, classes[said], said % COLORS))
    pictured = _pictured(kinds)
    number = Counter(kinds)
    plain = [dot for i, dot in enumerate(dots) if i not in set(pictured)]
    doubtful = at[[kind == "doubtful" for kind in kinds[: len(at)]]]
    return {
        "drawing": _drawing(plain, _alternative(number, others.what, len(classes))),
        "dots": [dots[i] for i in pictured],
        "names": _names(dots),
        "classes": [(name, i % COLORS) for i, name in enumerate(classes[:NAMED])],
        "more": max(0, len(classes) - NAMED),
        "repeat": len(classes) > COLORS,
        "number": number,
        "what": others.what,
        "shown": f"{count(len(at))} of {count(others.total)}" if others.total > len(at) else count(len(at)),
        "between": _between(others, doubtful, classes),
        "score": score_name(limit),
    }


def _chosen(others: Seen, known: Seen | None, limit: OutlierLimit | None) -> NDArray[np.int64]:
    """Which images are on the map: of many the doubtful and outlying ones, and others evenly."""
    at = np.arange(len(others.images))
    if known and others.what == TRAINING:  # the same images, without their labels
        at = at[~np.isin(others.positions, known.positions)]
    most = MOST - (len(known.images) if known else 0)
    if len(at) <= most:
        return at
    scores, sure = outlier_scores(others, limit)[at], others.predictions.confidences[at]
    order = np.concatenate([np.argsort(values, kind="stable")[:MARKED] for values in (-scores, sure)])
    first = at[np.unique(order)]
    rest = np.setdiff1d(at, first)
    evenly = rest[np.linspace(0, len(rest) - 1, most - len(first)).astype(int)]
    return np.sort(np.concatenate([first, evenly]))


def _kinds(seen: Seen, at: NDArray[np.int64], limit: OutlierLimit | None) -> list[str]:
    """What each image is marked as: outlying beyond the limit, or else the furthest hundredth; doubtful if unsure."""
    kinds = np.full(len(at), "other", object)
    most = min(MARKED, -(-len(at) // 10))
    if limit is not None:
        beyond = max(int(limit.exceeded(seen.predictions)[at].sum()), len(at) // 100)
        kinds[np.argsort(-outlier_scores(seen, limit)[at], kind="stable")[: min(most, beyond)]] = "outlying"
    order = np.argsort(seen.predictions.confidences[at], kind="stable")
    kinds[order[kinds[order] == "other"][:most]] = "doubtful"
    found: list[str] = kinds.tolist()
    return found


def _pictured(kinds: Sequence[str]) -> list[int]:
    """Which dots have a picture, the most important last, so that they are on top."""
    found: list[int] = []
    for kind in KINDS:
        these = np.flatnonzero(np.array(kinds) == kind)
        room = (PICTURES - len(found)) // (2 if kind == "labelled" else 1)
        evenly = these[np.linspace(0, len(these) - 1, room).astype(int)] if len(these) > room else these
        found += np.unique(evenly).tolist()
    return found[::-1]


def layout(features: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Two coordinates for each row, the same every time; None where there are too few rows or all are the same."""
    from sklearn.manifold import TSNE

    rows = np.nan_to_num(features.astype(np.float64), posinf=0, neginf=0)
    rows -= rows.mean(0) if len(rows) else 0
    largest = np.abs(rows).max(initial=0)
    if len(rows) < 4 or not largest:
        return None
    rows = np.pad(rows / largest, ((0, 0), (0, max(0, 2 - rows.shape[1]))))
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    places = TSNE(perplexity=perplexity, max_iter=UPDATES, init="pca", random_state=0).fit_transform(rows)
    found: NDArray[np.float64] = places.astype(np.float64)
    return found


def _on_paper(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """As shares of width and height; a few that are far out do not press the others together."""
    low, high = np.quantile(places, [0.002, 0.998], axis=0)
    shares = np.clip((places - low) / np.maximum(high - low, 1e-12), 0, 1)
    margin = np.array([MARGIN / WIDTH, MARGIN / HEIGHT])
    scaled: NDArray[np.float64] = margin + (1 - 2 * margin) * shares
    return scaled


def _drawing(dots: Sequence[Dot], label: str) -> Markup:
    """Dots without a picture, those of a colour together."""
    groups: dict[tuple[int, str], list[Markup]] = {}
    for dot in dots:
        words = element("title", f"{short(dot.name, 60)}: {short(dot.said)} {dot.confidence}")
        place = {"cx": round(dot.x * WIDTH, 1), "cy": round(dot.y * HEIGHT, 1), "r": 5 if dot.kind == "labelled" else 3}
        groups.setdefault((dot.color, dot.kind), []).append(element("circle", words, **place))
    drawn = [element("g", *each, cls=f"k{color} {kind}") for (color, kind), each in groups.items()]
    return element("svg", *drawn, viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", role="img", aria_label=label)


def _alternative(number: Counter[str], what: str, classes: int) -> str:
    """What the map shows, for those who do not see it."""
    marked = [f"{number[kind]} {kind}" for kind in ("labelled", "doubtful", "outlying") if number[kind]]
    return f"Map of {number.total()} images ({what}) by their features, in {classes} classes: {', '.join(marked)}"


def _names(dots: Sequence[Dot]) -> list[tuple[str, float, float, int]]:
    """Names of classes where most of their dots are, the largest first; one that would cover another is left out."""
    found: list[tuple[str, float, float, int]] = []
    for said, _ in Counter(dot.said for dot in dots).most_common(NAMED):
        own = [dot for dot in dots if dot.said == said]
        places = np.array([(dot.x, dot.y) for dot in own])
        near = np.square(places[:, None] - places[None, :: -(-len(own) // 200)]).sum(2) < 0.05**2
        for i in np.argsort(-near.sum(1), kind="stable")[:: -(-len(own) // 20)]:
            name, half = short(said, 18), LETTER * min(len(said), 18) / 2
            x, y = float(np.clip(places[i, 0], half, 1 - half)), float(np.clip(places[i, 1], LINE, 1 - LINE))
            if all(abs(x - u) > half + LETTER * len(other) / 2 or abs(y - v) > LINE for other, u, v, _ in found):
                found.append((name, x, y, own[0].color))
                break
    return found


def _between(seen: Seen, doubtful: NDArray[np.int64], classes: Sequence[str]) -> str:
    """Which classes the doubtful images are between, most frequent first."""
    best = np.sort(np.argsort(-seen.predictions.probabilities[doubtful], axis=1, kind="stable")[:, :2], axis=1)
    pairs = Counter(map(tuple, best.tolist())).most_common(3)
    return ", ".join(f"{' or '.join(classes[c] for c in pair)} ({things(times, 'image')})" for pair, times in pairs)
