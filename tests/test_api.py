import json
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.errors import DataError, RunError, UsageError
from ebpl.terminal import Silent
from tests.helpers import blobs, quick


def test_a_finished_run_is_resumed_as_it_is(run: ebpl.Run) -> None:
    before = (run.path / "metrics.csv").stat().st_mtime_ns
    assert ebpl.resume(run.path).finished
    assert (run.path / "metrics.csv").stat().st_mtime_ns == before


def test_arrays_must_be_given_again_to_resume() -> None:
    run = ebpl.Run.create("run", quick(), blobs(), {})
    with pytest.raises(RunError, match=r"Give them again as data="):
        ebpl.resume(run)
    assert ebpl.resume(run, data=blobs()).finished


def test_settings_can_be_changed_by_name() -> None:
    run = ebpl.train(blobs(), quick(), run="run", method="curriculum-labeling", pseudo_labels="none", epochs=1)
    assert ebpl.Run("run").settings.optim.epochs == 1
    assert run.settings.method == "curriculum-labeling"


def test_nothing_is_created_when_the_data_does_not_fit() -> None:
    with pytest.raises(DataError, match="labels per class"):
        ebpl.train(blobs(), quick(labels_per_class=50), run="run")
    assert not Path("run").exists()


def test_data_that_is_only_for_testing_is_not_trained_on() -> None:
    test = blobs().test
    assert test is not None
    np.savez("test.npz", test_images=test.pixels, test_labels=test.labels)
    with pytest.raises(DataError, match="no training images"):
        ebpl.train("test.npz", quick(), run="run")
    assert not Path("run").exists()


def test_a_preset_can_be_named() -> None:
    run = ebpl.train(blobs(), preset="quick", method="curriculum-labeling", pseudo_labels="none", epochs=1, run="run")
    assert run.settings.sgld.steps == 5
    assert repr(run) == "Run('run': curriculum-labeling on blobs, finished)"
    with pytest.raises(UsageError, match="not both"):
        ebpl.train(blobs(), quick(), preset="quick")


def test_a_run_goes_on_with_the_threads_it_was_started_with() -> None:
    import torch

    before = torch.get_num_threads()
    run = ebpl.Run.create("run", quick(method="curriculum-labeling", pseudo_labels="none"), blobs(), {})
    environment = run.environment()
    (run.path / "environment.json").write_text(json.dumps({**environment, "threads": before + 1, "device": "cuda"}))
    seen = []

    class Watch(Silent):
        def say(self, text: str) -> None:
            seen.append(text)

        def epoch(self, line: str) -> None:
            assert torch.get_num_threads() == before + 1

    ebpl.resume(run, data=blobs(), progress=Watch())
    assert torch.get_num_threads() == before
    assert "The run was started with device cuda and goes on here with cpu." in seen or torch.cuda.is_available()


def test_seeds_that_make_no_sense_leave_no_folder_behind() -> None:
    for seeds, message in (([0, 0], "more than once"), ([], "at least one"), ([-1], "seed is -1")):
        with pytest.raises(UsageError, match=message):
            ebpl.train_seeds(blobs(), seeds, quick(), run="seeds")
    with pytest.raises(UsageError, match="not both"):
        ebpl.train_seeds(blobs(), [0], quick(), run="seeds", seed=1)
    with pytest.raises(DataError, match="labels per class"):
        ebpl.train_seeds(blobs(), [0, 1], quick(labels_per_class=50), run="seeds")
    assert not Path("seeds").exists()


def test_data_of_several_runs_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick(method="curriculum-labeling", pseudo_labels="none", epochs=1)
    loads = []

    def counted(*arguments: object, **options: object) -> ebpl.ImageSet:
        loads.append(arguments)
        return load(*arguments, **options)

    load = ebpl.data.load
    monkeypatch.setattr("ebpl.api.load", counted)
    monkeypatch.setattr("ebpl.data.load", counted)
    runs = ebpl.train_seeds("digits", range(3), settings, run="seeds")
    assert len(loads) == 1
    for run in runs[:2]:
        (run.path / "test_metrics.json").unlink()
    assert all(run.finished for run in ebpl.resume_all(runs))
    assert len(loads) == 2


def test_a_folder_of_seeds_is_resumed_as_it_is_named() -> None:
    runs = ebpl.train_seeds(blobs(), "0-1", quick(epochs=1, pseudo_labels="none"), run="seeds")
    assert [run.path.name for run in runs] == ["seed-0", "seed-1"]
    for named in ("seeds", Path("seeds"), [Path("seeds/seed-0"), "seeds/seed-1"], runs):
        assert [run.path for run in ebpl.resume_all(named, data=blobs())] == [run.path for run in runs]
    with pytest.raises(UsageError, match="must be several"):
        ebpl.train_seeds(blobs(), 3, quick(), run="more")  # type: ignore[arg-type]


def test_lost_weights_are_written_anew_from_the_checkpoint() -> None:
    run = ebpl.train(blobs(), quick(epochs=2, pseudo_labels="none"), run="run")
    weights = (run.path / "best.safetensors").read_bytes()
    (run.path / "best.safetensors").unlink()
    assert not run.finished
    assert (ebpl.resume(run, data=blobs()).path / "best.safetensors").read_bytes() == weights
