import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ebpl.encoders import mobilenet_v2
from ebpl.encoders.mobilenet_v2 import FEATURES


def test_it_has_the_published_number_of_parameters() -> None:
    network = mobilenet_v2.build()
    classifier = 1000 * (FEATURES + 1)
    assert sum(parameter.numel() for parameter in network.parameters()) + classifier == 3_504_872


def by_hand(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """Table 2 of the paper, from the weights and their names alone."""

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, *, linear: bool = False) -> Tensor:
        weight = state[f"{conv}.weight"]
        groups = x.shape[1] // weight.shape[1]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2, groups=groups)
        scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + 1e-5).sqrt()
        x = (x - state[f"{norm}.running_mean"][:, None, None]) * scale[:, None, None]
        x = x + state[f"{norm}.bias"][:, None, None]
        return x if linear else x.clamp(0, 6)

    strides = [1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1]
    x = layer(images, "features.0.0", "features.0.1", 2)
    for index, stride in enumerate(strides, start=1):
        name = f"features.{index}.conv"
        out, first = x, 0
        if index > 1:
            out, first = layer(x, f"{name}.0.0", f"{name}.0.1"), 1
        out = layer(out, f"{name}.{first}.0", f"{name}.{first}.1", stride)
        out = layer(out, f"{name}.{first + 1}", f"{name}.{first + 2}", linear=True)
        x = x + out if x.shape == out.shape else out
    return layer(x, "features.18.0", "features.18.1").mean((2, 3))


@pytest.mark.parametrize("size", [64, 75])
def test_it_computes_what_the_paper_says(size: int) -> None:
    torch.manual_seed(0)
    network = mobilenet_v2.build().eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, -0.5, 0.5)
    images = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        found, expected = network(images), by_hand(network.state_dict(), images)
    assert found.shape == (2, FEATURES)
    assert expected.std() > 0.01
    assert torch.allclose(found, expected, atol=1e-4)
