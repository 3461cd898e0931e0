import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import label_binarize

import ebpl
from ebpl.cli import main
from ebpl.data.benchmarks import BENCHMARKS
from ebpl.data.dataset import Images
from ebpl.errors import DataError, RunError
from ebpl.inference import evaluate as evaluating
from ebpl.inference.evaluate import SET_COVERAGE, _classes, evaluation, evaluation_of_seeds
from ebpl.inference.sources import as_trained, load_for
from ebpl.metrics.classification import wilson_interval
from ebpl.models.predictions import predict
from ebpl.runs import WEIGHTS, Run
from ebpl.runs.reader import read_training_digests
from tests.helpers import blobs, class_folders, quick, random_images, write_png

BASELINE = {"method": "curriculum-labeling", "pseudo_labels": "none"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ebpl.train("digits", quick(**BASELINE), run=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained on a folder of cats and dogs, all of which are training images."""
    folder = tmp_path_factory.mktemp("runs")
    return ebpl.train(class_folders(folder / "pets"), quick(**BASELINE), run=folder / "run")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three seeds."""
    folder = tmp_path_factory.mktemp("runs") / "seeds"
    ebpl.train("digits", quick(**BASELINE, epochs=1), seeds=[0, 1, 2], run=folder)
    return folder


@pytest.fixture
def seeds(three: Path) -> Path:
    return Path(shutil.copytree(three, "seeds"))


def digits() -> Images:
    """The test images that `run` is measured on."""
    test = ebpl.load("digits").test
    assert test is not None
    return test


def scores_by_hand(run: Run, pixels: np.ndarray) -> torch.Tensor:
    """What the model alone says, of pixels made into numbers as its file says."""
    model, _ = run.load_model()
    with torch.no_grad():
        scores, _ = model(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1)
    return scores.double()


def test_the_measures_are_those_that_others_compute_from_the_predictions(run: Run) -> None:
    test = digits()
    scores, labels = scores_by_hand(run, test.pixels), test.labels
    probabilities = torch.softmax(scores, 1).numpy()
    answers, classes = probabilities.argmax(1), np.arange(10)
    measured = ebpl.evaluate(run)
    assert measured["images"] == len(labels)
    assert measured["accuracy"] == pytest.approx(accuracy_score(labels, answers))
    assert measured["f_score"] == pytest.approx(f1_score(labels, answers, average="macro"))
    distances = np.square(probabilities - label_binarize(labels, classes=classes)).sum(1)
    assert measured["brier"] == pytest.approx(distances.mean(), rel=1e-4)
    # not scikit-learn's log_loss, which takes no probability below 2e-16 for what it is
    likelihood = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
    assert measured["nll"] == pytest.approx(likelihood.item(), rel=1e-4)
    surplus = probabilities.max(1).mean() - accuracy_score(labels, answers)
    assert measured["overconfidence"] == pytest.approx(surplus, abs=1e-5)
    assert 0.2 < measured["accuracy"] < 1, "a model that is always right or never would hide a mistake here"


def test_evaluating_again_gives_the_metrics_of_the_run(run: Run) -> None:
    again, stored = ebpl.evaluate(run), run.metrics()["metrics"]
    assert again.keys() == stored.keys()
    for name in again:
        assert again[name] == pytest.approx(stored[name], abs=1e-6), name


def test_evaluate_and_measure_agree_with_predict(run: Run) -> None:
    test = digits()
    model, _ = run.load_model()
    assert ebpl.measure(predict(model, test.pixels).probabilities, test.labels) == ebpl.evaluate(run.path)


def test_the_bins_hold_every_image_and_their_gaps_are_the_calibration_error(run: Run) -> None:
    found = evaluation(run)
    bins = [row for row in found["reliability"] if row["images"]]
    count = found["metrics"]["images"]
    assert sum(row["images"] for row in bins) == count
    gaps = [row["images"] * abs(row["accuracy"] - row["confidence"]) for row in bins]
    assert sum(gaps) / count == pytest.approx(found["metrics"]["ece"])
    assert sum(row["images"] * row["accuracy"] for row in bins) / count == pytest.approx(found["metrics"]["accuracy"])
    assert found["chosen"] == run.metrics()["chosen"]


def test_other_data_is_measured_by_class_name(run: Run) -> None:
    test = digits()
    part = test.take(np.flatnonzero(np.isin(test.labels, [3, 7])))
    renumbered = dataclasses.replace(part, labels=np.where(part.labels == 3, 0, 1))
    other = ebpl.ImageSet("three and seven", ("3", "7"), renumbered)
    model, _ = run.load_model()
    expected = ebpl.measure(predict(model, part.pixels).probabilities, part.labels)
    assert ebpl.evaluate(run, other) == expected


def test_classes_in_another_order_give_the_same_measures(run: Run) -> None:
    test, order = digits(), np.random.default_rng(0).permutation(10)
    names, numbers = tuple(str(label) for label in order), np.argsort(order)[test.labels]
    assert (numbers != test.labels).mean() > 0.5
    assert ebpl.evaluate(run, ebpl.from_arrays(test.pixels, numbers, classes=names)) == ebpl.evaluate(run)


def test_numbers_are_never_taken_for_names(pets: Run) -> None:
    # folders are numbered in the order of the alphabet, which need not be the order of somebody's arrays
    data = pets.load_data()
    labeled = data.train.take(np.flatnonzero(data.train.labeled))
    with pytest.raises(DataError, match=r"does not know: 0, 1.*classes="):
        ebpl.evaluate(pets, ebpl.from_arrays(labeled.pixels, labeled.labels))
    named = ebpl.from_arrays(labeled.pixels, 1 - labeled.labels, classes=("dogs", "cats"))
    assert ebpl.evaluate(pets, named) == ebpl.evaluate(pets, data)


def test_images_without_a_label_keep_having_none(run: Run) -> None:
    test = digits()
    some = np.where(np.arange(len(test)) % 3, test.labels, -1)
    part = test.take(np.flatnonzero(some >= 0))
    found = ebpl.evaluate(run, ebpl.from_arrays(test.pixels, some))
    assert found["images"] == len(part)
    assert found == ebpl.evaluate(run, ebpl.from_arrays(part.pixels, part.labels))


def test_the_test_images_of_other_data_are_taken_if_they_have_labels(run: Run) -> None:
    test = digits()
    first, second = test.take(np.arange(200)), test.take(np.arange(200, 400))
    names = tuple("0123456789")
    alone = ebpl.evaluate(run, ebpl.ImageSet("alone", names, second))
    assert ebpl.evaluate(run, ebpl.ImageSet("both", names, first, test=second)) == alone
    hidden = dataclasses.replace(first, labels=np.full(200, -1))
    assert ebpl.evaluate(run, ebpl.ImageSet("no truth", names, second, test=hidden)) == alone
    np.savez("test.npz", test_images=test.pixels, test_labels=test.labels)
    assert ebpl.evaluate(run, "test.npz") == ebpl.evaluate(run)


def test_colour_is_made_gray_for_a_model_of_gray_images(run: Run) -> None:
    test = digits()
    colour = ebpl.from_arrays(np.repeat(test.pixels, 3, axis=3), test.labels)
    assert ebpl.evaluate(run, colour) == ebpl.evaluate(run)


def test_files_are_brought_to_the_size_of_the_model(run: Run) -> None:
    test = digits().take(np.arange(60))
    for size in (8, 16):
        for i, (pixels, label) in enumerate(zip(test.pixels, test.labels, strict=True)):
            path = Path(str(size), str(label), f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[..., 0].repeat(size // 8, 0).repeat(size // 8, 1)).save(path)
    small, large = evaluation(run, "8"), evaluation(run, "16")
    assert small["metrics"] == pytest.approx(ebpl.evaluate(run, ebpl.from_arrays(test.pixels, test.labels)), abs=1e-6)
    assert large["metrics"] == pytest.approx(small["metrics"], abs=1e-6)  # each pixel four times is the same picture
    assert not small["notes"]
    assert "16 x 16" in " ".join(large["notes"])


def test_a_model_of_oblong_images_takes_no_others() -> None:
    description: dict[str, Any] = {"classes": ["cats", "dogs"], "image_shape": [1, 8, 12]}
    for name, width in (("oblong", 12), ("square", 8)):
        for label in ("cats", "dogs"):
            Path(name, label).mkdir(parents=True)
            Image.fromarray(random_images(1, 8, width)[0]).save(Path(name, label, "1.png"))
    images = load_for(description, "oblong")
    assert as_trained(description, images, images.train).pixels.shape == (2, 8, 12, 1)
    images = load_for(description, "square")
    with pytest.raises(
        DataError, match=r"square has images of 8 x 8 pixels \(width x height\), the model was trained on 12 x 8"
    ):
        as_trained(description, images, images.train)


def test_unknown_classes_and_sizes_are_refused(run: Run) -> None:
    named = dataclasses.replace(ebpl.load("digits"), classes=(*"012345678", "nine"))
    with pytest.raises(DataError, match=r"does not know: nine\. It knows: 0, 1, 2"):
        ebpl.evaluate(run, named)
    larger = ebpl.from_arrays(np.zeros((2, 9, 9), np.uint8), [0, 1])
    with pytest.raises(DataError, match=r"9 x 9 pixels \(width x height\), the model was trained on 8 x 8"):
        ebpl.evaluate(run, larger)


def test_data_without_test_images_trains_and_says_how_to_evaluate(pets: Run) -> None:
    assert pets.metrics()["metrics"] is None
    with pytest.raises(DataError, match=rf"pets has no test images.*ebpl evaluate {re.escape(str(pets.path))} DATA"):
        ebpl.evaluate(pets)
    folder = Path(shutil.copytree(pets.source["path"], "pets"))
    assert ebpl.evaluate(pets, folder)["images"] == 8
    Path("dogs only").mkdir()
    (folder / "dogs").rename("dogs only/dogs")
    assert ebpl.evaluate(pets, "dogs only")["images"] == 4
    Path("nothing labelled").mkdir()
    (folder / "unlabeled").rename("nothing labelled/unlabeled")
    with pytest.raises(DataError, match="nothing labelled has no labelled image"):
        ebpl.evaluate(pets, "nothing labelled")


def test_an_unreadable_file_is_named_and_left_out_only_if_asked_for(pets: Run) -> None:
    folder = Path(shutil.copytree(pets.source["path"], "pets"))
    (folder / "cats" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png"):
        evaluation(pets, folder)
    found = evaluation(pets, folder, skip_unreadable=True)
    assert found["metrics"] == ebpl.evaluate(pets, pets.source["path"])
    assert any("broken.png" in note for note in found["notes"])


def test_weights_of_another_run_are_not_measured_as_its_own(run: Run, trained: Run, capsys) -> None:
    mixed = Run(shutil.copytree(run.path, "mixed"))
    model, description = run.load_model()
    oblong = {**description["architecture"], "image_shape": [1, 8, 16]}
    lies = ({"classes": list("0123456798")}, {"image_shape": [1, 8, 16], "architecture": oblong})
    for lie in lies:
        mixed.save_model(model.state_dict(), {**description, **lie})
        with pytest.raises(RunError, match=r"mixed/best\.safetensors is not of this run"):
            ebpl.evaluate(mixed)
    shutil.copy(trained.path / WEIGHTS, mixed.path)
    assert main(["evaluate", "mixed"]) == RunError.exit_code
    assert "is not of this run" in capsys.readouterr().err
    assert ebpl.evaluate(mixed, blobs())["images"] == 30  # for data that they know they may still be used


def test_a_finished_run_keeps_what_its_model_said_and_how_strange_its_images_were(trained: Run) -> None:
    data, result = blobs(), trained.metrics()
    assert data.test is not None
    model, _ = trained.load_model()
    said = predict(model, data.test.pixels)
    with np.load(trained.path / "details.npz") as kept:
        assert (kept["test_labels"] == said.labels).all()
        assert kept["test_confidences"] == pytest.approx(said.confidences, abs=1e-6)
        assert (kept["test_truth"] == data.test.labels).all()
    energies = predict(model, data.train.pixels).energies
    stored = result["training_energies"]
    assert [stored[0], stored[100], stored[-1]] == pytest.approx(
        [energies.min(), np.median(energies), energies.max()], rel=1e-4, abs=1e-5
    )
    assert stored == sorted(stored)
    assert result["metrics"]["images"] == result["last"]["metrics"]["images"] == len(data.test)
    sizes = {"unlabelled": 105, "validation": 0, "test": 30, "test_in_training": 0}
    assert result["images"] == {"labelled": {"0": 5, "1": 5, "2": 5}, **sizes}
    assert sum(row["images"] for row in result["reliability"]) == len(data.test)


def test_a_result_tells_what_accuracy_hides(trained: Run) -> None:
    result = json.loads((trained.path / "test_metrics.json").read_text())
    data = blobs()
    assert data.test is not None
    labels = data.test.labels[data.test.labeled]
    with np.load(trained.path / "details.npz") as kept:
        said = kept["test_labels"][data.test.labeled].astype(int)
    counts = np.bincount(labels, minlength=len(data.classes))
    assert result["majority_share"] == pytest.approx(counts.max() / counts.sum())
    missing = [name for i, name in enumerate(data.classes) if counts[i] and i not in said]
    assert result["never_predicted"] == missing
    for i, row in enumerate(result["by_class"]):
        assert (row["class"], row["images"]) == (data.classes[i], counts[i])
        right = int((said[labels == i] == i).sum())
        assert row["recall"] == pytest.approx(right / counts[i])
        assert row["recall_interval"] == pytest.approx(wilson_interval(right, int(counts[i])))
    assert len(result["class_means"]) == len(data.classes)
    for step in result["pseudo_labels"]:
        assert sum(step["classes"].values()) == step["images"]
        assert list(step["classes"]) == list(data.classes)


def test_a_class_that_no_image_is_predicted_to_be_is_named() -> None:
    probabilities = np.tile([0.6, 0.3, 0.1], (10, 1))
    found = _classes(probabilities, np.array([0] * 7 + [1] * 3), ["a", "b", "c"])
    assert (found["majority_share"], found["never_predicted"]) == (0.7, ["b"])  # c does not occur either


def test_a_classifier_alone_tells_no_energies(run: Run) -> None:
    assert "training_energies" not in run.metrics()


def test_several_seeds_are_summed_up_by_mean_and_standard_deviation(seeds: Path) -> None:
    found = evaluation_of_seeds(seeds)
    alone = {seed: evaluation(seeds / f"seed-{seed}") for seed in (0, 1, 2)}
    assert {seed: each["metrics"] for seed, each in found["seeds"].items()} == {
        seed: each["metrics"] for seed, each in alone.items()
    }
    for name in found["mean"]:
        values = [each["metrics"][name] for each in alone.values()]
        assert found["mean"][name] == pytest.approx(np.mean(values))
        assert found["standard_deviation"][name] == pytest.approx(np.std(values, ddof=1))
    assert found["standard_deviation"]["nll"] > 0
    assert (found["not_finished"], found["broken"], found["lost"]) == ([], {}, [])


def test_seeds_that_are_broken_unfinished_or_gone_are_named_beside_the_others(seeds: Path) -> None:
    whole = evaluation_of_seeds(seeds)
    (seeds / "seed-1" / WEIGHTS).write_bytes(b"no weights")
    found = evaluation_of_seeds(seeds)
    assert list(found["seeds"]) == [0, 2]
    assert found["mean"]["nll"] == pytest.approx(np.mean([whole["seeds"][seed]["metrics"]["nll"] for seed in (0, 2)]))
    assert list(found["broken"]) == [1]
    assert str(seeds / "seed-1" / WEIGHTS) in found["broken"][1]
    assert "remove the file" in found["broken"][1]
    settings = seeds / "seed-2" / "settings.toml"
    kept = settings.read_text()
    settings.write_text("no settings")
    found = evaluation_of_seeds(seeds)
    assert (list(found["seeds"]), list(found["broken"])) == ([0], [1, 2])
    assert "settings.toml is not valid TOML" in found["broken"][2]
    settings.write_text(kept)
    (seeds / "seed-2" / "test_metrics.json").unlink()
    found = evaluation_of_seeds(seeds)
    assert (list(found["seeds"]), found["not_finished"], found["lost"]) == ([0], [2], [])
    assert found["mean"] == whole["seeds"][0]["metrics"]
    assert set(found["standard_deviation"].values()) == {0.0}
    shutil.rmtree(seeds / "seed-2")
    found = evaluation_of_seeds(seeds)
    assert (list(found["seeds"]), found["not_finished"], found["lost"]) == ([0], [], [2])


def test_when_every_seed_is_broken_the_error_is_that_of_the_first(seeds: Path) -> None:
    for seed in (0, 1, 2):
        (seeds / f"seed-{seed}" / WEIGHTS).write_bytes(b"no weights")
    with pytest.raises(RunError, match=r"seeds/seed-0/best\.safetensors is damaged"):
        evaluation_of_seeds(seeds)


def test_no_seed_finished_is_told_when_measuring() -> None:
    Run.create_for_seeds("seeds", quick(), [0, 1], blobs(), {})
    with pytest.raises(RunError, match=r"No seed in seeds is finished\. Continue with: ebpl resume seeds"):
        evaluation_of_seeds(Path("seeds"))


def test_data_that_fits_no_seed_is_an_error_of_the_data(seeds: Path) -> None:
    with pytest.raises(DataError, match="blobs of others has classes the model does not know"):
        evaluation_of_seeds(seeds, dataclasses.replace(blobs(), name="blobs of others", classes=("a", "b", "c")))


def test_a_benchmark_that_was_moved_is_found_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(BENCHMARKS["organs"], train_images=330, test_images=22)
    monkeypatch.setitem(BENCHMARKS, "organs", small)
    arrays = {}
    for part, count in (("train", 330), ("test", 22)):
        arrays |= {f"{part}_images": random_images(count, 28, 28), f"{part}_labels": np.arange(count)[:, None] % 11}
    Path("here").mkdir()
    np.savez("here/organsmnist.npz", **arrays)
    run = ebpl.train("organs", quick(**BASELINE, epochs=1), run="run", data_dir="here")
    before = ebpl.evaluate(run)
    Path("here").rename("there")
    assert ebpl.evaluate(run, data_dir="there") == before


@pytest.fixture
def tested() -> Run:
    """A run of a folder with a test part."""
    class_folders(Path("photos"))
    class_folders(Path("photos/test"), unlabeled=0)
    return ebpl.train("photos", quick(epochs=1, pseudo_labels="none"), run="tested")


def test_a_run_is_measured_on_its_test_images_though_other_images_have_changed(tested: Run, capsys) -> None:
    before = ebpl.evaluate(tested)
    write_png(Path("photos/unlabeled/large.png"), size=(40, 70), mode="RGB")
    Path("photos/unlabeled/0.png").unlink()
    write_png(Path("photos/birds/0.png"))  # the classes are numbered otherwise now
    assert ebpl.evaluate(tested) == before
    assert main(["evaluate", "tested"]) == 0
    assert "photos have changed since training; its test images are the same." in capsys.readouterr().out


@pytest.mark.parametrize("change", ["pixels", "label", "removed", "older run"])
def test_test_images_that_have_changed_are_an_error_that_names_the_way_out(tested: Run, change: str) -> None:
    if change == "pixels":
        write_png(Path("photos/test/cats/0.png"), value=77)
    elif change == "label":
        Path("photos/test/cats/0.png").rename("photos/test/dogs/9.png")
    elif change == "removed":
        shutil.rmtree("photos/test")
    else:
        Path("photos/unlabeled/0.png").unlink()
        settings = tested.path / "settings.toml"
        lines = [line for line in settings.read_text().splitlines() if not line.startswith("test_fingerprint")]
        settings.write_text("\n".join(lines))
    with pytest.raises(RunError, match="its test images are not known to be the same") as caught:
        ebpl.evaluate("tested")
    command = str(caught.value).rpartition("with: ")[2]
    if change == "removed":
        assert command == "ebpl evaluate tested DATA"
    else:
        assert command == f"ebpl evaluate tested {Path('photos').resolve()}"
        assert main(command.split()[1:]) == 0


def test_images_that_were_trained_on_are_counted(pets: Run, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(pets.source["path"])
    for label in ("cats", "dogs"):
        shutil.copytree(source / label, Path("again") / label)
    said = "8 of these 8 images were in the training data, so this is not a measure of new images"
    assert any(said in note for note in evaluation(pets, "again")["notes"])
    assert main(["evaluate", str(pets.path), "again", "--json", "found.json"]) == 0
    assert f"Warning: {said}\n" in capsys.readouterr().out
    assert any(said in note for note in json.loads(Path("found.json").read_text())["notes"])
    write_png(Path("again/cats/new.png"), value=77)
    assert any("8 of these 9 images" in note and "alone" in note for note in evaluation(pets, "again")["notes"])


NOT_CHECKED = "Whether these images were in the training data was not checked: the run's own images "


def without_digests(run: Run) -> Run:
    """A copy of a run as an older version wrote it."""
    copy = Run(shutil.copytree(run.path, "copy"))
    (copy.path / "details.npz").unlink()
    return copy


def labelled_again(run: Run, folder: str = "again") -> str:
    """A copy of the labelled images that a run was trained on."""
    for label in ("cats", "dogs"):
        shutil.copytree(Path(run.source["path"]) / label, Path(folder) / label)
    return folder


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_images_that_were_trained_on_are_known_where_the_data_of_the_run_is_gone_or_changed(change: str) -> None:
    run = ebpl.train(class_folders(Path("pets")), quick(**BASELINE), run="run")
    again = labelled_again(run)
    if change == "gone":
        shutil.rmtree("pets")
    else:
        write_png(Path("pets/unlabeled/new.png"), value=77)
    (note,) = evaluation(Run("run"), again)["notes"]
    assert "8 of these 8 images were in the training data" in note


def test_arrays_that_were_trained_on_are_known_too() -> None:
    data = blobs()
    run = ebpl.train(data, quick(**BASELINE), run="run")
    again = ebpl.from_arrays(data.train.pixels, data.train.labels, classes=data.classes)
    total = int(data.train.labeled.sum())
    assert any(f"{total} of these {total} images were" in note for note in evaluation(run, again)["notes"])


def test_nothing_is_said_of_new_images(pets: Run) -> None:
    for i, label in enumerate(("cats", "dogs")):
        write_png(Path("new") / label / "0.png", value=77 + i)
    assert evaluation(pets, "new")["notes"] == []
    assert evaluation(without_digests(pets), "new")["notes"] == []


def test_it_is_said_where_images_cannot_be_looked_for(pets: Run, tmp_path: Path) -> None:
    run = without_digests(pets)
    again = labelled_again(pets)
    assert "8 of these 8 images were in the training data" in evaluation(run, again)["notes"][0]
    settings = run.path / "settings.toml"
    settings.write_text(settings.read_text().replace(str(pets.source["path"]), str(tmp_path / "gone")))
    assert evaluation(Run("copy"), again)["notes"] == [f"{NOT_CHECKED}cannot be read"]


def test_so_many_files_are_not_read_again_only_to_look_for_some(pets: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebpl.inference.sources.MOST_FILES", 3)
    monkeypatch.setattr(Run, "load_data", lambda *_: pytest.fail("read"))
    again = labelled_again(pets)
    assert "8 of these 8 images" in evaluation(pets, again)["notes"][0]
    assert evaluation(without_digests(pets), again)["notes"] == [f"{NOT_CHECKED}are too many to read them again"]


def test_few_digests_are_kept_and_none_of_a_benchmark(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(Path("pets"))
    with np.load(ebpl.train("pets", quick(**BASELINE), run="few").path / "details.npz") as kept:
        assert kept["training_digests"].nbytes == 8 * len({*ebpl.load("pets").train.digests()})
    monkeypatch.setattr("ebpl.inference.evaluate.MOST_DIGESTS", 3)
    assert read_training_digests(ebpl.train("pets", quick(**BASELINE), run="many").path) is None
    assert read_training_digests(run.path) is None


def test_python_is_told_of_images_that_were_trained_on(pets: Run, caplog: pytest.LogCaptureFixture) -> None:
    ebpl.evaluate(pets, labelled_again(pets))
    (record,) = [each for each in caplog.records if each.name == "ebpl"]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("8 of these 8 images were in the training data")


def test_test_images_that_were_trained_on_are_told_also_where_other_images_have_changed() -> None:
    class_folders(Path("pets"))
    class_folders(Path("pets/test"), labeled=2, unlabeled=0)
    run = ebpl.train("pets", quick(**BASELINE), run="run")
    write_png(Path("pets/unlabeled/new.png"), value=77)
    changed, trained = evaluation(run)["notes"]
    assert "its test images are the same" in changed
    assert "4 of these 4 images were in the training data" in trained


def test_the_command_to_measure_with_leaves_out_what_cannot_be_read_if_the_run_did() -> None:
    class_folders(Path("pets"))
    class_folders(Path("pets/test"), labeled=2, unlabeled=0)
    Path("pets/cats/broken.png").write_bytes(b"no image")
    ebpl.train("pets", quick(**BASELINE), run="run", skip_unreadable=True)
    Path("pets/test/cats/0.png").unlink()
    with pytest.raises(RunError, match="have changed") as caught:
        ebpl.evaluate("run")
    command = str(caught.value).rpartition("with: ")[2]
    assert command == f"ebpl evaluate run {Path('pets').resolve()} --skip-unreadable"
    assert main(command.split()[1:]) == 0


def test_test_images_of_the_run_that_were_trained_on_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    class_folders(Path("pets"))
    class_folders(Path("pets/test"), labeled=2, unlabeled=0)
    write_png(Path("pets/test/cats/new.png"), value=77)
    run = ebpl.train("pets", quick(**BASELINE), run="run")
    assert run.metrics()["images"]["test_in_training"] == 4
    log = (run.path / "train.log").read_text()
    assert "Warning: 4 of the 5 test images were in the training data, so the test results are not a measure" in log
    assert any("4 of these 5 images were in the training data" in note for note in evaluation(run)["notes"])


def test_a_confidence_that_is_far_off_is_warned_of(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluation(run)
    gap = found["metrics"]["overconfidence"]
    assert [text for text in found["warnings"] if "mean confidence on the test images" in text] or abs(gap) <= 0.1
    data = ebpl.load("digits")
    assert data.test is not None
    shuffled = dataclasses.replace(data.test, labels=np.roll(data.test.labels, 1))
    wrong = dataclasses.replace(data, test=shuffled)
    (warning,) = [text for text in evaluation(run, wrong)["warnings"] if "confident" in text]
    assert "mean confidence on the labelled images" in warning


def test_the_command_warns_as_train_does(run_of_wrong_labels: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run_of_wrong_labels.path)]) == 0
    assert "Warning: The model is over-confident: its mean confidence on the test images" in capsys.readouterr().out


@pytest.fixture
def run_of_wrong_labels() -> Run:
    """A run whose test images have other labels than they should."""
    for label, base in (("cats", 0), ("dogs", 120)):
        other = "dogs" if label == "cats" else "cats"
        for i in range(20):
            picture = write_png(Path(f"pets/{label}/{i}.png"), value=base + i)
            if i < 10:
                Path(f"pets/test/{other}").mkdir(parents=True, exist_ok=True)
                shutil.copy(picture, f"pets/test/{other}/{i}.png")
    return ebpl.train("pets", quick(**BASELINE, epochs=15), run="run")


def test_metrics_for_another_class_mix_are_those_of_its_probabilities(run: Run, three: Path) -> None:
    Path("mix.csv").write_text("".join(f"{number},{1 if number else 1000}\n" for number in range(10)))
    plain, mixed = ebpl.evaluate(run), ebpl.evaluate(run, class_mix="mix.csv")
    assert mixed["accuracy"] < plain["accuracy"]
    assert ebpl.evaluate(run, class_mix="labels") == plain
    told = evaluation_of_seeds(three, class_mix="mix.csv")
    assert told["mean"]["accuracy"] < evaluation_of_seeds(three)["mean"]["accuracy"]


def test_details_are_what_the_command_writes_and_warnings_are_logged(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "warnings_of", lambda *_: ["beware"])
    found = ebpl.evaluate(run, details=True)
    assert found["metrics"] == ebpl.evaluate(run)
    assert {"intervals", "by_class", "reliability", "warnings"} <= found.keys()
    assert caplog.messages.count("beware") == 2
    for row in found["by_class"]:
        low, high = row["precision_interval"]
        assert low <= row["precision"] <= high
        assert 0 < row["confidence"] <= 1


def test_a_finished_run_holds_the_prediction_sets_of_its_test_images(run: Run) -> None:
    stored, measured = run.metrics()["prediction_sets"], ebpl.evaluate(run, coverage=SET_COVERAGE)["prediction_sets"]
    assert stored["coverage"] == pytest.approx(measured["coverage"], abs=0.01)
    assert stored["mean_size"] == pytest.approx(measured["mean_size"], abs=0.02)
    model, _ = run.load_model()
    test = ebpl.load("digits").test
    assert test is not None
    probabilities = predict(model, test.pixels).probabilities
    held = (probabilities >= stored["least_probability"])[np.arange(len(test)), test.labels].mean()
    assert held == pytest.approx(SET_COVERAGE, abs=0.01)


def test_images_of_another_class_mix_than_that_of_the_probabilities_are_told(run: Run) -> None:
    test = ebpl.load("digits").test
    assert test is not None
    few = test.take(np.flatnonzero((test.labels == 3) | (np.arange(len(test)) < 60)))
    other = ebpl.ImageSet("threes", ebpl.load("digits").classes, few)
    note = "Probabilities are for the class mix of the labels. These images have another one"
    assert any(note in each for each in evaluation(run, other)["notes"])
    assert not any(note in each for each in evaluation(run, other, class_mix="balanced")["notes"])
    assert not any(note in each for each in evaluation(run)["notes"])
