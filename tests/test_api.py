import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl import api
from ebpl.errors import DataError, RunError, SomeFailedError, UsageError
from ebpl.inference.evaluate import evaluation
from ebpl.io import finite
from ebpl.terminal import Silent
from ebpl.training.distributed import Ranks
from tests.helpers import blobs, quick, result


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
    then = 1 if before > 1 else 2
    (run.path / "environment.json").write_text(json.dumps({**environment, "threads": then, "device": "cuda"}))
    seen = []

    class Watch(Silent):
        def say(self, text: str) -> None:
            seen.append(text)

        def epoch(self, line: str) -> None:
            assert torch.get_num_threads() == min(then, max(before, os.cpu_count() or 1))

    ebpl.resume(run, data=blobs(), progress=Watch())
    assert torch.get_num_threads() == before
    assert "The run was started with device cuda and continues here with cpu." in seen or torch.cuda.is_available()


def test_seeds_that_make_no_sense_leave_no_folder_behind() -> None:
    for seeds, message in (([0, 0], "more than once"), ([], "at least one"), ([-1], "seed is -1")):
        with pytest.raises(UsageError, match=message):
            ebpl.train(blobs(), quick(), seeds=seeds, run="seeds")
    with pytest.raises(UsageError, match="not both"):
        ebpl.train(blobs(), quick(), seeds=[0], run="seeds", seed=1)
    with pytest.raises(UsageError, match="not both"):
        ebpl.train(blobs(), quick(), seeds=[0], run="seeds", set={"seed": 1})
    with pytest.raises(UsageError, match="trained on one device"):
        ebpl.train(blobs(), quick(), seeds=[0, 1], run="seeds", devices=2)
    with pytest.raises(DataError, match="labels per class"):
        ebpl.train(blobs(), quick(labels_per_class=50), seeds=[0, 1], run="seeds")
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
    runs = ebpl.train("digits", settings, seeds=range(3), run="seeds")
    assert len(loads) == 1
    for run in runs[:2]:
        (run.path / "test_metrics.json").unlink()
    assert all(run.finished for run in ebpl.resume(runs))
    assert len(loads) == 2


def test_a_folder_of_seeds_is_resumed_as_it_is_named() -> None:
    runs = ebpl.train(blobs(), quick(epochs=1, pseudo_labels="none"), seeds="0-1", run="seeds")
    assert [run.path.name for run in runs] == ["seed-0", "seed-1"]
    for named in ("seeds", Path("seeds"), [Path("seeds/seed-0"), "seeds/seed-1"], ["seeds"], runs):
        assert [run.path for run in ebpl.resume(named, data=blobs())] == [run.path for run in runs]
    assert ebpl.resume("seeds/seed-1").path == runs[1].path
    assert [run.path for run in ebpl.resume([runs[1]])] == [runs[1].path], "a list is answered with a list"
    with pytest.raises(UsageError, match="must be several"):
        ebpl.train(blobs(), quick(), seeds=3, run="more")  # type: ignore[arg-type]


def test_several_seeds_end_as_each_of_them_alone() -> None:
    settings = quick(epochs=1, curriculum__steps=1)
    together = ebpl.train(blobs(), settings, seeds=[3, 1], run="seeds")
    assert [run.settings.seed for run in together] == [3, 1]
    for run in together:
        alone = ebpl.train(blobs(), settings, run=f"alone-{run.settings.seed}", seed=run.settings.seed)
        assert result(run.path) == result(alone.path)


def test_seeds_that_were_only_begun_are_resumed_by_their_folder_and_by_a_list() -> None:
    settings = quick(epochs=1, curriculum__steps=1)
    whole = [result(run.path) for run in ebpl.train(blobs(), settings, seeds="0-1", run="whole")]
    for folder in ("by folder", "by list"):
        begun = ebpl.Run.create_for_seeds(folder, settings, [0, 1], blobs(), {})
        runs = ebpl.resume(folder if folder == "by folder" else begun, data=blobs())
        assert [result(run.path) for run in runs] == whole


HOLDOUT = {"curriculum.calibration_holdout": 0.4}


@pytest.mark.parametrize("changes", [{"seed": 1}, HOLDOUT, {"method": "curriculum-labeling"}], ids=str)
def test_the_finished_model_is_evaluated_from_memory(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("weights were read from the disk")

    for name, value in {"MIN_HOLDOUT": 1, "EVIDENCE": 0.0, "MAX_DRIFT": float("inf")}.items():
        monkeypatch.setattr(f"ebpl.calibration.{name}", value)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ebpl.runs.load_model", "ebpl.models.weights.load_model", "safetensors.safe_open"):
            patch.setattr(name, refused)
        run = ebpl.train("digits", quick(epochs=1, curriculum__steps=2), set=changes, run="run")
        with pytest.raises(AssertionError, match="read from the disk"):
            run.load_model()
    found = evaluation(run)
    stored = run.metrics()
    assert found["metrics"] == stored["metrics"] == ebpl.evaluate(run)
    assert finite(found["reliability"]) == stored["reliability"]
    assert found["chosen"] == stored["chosen"]
    assert (changes == HOLDOUT) == (stored.get("check") is not None and stored["check"]["temperature"] != 1)
    assert (stored["metrics"] != stored["last"]["metrics"]) == (stored["chosen"]["phase"] != "step 2 of 2")


class Second(Ranks):
    """A process that another one tells what it has done."""

    @property
    def is_first(self) -> bool:
        return False

    def first(self, work: Callable[[], object]) -> None:
        return None


def test_a_process_that_is_not_the_first_writes_nothing() -> None:
    run = ebpl.Run.create("run", quick(epochs=1, curriculum__steps=1), blobs(), {}, processes=2)
    before = {path: path.read_bytes() for path in run.path.rglob("*")}
    for _ in api._training(run, blobs(), Silent(), Second()):
        pass
    assert {path: path.read_bytes() for path in run.path.rglob("*")} == before


def test_lost_weights_are_written_anew_from_the_checkpoint() -> None:
    run = ebpl.train(blobs(), quick(epochs=2, pseudo_labels="none"), run="run")
    weights = (run.path / "best.safetensors").read_bytes()
    (run.path / "best.safetensors").unlink()
    assert not run.finished
    assert (ebpl.resume(run, data=blobs()).path / "best.safetensors").read_bytes() == weights


@pytest.mark.parametrize("threads", [6000, 10**11])
def test_a_foreign_run_starts_no_more_threads_than_the_machine_has(threads: int) -> None:
    import torch

    run = ebpl.Run.create("run", quick(method="curriculum-labeling", pseudo_labels="none"), blobs(), {})
    (run.path / "environment.json").write_text(json.dumps({**run.environment(), "threads": threads}))
    most = max(os.cpu_count() or 1, torch.get_num_threads())
    if threads > 10**6:
        with pytest.raises(RunError, match=r"environment.json is damaged.*threads is 100000000000"):
            ebpl.resume(run, data=blobs())
        return

    class Watch(Silent):
        def epoch(self, line: str) -> None:
            assert torch.get_num_threads() <= most

    assert ebpl.resume(run, data=blobs(), progress=Watch()).finished


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best.safetensors", "damaged"),
        ("test_metrics.json", "damaged"),
        ("environment.json", "damaged"),
        ("details.npz", "details.npz is damaged"),
    ],
)
def test_a_finished_run_with_a_damaged_file_is_not_resumed_as_if_it_were_whole(
    run: ebpl.Run, name: str, message: str
) -> None:
    path = run.path / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RunError, match=message):
        ebpl.resume(run.path)
    with pytest.raises(SomeFailedError, match=message):
        ebpl.resume([run.path, shutil.copytree(run.path, "other")])


def test_a_finished_run_whose_table_is_gone_says_so(run: ebpl.Run) -> None:
    (run.path / "metrics.csv").unlink()
    with pytest.raises(RunError, match=r"run is finished, but metrics.csv is missing"):
        ebpl.resume(run.path)


def test_a_finished_run_without_weights_and_checkpoints_is_not_trained_again_without_a_word(run: ebpl.Run) -> None:
    (run.path / "best.safetensors").unlink()
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(RunError, match=r"was finished, but best\.safetensors is gone"):
        ebpl.resume(run.path, data=blobs())


def test_nothing_is_downloaded_because_a_run_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("ebpl.data.benchmarks.fetch", lambda *given: asked.append(given))
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").resolve()))
    monkeypatch.delenv("EBPL_DATA", raising=False)
    run = ebpl.Run.create("run", quick(), blobs(), {"path": "cifar10"})
    for where in (None, "elsewhere"):
        with pytest.raises(DataError, match=rf"CIFAR-10 is not here[\s\S]*{where or 'cache'}[\s\S]*--data-dir"):
            ebpl.resume(run, data_dir=where)
    assert not asked


def test_a_time_limit_is_given_as_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebpl.api._train_one", lambda *arguments: arguments)
    assert 480.0 in ebpl.train("digits", time_limit="8m")
    for wrong in ("banana", 0, -1, "nan"):
        with pytest.raises(UsageError, match=r"time_limit: .* is not a time\. Give for instance 90"):
            ebpl.train("digits", time_limit=wrong)


def test_a_class_mix_that_cannot_be_read_stops_before_a_run_is_made() -> None:
    with pytest.raises(UsageError, match="must be auto, labels, balanced, or an existing CSV"):
        ebpl.train(blobs(), quick(data__class_mix="gone.csv"), run="run")
    Path("mix.csv").write_text("0,1\n1,1\n")
    with pytest.raises(DataError, match="no share for 2"):
        ebpl.train(blobs(), quick(data__class_mix="mix.csv"), run="run")
    assert not Path("run").exists()
