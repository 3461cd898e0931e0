import base64
import io
import itertools
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ebpl.reporting.svg import LARGEST, MOST_POINTS, Frame, data_uri, element, ticks
from tests.helpers import random_images


def test_text_and_attributes_are_escaped() -> None:
    made = element("text", '<script>"&', title='"><script>')
    found = ElementTree.fromstring(made)
    assert found.text == '<script>"&'
    assert found.get("title") == '"><script>'


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_evenly_spaced_and_inside(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 1 <= len(found) <= 8
    slack = 1e-6 * max(span, abs(low), 1)
    assert all(low - slack <= value <= low + span + slack for value in found)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-3, abs=slack) for gap in gaps)


@pytest.mark.parametrize("ends", [(0, 0), (1, math.inf), (math.nan, 1)])
def test_an_impossible_range_is_no_error(ends: tuple[float, float]) -> None:
    assert len(ticks(*ends)) == 1


def test_a_frame_puts_the_corners_where_they_belong() -> None:
    frame = Frame((0, 10), (0, 1))
    assert (frame.x(0), frame.x(10)) == (frame.left, frame.right)
    assert (frame.y(0), frame.y(1)) == (frame.bottom, frame.top)


def test_a_line_has_a_gap_where_there_is_no_value_and_a_lone_point_is_a_dot() -> None:
    frame = Frame((0, 5), (0, 1))
    frame.line([(0, 0.1), (1, 0.2), (2, None), (3, 0.4), (4, math.nan), (5, 0.3), (6, 0.2)], "a")
    names = [ElementTree.fromstring(part).tag for part in frame.parts]
    assert names == ["polyline", "circle", "polyline"]


def test_a_long_line_is_thinned_and_keeps_its_ends() -> None:
    frame = Frame((0, 99_999), (0, 1))
    frame.line([(i, i / 100_000) for i in range(100_000)], "a")
    points = str(ElementTree.fromstring(frame.parts[0]).get("points")).split()
    assert len(points) <= MOST_POINTS + 1
    assert points[0].startswith(f"{frame.left:.1f},")
    assert points[-1].startswith(f"{frame.right:.1f},")


def opened(uri: str) -> Image.Image:
    kind, packed = uri.split(",")
    assert kind == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(packed)))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_small_picture_is_kept_to_the_pixel(channels: int) -> None:
    (pixels,) = random_images(1, 9, 7, channels)
    found = np.asarray(opened(data_uri(pixels)))
    np.testing.assert_array_equal(found.reshape(9, 7, channels), pixels)


def test_a_large_picture_is_shrunk() -> None:
    (pixels,) = random_images(1, 300, 150, 3)
    assert opened(data_uri(pixels)).size == (LARGEST // 2, LARGEST)
