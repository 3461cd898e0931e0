import pytest
import torch
from torch.nn import functional as F

from ebpl.encoders import efficientnet_lite
from ebpl.encoders.efficientnet_lite import FEATURES, SamePadding

TENSORFLOW = {
    # size, kernel, stride: padding before and after, and the size that comes out
    (5, 3, 1): (1, 1, 5),
    (6, 5, 1): (2, 2, 6),
    (7, 3, 2): (1, 1, 4),
    (8, 3, 2): (0, 1, 4),
    (224, 3, 2): (0, 1, 112),
    (7, 5, 2): (2, 2, 4),
    (8, 5, 2): (1, 2, 4),
    (2, 5, 2): (1, 2, 1),
    (4, 1, 1): (0, 0, 4),
    (5, 1, 2): (0, 0, 3),
}
"""As the documentation of TensorFlow's padding SAME gives them."""


@pytest.mark.parametrize("rows", TENSORFLOW)
@pytest.mark.parametrize("columns", TENSORFLOW)
def test_images_are_padded_as_tensorflow_pads_them(rows: tuple[int, int, int], columns: tuple[int, int, int]) -> None:
    if rows[1:] != columns[1:]:
        return  # one kernel and stride for both
    (height, kernel, stride), (width, _, _) = rows, columns
    above, below, high = TENSORFLOW[rows]
    left, right, wide = TENSORFLOW[columns]
    convolution = SamePadding(4, 4, kernel, stride, groups=4, bias=False)
    images = torch.randn(2, 4, height, width)
    padded = torch.zeros(2, 4, above + height + below, left + width + right)
    padded[:, :, above : above + height, left : left + width] = images
    found = convolution(images)
    assert found.shape[2:] == (high, wide)
    assert torch.allclose(found, F.conv2d(padded, convolution.weight, stride=stride, groups=4), atol=1e-6)


def test_it_has_the_published_number_of_parameters() -> None:
    network = efficientnet_lite.build()
    classifier = 1000 * (FEATURES + 1)
    assert sum(parameter.numel() for parameter in network.parameters()) + classifier == 4_652_008


@pytest.mark.parametrize("shape", [(32, 32), (33, 47), (224, 224)])
def test_images_of_any_size_become_features(shape: tuple[int, int]) -> None:
    network = efficientnet_lite.build().eval()
    with torch.inference_mode():
        assert network(torch.zeros(2, 3, *shape)).shape == (2, FEATURES)
