"""The passes through captured graphs, on a Hopper GPU (make test-gpu)."""

import pytest
import torch

from ebpl.kernels import FastNetwork, fast_network
from tests.helpers import architecture
from tests.kernels.on_gpu import NEEDS_HOPPER

pytestmark = NEEDS_HOPPER


@pytest.mark.parametrize(("size", "stages"), [(64, 4), (128, 5), (96, 4), (64, 3)])
def test_larger_images_have_the_features_and_gradients_of_the_network(size: int, stages: int) -> None:
    device, shape = torch.device("cuda"), (3, size, size)
    made = architecture(depth=16, width=4, stages=stages, shape=shape, classes=8)
    model = made.build().initialise(torch.Generator().manual_seed(1)).to(device)
    fast = fast_network(model.features, shape, device, torch.bfloat16, images=7)
    assert isinstance(fast, FastNetwork)
    assert model.gaussian is not None
    fast.refresh()
    x = torch.rand(7, *shape, generator=torch.Generator().manual_seed(2)).to(device) * 2 - 1

    def near(found: torch.Tensor, expected: torch.Tensor, within: float = 0.1) -> None:
        assert found.shape == expected.shape
        assert ((found - expected).norm() / expected.norm()).item() < within  # of bfloat16 after many layers

    features = model.features(x)
    near(fast.forth(x)[0], features, 0.01)
    images = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(images)[1].sum(), images)
    near(fast.energy_gradient(model.gaussian)(x), expected)
    weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(3)).to(device)
    parameters = list(model.features.parameters())
    found = torch.autograd.grad((fast(x) * weight).sum(), parameters)
    for one, other in zip(found, torch.autograd.grad((features * weight).sum(), parameters), strict=True):
        near(one, other)


class Pass:
    """The energy's gradient for fixed images, captured on a stream of its own."""

    def __init__(self, depth: int, width: int, size: int, stages: int = 3) -> None:
        device = torch.device("cuda")
        made = architecture(depth=depth, width=width, stages=stages, shape=(3, size, size), classes=10)
        model = made.build().initialise(torch.Generator().manual_seed(1)).to(device)
        fast = fast_network(model.features, (3, size, size), device, torch.bfloat16)
        assert isinstance(fast, FastNetwork)
        assert model.gaussian is not None
        fast.refresh()
        gradient = fast.energy_gradient(model.gaussian)
        x = torch.randn(64, 3, size, size, device=device).to(memory_format=torch.channels_last)
        self.stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            gradient(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.result = gradient(x)
        self.read_by_the_graph = fast, x, gradient

    def replay(self) -> None:
        with torch.cuda.stream(self.stream):
            self.graph.replay()


@pytest.mark.parametrize(("size", "stages"), [(32, 3), (28, 3), (128, 4)])
def test_replays_give_the_same_bits_every_time_alone_and_beside_others(size: int, stages: int) -> None:
    passes = [Pass(depth, width, size, stages) for depth, width in ((16, 4), (28, 2), (16, 10))]
    first = []
    for each in passes:
        each.replay()
        torch.cuda.synchronize()
        first.append(each.result.clone())
        assert each.result.isfinite().all()
    different = torch.zeros(len(passes), device="cuda")
    for _ in range(2000):
        for i, each in enumerate(passes):
            each.replay()
            with torch.cuda.stream(each.stream):
                different[i] += (each.result != first[i]).any()
    torch.cuda.synchronize()
    assert different.tolist() == [0.0] * len(passes)
