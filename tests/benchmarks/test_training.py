import torch

from benchmarks.training import Training
from ebpl.config import Settings
from ebpl.models import Architecture
from ebpl.training.training_set import Pool


def test_a_call_is_one_update_of_each_seed() -> None:
    settings = Settings(sgld__steps=1, batch_size=4, sgld__chains=4, sgld__buffer_size=20, guard_every=2)
    pool = Pool(torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8), torch.eye(2)[torch.arange(10) % 2])
    training = Training(Architecture(10, 1, 3, 2, "diagonal"), pool, settings, torch.float32, seeds=2)
    for _ in range(5):
        training()
    learners = [seed.learner for _, seed in training.turns]
    for learner in learners:
        assert learner.averaged_updates == 5
        assert all(state["step"] == 5 for state in learner.optimizer.state.values())
        assert learner.is_finite()
    assert not torch.equal(learners[0].model.features.stem.weight, learners[1].model.features.stem.weight)
