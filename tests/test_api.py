import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl import api
from ebpl.errors import DataError, RunError, UsageError
from ebpl.reporting.progress import Silent
from tests.helpers import blobs, class_folders, quick


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ebpl.Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    return ebpl.train("digits", quick(method="curriculum-labeling", pseudo_labels="none"), run=path)


def test_evaluating_again_gives_the_metrics_of_the_run(run: ebpl.Run) -> None:
    again, stored = ebpl.evaluate(run), run.metrics()["metrics"]
    assert again.keys() == stored.keys()
    for name in again:
        assert again[name] == pytest.approx(stored[name], abs=1e-6), name


def test_evaluate_and_measure_agree_with_predict(run: ebpl.Run) -> None:
    test = ebpl.load("digits").test
    assert test is not None
    model, _ = run.load_model()
    assert ebpl.measure(ebpl.predict(model, test.pixels).probabilities, test.labels) == ebpl.evaluate(run.path)


def test_other_data_is_measured_by_class_name(run: ebpl.Run) -> None:
    digits = ebpl.load("digits")
    assert digits.test is not None
    keep = np.isin(digits.test.labels, [3, 7])
    part = digits.test.take(np.flatnonzero(keep))
    renumbered = dataclasses.replace(part, labels=np.where(part.labels == 3, 0, 1))
    other = ebpl.ImageSet("three and seven", ("3", "7"), renumbered)
    model, _ = run.load_model()
    expected = ebpl.measure(ebpl.predict(model, part.pixels).probabilities, part.labels)
    assert ebpl.evaluate(run, other) == expected


def test_unknown_classes_and_sizes_are_refused(run: ebpl.Run) -> None:
    digits = ebpl.load("digits")
    named = dataclasses.replace(digits, classes=(*"012345678", "nine"))
    with pytest.raises(DataError, match="does not know: nine"):
        ebpl.evaluate(run, named)
    larger = ebpl.from_arrays(np.zeros((2, 9, 9), np.uint8), [0, 1])
    with pytest.raises(DataError, match="9 x 9 pixels, the model was trained on 8 x 8"):
        ebpl.evaluate(run, larger)


def test_data_without_test_images_trains_and_says_how_to_evaluate(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "pets")
    run = ebpl.train(folder, quick(method="curriculum-labeling", pseudo_labels="none"), run="run")
    assert run.metrics()["metrics"] is None
    with pytest.raises(DataError, match="ebpl evaluate run DATA"):
        ebpl.evaluate(run)
    assert ebpl.evaluate(run, folder)["images"] == 8
    one_class = tmp_path / "dogs only"
    one_class.mkdir()
    (folder / "dogs").rename(one_class / "dogs")
    assert ebpl.evaluate(run, one_class)["images"] == 4
    nothing = tmp_path / "nothing labelled"
    nothing.mkdir()
    (folder / "unlabeled").rename(nothing / "unlabeled")
    with pytest.raises(DataError, match="no labelled image"):
        ebpl.evaluate(run, nothing)


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
    assert ebpl.Run("run").settings.epochs == 1
    assert run.settings.method == "curriculum-labeling"


def test_nothing_is_created_when_the_data_does_not_fit() -> None:
    with pytest.raises(DataError, match="labels per class"):
        ebpl.train(blobs(), quick(labels_per_class=50), run="run")
    assert not Path("run").exists()


def test_data_that_is_only_for_testing_can_be_measured_on(run: ebpl.Run, tmp_path: Path) -> None:
    test = ebpl.load("digits").test
    assert test is not None
    np.savez(tmp_path / "test.npz", test_images=test.pixels, test_labels=test.labels)
    assert ebpl.evaluate(run, tmp_path / "test.npz") == ebpl.evaluate(run)
    with pytest.raises(DataError, match="no training images"):
        ebpl.train(tmp_path / "test.npz", quick(), run="run")


def test_numbers_are_never_taken_for_names(tmp_path: Path) -> None:
    # folders are numbered in the order of the alphabet, which need not be the order of somebody's arrays
    folder = class_folders(tmp_path / "pets")
    run = ebpl.train(folder, quick(method="curriculum-labeling", pseudo_labels="none"), run="run")
    data = ebpl.load(folder)
    labeled = data.train.take(np.flatnonzero(data.train.labeled))
    with pytest.raises(DataError, match=r"does not know: 0, 1.*classes="):
        ebpl.evaluate(run, ebpl.from_arrays(labeled.pixels, labeled.labels))
    named = ebpl.from_arrays(labeled.pixels, 1 - labeled.labels, classes=("dogs", "cats"))
    assert ebpl.evaluate(run, named) == ebpl.evaluate(run, folder)


def test_a_preset_can_be_named() -> None:
    run = ebpl.train(blobs(), preset="quick", method="curriculum-labeling", pseudo_labels="none", epochs=1, run="run")
    assert run.settings.sgld_steps == 5
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

    load = ebpl.data.load.load
    monkeypatch.setattr("ebpl.api.load", counted)
    monkeypatch.setattr("ebpl.data.load.load", counted)
    runs = ebpl.train_seeds("digits", range(3), settings, run="seeds")
    assert len(loads) == 1
    for run in runs[:2]:
        (run.path / "test_metrics.json").unlink()
    assert all(run.finished for run in ebpl.resume_all(runs))
    assert len(loads) == 2


def test_no_seed_finished_is_told_when_measuring() -> None:
    from ebpl.api import evaluation_of_seeds

    ebpl.Run.create_for_seeds("seeds", quick(), [0, 1], blobs(), {})
    with pytest.raises(RunError, match=r"No seed in seeds is finished\. Continue with: ebpl resume seeds"):
        evaluation_of_seeds(Path("seeds"))


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


def test_seeds_that_are_broken_or_gone_are_named_beside_the_others() -> None:
    runs = ebpl.train_seeds(blobs(), [0, 1, 2], quick(epochs=1, pseudo_labels="none"), run="seeds")
    (runs[1].path / "best.safetensors").write_bytes(b"no weights")
    shutil.rmtree(runs[2].path)
    found = api.evaluation_of_seeds(Path("seeds"), blobs())
    assert list(found["seeds"]) == [0]
    assert "remove the file" in found["broken"][1]
    assert found["lost"] == [2]
