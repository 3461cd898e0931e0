"""Pixels as pictures inside the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
