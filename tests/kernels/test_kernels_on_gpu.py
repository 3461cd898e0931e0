"""The passes through captured graphs, on a Hopper GPU (make test-gpu)."""

import pytest
import torch

from ebpl.kernels import FastNetwork, fast_network
from tests.helpers import architecture
from tests.kernels.on_gpu import NEEDS_HOPPER

pytestmark = NEEDS_HOPPER


class Pass:
    """The energy's gradient for fixed images, captured on a stream of its own."""

    def __init__(self, depth: int, width: int, size: int) -> None:
        device = torch.device("cuda")
        made = architecture(depth=depth, width=width, shape=(3, size, size), classes=10)
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


@pytest.mark.parametrize("size", [32, 28])
def test_replays_give_the_same_bits_every_time_alone_and_beside_others(size: int) -> None:
    passes = [Pass(16, 4, size), Pass(28, 2, size), Pass(16, 10, size)]
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
