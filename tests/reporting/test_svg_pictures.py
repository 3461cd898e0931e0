import base64
import io

import numpy as np
import pytest
from PIL import Image

from ebpl.reporting.svg import LARGEST, data_uri
from tests.helpers import random_images


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
