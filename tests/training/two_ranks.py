"""What `test_distributed` runs in two processes: each writes down what it has seen."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import torch

from ebpl.config import Settings
from ebpl.errors import RunError
from ebpl.methods import get_method
from ebpl.models.predictions import predict, predict_with_features
from ebpl.models.weights import describe_model
from ebpl.runs import Run
from ebpl.training import checkpoint
from ebpl.training.callbacks import RunWriter
from ebpl.training.distributed import Ranks, features_together, join, predict_together
from ebpl.training.trainer import Trainer
from tests.helpers import blobs, quick, trainer_of

WITHOUT_NOISE = quick(
    learning_rate=1e-4,  # at a high one the last digits, which the order of additions changes, grow within an epoch
    batch_size=8,
    sgld__chains=16,
    sgld__buffer_size=16,  # as many as chains: which one is drawn is no matter of chance
    data__pixel_noise=0.0,
    sgld__noise=0.0,
    sgld__restart_probability=0.0,
    augment="none",
    validation_fraction=0.3,
    labels_per_class=4,
    curriculum__steps=1,
    device="cpu",
    runtime__checkpoint_seconds=1000.0,  # only at the end of each phase
)

DATA = blobs(unlabeled=False)


def trained(settings: Settings, path: Path, ranks: Ranks) -> Trainer:
    return finished(ranks.first(lambda: Run.create(path, settings, DATA, {})), ranks)


def finished(run: Run, ranks: Ranks) -> Trainer:
    trainer = trainer_of(run.settings, DATA, ranks=ranks)
    if ranks.is_first:
        trainer.callbacks = [RunWriter(run, describe_model(trainer.state.model, DATA))]
    trainer.train(ranks.first(lambda: checkpoint.load(run.checkpoints, print)))
    return trainer


def interrupted(finished: Path, path: Path) -> Run:
    """A copy of a run as if it had been killed in its second phase."""
    shutil.copytree(finished, path)
    after_first, after_second = sorted((path / "checkpoints").glob("*.pt"))
    assert after_first.name.startswith("epoch-000002")
    after_second.unlink()
    return Run(path)


def collectives(ranks: Ranks) -> dict[str, object]:
    pair = [torch.full((2, 3), float(ranks.index)), torch.full((2, 2, 2, 2), 10.0 * ranks.index)]
    pair[1] = pair[1].contiguous(memory_format=torch.channels_last)
    ranks.mean_(pair)
    return {
        "mean": pair,
        "gathered": ranks.gather(torch.arange(2) + 10 * ranks.index),
        "own": torch.arange(8)[ranks.own(8)],
        "everywhere": [ranks.everywhere(True), ranks.everywhere(ranks.is_first), ranks.everywhere(False)],
        "first": ranks.first(lambda: ["from", ranks.index]),
        "failed": failure(ranks),
    }


def failure(ranks: Ranks) -> tuple[str, int]:
    def fail() -> None:
        raise RunError("the first process tells")

    try:
        ranks.first(fail)
    except RunError as error:
        return type(error).__name__, error.exit_code
    raise AssertionError


def weights_hash(trainer: Trainer) -> str:
    named = {name: tensor for name, tensor in trainer.state.tensors().items() if name != "buffer"}
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in named.values())).hexdigest()


def main(folder: Path) -> None:
    ranks = join(WITHOUT_NOISE, get_method(WITHOUT_NOISE.method).terms(WITHOUT_NOISE))
    seen = collectives(ranks)
    quiet = trained(WITHOUT_NOISE, folder / "quiet", ranks)
    with_noise = WITHOUT_NOISE.changed(sgld__noise=0.01, data__pixel_noise=0.03, sgld__chains=8)
    noisy = trained(with_noise, folder / "noisy", ranks)
    resumed = finished(Run(folder / "started-by-one"), ranks)
    model, images = noisy.state.predictor, noisy.training_set.inputs[:-1]
    together, alone = predict_together(model, images, torch.float32, ranks), predict(model, images)
    seen |= {
        "weights": [weights_hash(quiet), weights_hash(noisy)],
        "history": quiet.state.progress.history,
        "resumed": resumed.state.with_all_chains(resumed.state.snapshot())["tensors"],
        "chains": noisy.state.tensors()["buffer"],
        "predictions": [(p.probabilities, p.energies) for p in (together, alone)],
        "features": [
            features_together(model, images, torch.float32, ranks),
            predict_with_features(model, images)[1],
        ],
        "processes": os.environ["WORLD_SIZE"],
        "fabric": sorted(name for name in sys.modules if name.startswith("lightning")),
    }
    torch.save(seen, folder / f"rank-{ranks.index}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
