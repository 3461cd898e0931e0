"""A few lines of SVG: elements, scales and a frame with axes. Colours are left to the page's style sheet."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

WIDTH, HEIGHT = 424, 256
MOST_POINTS = 400
"""More points than pixels would only make the file larger."""


def element(name: str, *content: str, **attributes: object) -> Markup:
    """An element; text that is not `Markup` already is escaped, `cls` is the attribute class.

    >>> print(element("text", "a < b", cls="tick", x=1.5))
    <text class="tick" x="1.5">a &lt; b</text>
    """
    words = [f' {_attribute(key)}="{escape(_plain(value))}"' for key, value in attributes.items()]
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("".join(words)), Markup("").join(content))


def _attribute(key: str) -> str:
    return "class" if key == "cls" else key.rstrip("_").replace("_", "-")


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def short(text: str, most: int = 24) -> str:
    """A name cut to what fits.

    >>> short("immature granulocyte", 12)
    'immature gr…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high.

    >>> ticks(0, 100)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= rough * 0.999), power * 10)
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step + 0.0 for i in range(int((high - first * step) / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A number on an axis, in few characters."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}".replace("-", "−")


def percent(value: float) -> str:
    """A share as a percentage, on an axis."""
    return f"{100 * value:.4g} %"


@dataclass
class Frame:
    """A coordinate system on paper: ranges of x and y, and the part of the picture they are drawn in."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 58
    top: float = 20
    right: float = WIDTH - 20
    bottom: float = HEIGHT - 40
    parts: list[Markup] = field(default_factory=list)

    def x(self, value: float) -> float:
        """Where a value is drawn from left to right."""
        return _scaled(value, self.x_range, self.left, self.right)

    def y(self, value: float) -> float:
        """Where a value is drawn from top to bottom."""
        return _scaled(value, self.y_range, self.bottom, self.top)

    def add(self, name: str, *content: str, **attributes: object) -> None:
        """Draw an element."""
        self.parts.append(element(name, *content, **attributes))

    def x_axis(self, label: str, written: Callable[[float], str] = number, at: Sequence[float] | None = None) -> None:
        """Ticks and a name below."""
        for value in ticks(*self.x_range) if at is None else at:
            self.add("text", written(value), cls="tick", x=self.x(value), y=self.bottom + 17, text_anchor="middle")
        middle = (self.left + self.right) / 2
        self.add("text", label, cls="name", x=middle, y=self.bottom + 34, text_anchor="middle")
        self.add("line", cls="axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)

    def y_axis(self, written: Callable[[float], str] = number, about: int = 4) -> None:
        """Ticks and lines across."""
        for value in ticks(*self.y_range, about):
            y = self.y(value)
            self.add("line", cls="grid", x1=self.left, x2=self.right, y1=y, y2=y)
            self.add("text", written(value), cls="tick", x=self.left - 6, y=y + 4, text_anchor="end")

    def line(self, points: Iterable[tuple[float, float | None]], cls: str) -> None:
        """A line through points, with gaps where there is no value; a single point is a dot."""
        for piece in _pieces(_thinned(list(points))):
            placed = [(self.x(x), self.y(y)) for x, y in piece]
            if len(placed) == 1:
                self.add("circle", cls=f"dot {cls}", cx=placed[0][0], cy=placed[0][1], r=3)
            else:
                self.add("polyline", cls=f"line {cls}", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in placed))

    def bar(self, x: tuple[float, float], y: tuple[float, float], cls: str, title: str = "", gap: float = 1) -> None:
        """A filled rectangle between two values of x and two of y, with words for who points at it."""
        left, right = self.x(x[0]) + gap / 2, self.x(x[1]) - gap / 2
        low, high = self.y(y[0]), self.y(y[1])
        words = [element("title", title)] if title else []
        shape = {"x": left, "y": min(low, high), "width": max(0.5, right - left), "height": abs(low - high)}
        self.add("rect", *words, cls=cls, **shape)

    def upright(self, x: float, cls: str, label: str = "") -> None:
        """A line from bottom to top, with a word above it."""
        at = self.x(x)
        self.add("line", cls=cls, x1=at, x2=at, y1=self.top, y2=self.bottom)
        if label:
            third = (self.right - self.left) / 3
            anchor = "start" if at < self.left + third else "end" if at > self.right - third else "middle"
            self.add("text", label, cls="mark", x=at, y=self.top - 6, text_anchor=anchor)

    def drawing(self, label: str, height: float = HEIGHT) -> Markup:
        """The whole picture; the label says what it shows to those who do not see it."""
        return drawing(self.parts, label, height)


def drawing(parts: Iterable[Markup], label: str, height: float = HEIGHT) -> Markup:
    """A picture of these elements."""
    view = f"0 0 {WIDTH} {_plain(float(height))}"
    return element("svg", *parts, viewBox=view, role="img", aria_label=label)


def _scaled(value: float, of: tuple[float, float], start: float, end: float) -> float:
    span = of[1] - of[0]
    return start + (end - start) * ((value - of[0]) / span if span else 0.5)


def _thinned(points: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    every = -(-len(points) // MOST_POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]


def _pieces(points: Iterable[tuple[float, float | None]]) -> Iterable[list[tuple[float, float]]]:
    piece: list[tuple[float, float]] = []
    for x, y in points:
        if y is None or not math.isfinite(y):
            if piece:
                yield piece
            piece = []
        else:
            piece.append((x, y))
    if piece:
        yield piece


LARGEST = 112
"""Larger pictures are shrunk: a hundred of them must not make a page of many megabytes."""


def data_uri(pixels: NDArray[Any]) -> str:
    """An image (H, W, C) of bytes as the address of a PNG that is inside the address itself."""
    from PIL import Image

    flat = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    image = Image.fromarray(np.ascontiguousarray(flat))
    image.thumbnail((LARGEST, LARGEST), Image.Resampling.BOX)
    packed = io.BytesIO()
    image.save(packed, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(packed.getvalue()).decode("ascii")
