import pytest
import torch

from ebpl.models.wide_resnet import WideResNet
from tests.helpers import architecture


@pytest.mark.parametrize(
    ("depth", "width", "millions"),
    [(40, 1, 0.6), (40, 2, 2.2), (40, 4, 8.9), (16, 4, 2.7), (16, 8, 11.0), (28, 2, 1.5), (28, 10, 36.5)],
)
def test_parameter_counts_are_the_published_ones(depth: int, width: int, millions: float) -> None:
    # Zagoruyko and Komodakis 2016 (tables 4 and 5), and WRN-28-2 as in the semi-supervised literature; 10 classes
    with torch.device("meta"):
        model = architecture(None, depth=depth, width=width, shape=(3, 32, 32), classes=10).build()
    assert model.parameter_count() / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 28, 28), (3, 33, 21), (1, 64, 64)])
def test_any_image_size_and_one_or_three_channels(channels: int, height: int, width: int) -> None:
    features = WideResNet(10, 1, channels)(torch.zeros(2, channels, height, width))
    assert features.shape == (2, 64)


def test_images_of_a_batch_do_not_see_each_other() -> None:
    model = architecture(shape=(3, 12, 12), classes=4).build().initialise(torch.Generator().manual_seed(0)).double()
    images = torch.randn(6, 3, 12, 12, dtype=torch.float64)
    whole = model.features(images)
    parts = torch.cat([model.features(images[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(whole, parts)
