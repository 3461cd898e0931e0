import torch

from benchmarks.training import Training
from ebpl.config import Settings
from ebpl.models import Architecture
from ebpl.training.divergence import CHECK_EVERY


def test_a_call_is_one_update_of_each_seed() -> None:
    sizes = {"sgld.steps": 1, "sgld.chains": 4, "sgld.buffer_size": 20}
    settings = Settings().changed(sizes, depth=10, width=1, batch_size=4)
    images = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8)
    architecture = Architecture.of(settings.model, (3, 8, 8), 2, density=True)
    training = Training(architecture, images, torch.eye(2)[torch.arange(10) % 2], settings, torch.float32, seeds=2)
    updates = 2 * CHECK_EVERY + 1
    for _ in range(updates):
        training()
    states = [seed.state for _, seed in training.turns]
    for state in states:
        assert state.ema_updates == updates
        assert all(moments["step"] == updates for moments in state.optimizer.state.values())
        assert state.is_finite()
    first, second = (next(state.model.parameters()) for state in states)
    assert not torch.equal(first, second)
