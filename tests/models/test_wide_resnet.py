import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.operations import Operations, operations
from ebpl.config import Settings
from ebpl.kernels import _fits
from ebpl.models import Architecture, build_backbone
from ebpl.models.wide_resnet import ResidualBlock, WideResNet, stages_for
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


def built(size: int, stages: int, width: int = 4) -> Operations:
    made = architecture(None, depth=16, width=width, stages=stages, shape=(3, size, size), classes=10)
    return operations(made)


@pytest.mark.parametrize("width", [1, 2, 4, 10])
@pytest.mark.parametrize("stages", [3, 4, 5])
def test_each_stage_halves_the_image_and_doubles_the_channels(width: int, stages: int) -> None:
    network = WideResNet(16, width, 3, stages)
    assert network.dimension == 64 * width
    x, seen = network.stem(torch.zeros(1, 3, 128, 128)), []
    for block in network.blocks:
        x = block(x)
        seen.append(tuple(x.shape[1:]))
    channels = [max(16, 64 * width >> stage) for stage in reversed(range(stages))]
    sides = [128 >> stage for stage in range(stages)]
    assert seen == [(c, side, side) for c, side in zip(channels, sides, strict=True) for _ in range(2)]


def test_a_larger_image_costs_little_more_where_stages_are_added() -> None:
    small = built(32, 3).convolutions
    assert built(64, 4).convolutions / small == pytest.approx(1.37, abs=0.01)
    assert built(128, 5).convolutions / small == pytest.approx(1.77, abs=0.01)
    assert built(128, 3).convolutions / small == pytest.approx(16, abs=0.01)


@pytest.mark.parametrize(
    ("height", "width", "stages"), [(8, 8, 3), (48, 48, 3), (49, 49, 4), (96, 96, 4), (97, 200, 5), (512, 512, 5)]
)
def test_the_stages_follow_from_the_size_of_the_images(height: int, width: int, stages: int) -> None:
    shape = (3, height, width)
    assert stages_for(height, width) == stages_for(width, height) == stages
    assert Architecture.of(Settings().model, shape, 3, density=True).options["stages"] == stages
    assert Architecture.of(Settings().changed({"model.stages": 3}).model, shape, 3, True).options["stages"] == 3


def test_weights_that_do_not_say_how_many_stages_have_three() -> None:
    old = build_backbone("wide_resnet", {"depth": 10, "width": 1}, (3, 128, 128))
    assert isinstance(old, WideResNet)
    assert old.stages == 3
    assert old.state_dict().keys() == WideResNet(10, 1, 3, 3).state_dict().keys()


def test_as_many_pixels_are_predicted_at_once_whatever_the_size() -> None:
    def batch(height: int, width: int) -> int:
        return build_backbone("wide_resnet", {"depth": 10, "width": 1}, (3, height, width)).batch

    assert [batch(28, 28), batch(32, 32), batch(64, 64), batch(128, 64), batch(4096, 4096)] == [512, 512, 128, 64, 1]


def test_images_of_a_batch_do_not_see_each_other() -> None:
    model = architecture(shape=(3, 12, 12), classes=4).build().initialise(torch.Generator().manual_seed(0)).double()
    images = torch.randn(6, 3, 12, 12, dtype=torch.float64)
    whole = model.features(images)
    parts = torch.cat([model.features(images[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(whole, parts)


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Each image and group of 16 channels with a mean of 0 and a variance of 1."""
    groups = x.unflatten(1, (-1, 16))
    mean, variance = groups.mean((2, 3, 4), keepdim=True), groups.var((2, 3, 4), keepdim=True, correction=0)
    return ((groups - mean) / (variance + 1e-5).sqrt()).flatten(1, 2)


def convolved(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """A convolution with filters of mean 0 and length 1."""
    assert isinstance(layer, nn.Conv2d)
    rows = layer.weight.flatten(1) - layer.weight.flatten(1).mean(1, keepdim=True)
    weight = (rows / rows.norm(dim=1, keepdim=True)).view_as(layer.weight)
    return F.conv2d(x, weight, layer.bias, layer.stride, layer.padding)


def test_group_norm_and_standardised_weights_are_as_defined() -> None:
    network = WideResNet(10, 2, 3, norm="group")
    network.initialise(torch.Generator().manual_seed(0))
    images = torch.randn(4, 3, 12, 12)
    x = convolved(images, network.stem)
    for block in network.blocks:
        assert isinstance(block, ResidualBlock)
        inner = convolved(F.leaky_relu(normalised(x), 0.2), block.conv1)
        shortcut = x if isinstance(block.shortcut, nn.Identity) else convolved(x, block.shortcut)
        x = convolved(F.leaky_relu(normalised(inner), 0.2), block.conv2) + shortcut
    expected = F.leaky_relu(normalised(x), 0.2).mean((2, 3))
    torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-5)


def test_with_group_norm_images_do_not_see_each_other_and_the_length_of_weights_does_not_matter() -> None:
    network = WideResNet(10, 1, 1, norm="group")
    network.initialise(torch.Generator().manual_seed(1))
    images = torch.randn(5, 1, 8, 8)
    whole = network(images)
    torch.testing.assert_close(whole, torch.cat([network(each[None]) for each in images]), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.mul_(7.0)
    torch.testing.assert_close(network(images), whole, rtol=1e-4, atol=1e-5)


def test_the_setting_is_part_of_the_architecture_and_the_kernels_leave_it_to_pytorch() -> None:
    chosen = Settings().changed({"model.norm": "group"}).model
    made = Architecture.of(chosen, (3, 32, 32), 3, density=True)
    assert made.options["norm"] == "group"
    assert "norm" not in Architecture.of(Settings().model, (3, 32, 32), 3, density=True).options
    network = made.build().features
    assert isinstance(network, WideResNet)
    assert network.norm == "group"
    assert not _fits(network, (3, 32, 32), 64)
    assert _fits(WideResNet(16, 4, 3), (3, 32, 32), 64)
    with pytest.raises(ValueError, match="not none or group"):
        WideResNet(10, 1, 1, norm="batch")
