import time
from pathlib import Path

import ebpl
from ebpl.config.presets import preset
from ebpl.training.relabel import phases
from ebpl.training.time_budget import time_training
from tests.helpers import blobs, quick


def test_all_updates_of_the_schedule_are_counted() -> None:
    settings = preset("quick", epochs=3, curriculum__steps=2, curriculum__epochs=2, optim__updates_per_epoch=50)
    timing = time_training(blobs(), settings, seconds=0.01)
    assert timing.updates == 50 * sum(phase.epochs for phase in phases(settings)) == 350
    assert 3 <= timing.timed < 50
    assert timing.seconds > timing.updates * timing.update > 0


def test_the_time_told_is_near_the_time_taken() -> None:
    settings = quick(epochs=40, pseudo_labels="none")
    timing = time_training(blobs(), settings, seconds=0.5)
    start = time.perf_counter()
    ebpl.train(blobs(), settings, run="run")
    assert 0.2 < timing.seconds / (time.perf_counter() - start) < 5  # others use the same cores


def test_a_training_shorter_than_the_trial_is_timed_whole() -> None:
    settings = quick(epochs=1, pseudo_labels="none", method="curriculum-labeling")
    timing = time_training(blobs(60), settings, seconds=60)
    assert timing.timed == timing.updates
    assert timing.seconds < 30


def test_nothing_is_left_behind() -> None:
    time_training(blobs(), quick(), seconds=0.01)
    assert not list(Path().iterdir())
