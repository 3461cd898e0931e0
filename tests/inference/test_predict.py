import csv
import io
import json
import logging
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.calibration.conformal import METHODS, calibrate
from ebpl.cli import main
from ebpl.errors import DataError, RunError, UsageError
from ebpl.inference.ensemble import Ensemble
from ebpl.inference.predict import Summary, measured_accuracy, predict_files
from ebpl.inference.sources import find_images
from ebpl.io import csv_writer
from ebpl.models.outliers import OutlierLimit
from ebpl.models.predictions import BATCH, predict
from ebpl.runs import Run
from tests.encoders.helpers import tiny
from tests.helpers import blobs, class_folders, quick, random_images


@pytest.fixture
def run() -> Run:
    class_folders(Path("photos"))
    return ebpl.train("photos", quick(epochs=3, pseudo_labels="none"), run="run")


def predicted(run: Run, *places: str, **options: Any) -> tuple[list[dict[str, str]], Summary]:
    text = io.StringIO()
    model = Ensemble([run], options.pop("outlier_quantile", 0.99))
    summary = predict_files(model, find_images(places), csv_writer(text), **options)
    text.seek(0)
    return list(csv.DictReader(text)), summary


def test_every_image_gets_a_row_that_agrees_with_the_model(run: Run) -> None:
    rows, summary = predicted(run, "photos", label_outliers=True)
    files = sorted(find_images(["photos"]))
    assert sorted(row["image"] for row in rows) == [str(path) for path in files]
    assert summary.images == summary.kept + summary.labelled_outliers == len(files)
    model, description = run.load_model()
    row = rows[0]
    with Image.open(row["image"]) as image:
        pixels = np.asarray(image.convert("L" if description["image_shape"][0] == 1 else "RGB"))
    expected = predict(model, pixels[None])
    assert row["label"] == description["classes"][expected.labels[0]]
    assert float(row["confidence"]) == pytest.approx(expected.confidences[0], abs=1e-5)
    assert float(row["energy"]) == pytest.approx(expected.energies[0], rel=1e-4)
    assert sum(float(row[f"p({name})"]) for name in description["classes"]) == pytest.approx(1, abs=1e-4)


def test_images_that_cannot_be_read_get_the_reason_and_stop_nothing(run: Run) -> None:
    folder = Path("more")
    folder.mkdir()
    good = next(find_images(["photos"])).read_bytes()
    for name, content in {"a.png": b"", "b.png": b"no image", "c.png": good, "d.jpg": good[:40]}.items():
        (folder / name).write_bytes(content)
    rows, summary = predicted(run, "more")
    assert [bool(row["problem"]) for row in rows] == [True, True, False, True]
    assert rows[0]["problem"] == "the file is empty"
    assert (summary.images, summary.unreadable) == (4, 3)
    assert summary.kept + (summary.outliers or 0) == 1


def test_below_the_wanted_confidence_there_is_no_label(run: Run) -> None:
    everything, _ = predicted(run, "photos")
    middle = float(np.median([float(row["confidence"]) for row in everything])) + 1e-4
    rows, summary = predicted(run, "photos", abstain_below=middle, label_outliers=True)
    assert all(bool(row["label"]) == (float(row["confidence"]) > middle) for row in rows)
    kept = [float(row["confidence"]) for row in rows if row["label"] and row["outlier"] == "no"]
    if kept:
        assert summary.mean_confidence == pytest.approx(np.mean(kept), abs=1e-4)


def test_images_with_a_higher_energy_than_the_training_images_are_outliers(run: Run) -> None:
    assert run.outlier_limit(0.5) == OutlierLimit("energies", np.median(run.metrics()["training_energies"]))
    rows, summary = predicted(run, "photos", outlier_quantile=0.5)
    assert summary.outliers == sum(row["outlier"] == "yes" for row in rows)
    assert 0.3 < summary.outliers / len(rows) < 0.7
    assert predicted(run, "photos", outlier_quantile=1.0)[1].outliers <= 1  # but for the last digit


def test_on_features_of_an_encoder_outliers_are_judged_by_their_reconstruction_error() -> None:
    class_folders(Path("photos"), unlabeled=30)
    short = {"model.components": 2, "optim.epochs": 1, "curriculum.pseudo_labels": "none"}
    run = ebpl.train("photos", preset="features", set=short, encoder=tiny(20).info.name, run="run")
    limit = run.outlier_limit(0.5)
    assert limit is not None
    assert limit.score == "reconstruction_errors"
    rows, summary = predicted(run, "photos", outlier_quantile=0.5)
    assert list(rows[0])[3:5] == ["energy", "reconstruction_error"]
    expected = [float(row["reconstruction_error"]) > limit.value for row in rows]
    assert [row["outlier"] == "yes" for row in rows] == expected
    assert summary.outliers == sum(expected) > 0
    chosen = {f"photos/{each.image}" for each in ebpl.suggest(run, n=30, outlier_quantile=0.5)}
    found = {kind: {row["image"] for row in rows if row["outlier"] == kind} for kind in ("yes", "no")}
    assert chosen & found["no"]
    assert not chosen & found["yes"]


def test_outliers_get_no_label_and_are_left_out_of_the_mean_confidence(run: Run) -> None:
    rows, summary = predicted(run, "photos", outlier_quantile=0.5)
    assert summary.outliers
    assert all((row["label"] == "") == (row["outlier"] == "yes") for row in rows)
    usual = [float(row["confidence"]) for row in rows if row["outlier"] == "no"]
    assert summary.kept == len(usual)
    assert summary.coverage == 1
    assert summary.mean_confidence == pytest.approx(np.mean(usual), abs=1e-4)
    rows, everything = predicted(run, "photos", outlier_quantile=0.5, label_outliers=True)
    assert all(row["label"] for row in rows)
    assert everything.labelled_outliers == everything.outliers == summary.outliers
    assert (everything.kept, everything.mean_confidence) == (summary.kept, summary.mean_confidence)


def test_an_energy_that_is_not_a_number_is_an_outlier(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import ebpl.inference.ensemble as module

    real = module.predict

    def damaged(*arguments: Any) -> Any:
        found = real(*arguments)
        return type(found)(found.probabilities, np.full_like(found.energies, np.nan))

    monkeypatch.setattr(module, "predict", damaged)
    rows, summary = predicted(run, "photos")
    assert {(row["label"], row["outlier"]) for row in rows} == {("", "yes")}
    assert summary.mean_confidence is None


def test_a_balanced_decision_is_the_class_most_probable_compared_with_its_mean(run: Run) -> None:
    classes = run.load_model()[1]["classes"]
    means = run.metrics()["class_means"]
    assert sum(means) == pytest.approx(1, abs=1e-4)
    rows = ebpl.predict(run, "photos", decide="balanced")
    assert isinstance(rows, list)
    for row in rows:
        ratios = [row[f"p({name})"] / mean for name, mean in zip(classes, means, strict=True)]
        expected = classes[int(np.argmax(ratios))] if row["label"] else None
        assert row["decision"] == expected
        assert row["confidence"] == max(row[f"p({name})"] for name in classes)
    plain = ebpl.predict(run, "photos")
    assert isinstance(plain, list)
    assert "decision" not in plain[0]
    assert [row["label"] for row in plain] == [row["label"] for row in rows]


def test_a_balanced_decision_needs_class_means_and_says_how_to_get_them(run: Run) -> None:
    result = json.loads((run.path / "test_metrics.json").read_text())
    for broken in (None, [], [1.0], ["a", "b"], [10**400] * 2):
        (run.path / "test_metrics.json").write_text(json.dumps({**result, "class_means": broken}))
        with pytest.raises(RunError, match=r"mean probability of each class.*ebpl resume run|damaged"):
            ebpl.predict(Run("run"), "photos", decide="balanced")
    with pytest.raises(UsageError, match="probable, balanced"):
        ebpl.predict(run, "photos", decide="fair")


def test_a_classifier_alone_calls_nothing_an_outlier() -> None:
    class_folders(Path("photos"))
    run = ebpl.train("photos", quick(method="curriculum-labeling", epochs=1, pseudo_labels="none"), run="run")
    rows, _ = predicted(run, "photos")
    assert {row["outlier"] for row in rows} == {""}


def test_links_in_circles_are_not_followed() -> None:
    class_folders(Path("photos"))
    before = list(find_images(["photos"]))
    (Path("photos") / "round").symlink_to(Path("photos").resolve())
    assert list(find_images(["photos"])) == before
    with pytest.raises(DataError, match="no file or folder nowhere"):
        list(find_images(["nowhere"]))


def test_no_more_images_are_held_than_are_predicted_at_once(run: Run) -> None:
    pulled = written = most = 0
    path = next(find_images(["photos"]))

    def images(count: int) -> Iterator[Path]:
        nonlocal pulled
        for _ in range(count):
            pulled += 1
            yield path

    def write(row: dict[str, object]) -> None:
        nonlocal written, most
        written += 1
        most = max(most, pulled - written)

    summary = predict_files(Ensemble([run]), images(3 * BATCH + 5), write)
    assert summary.images == written == 3 * BATCH + 5
    assert most < BATCH


def test_a_place_that_does_not_exist_costs_no_work() -> None:
    class_folders(Path("photos"))
    with pytest.raises(DataError, match="nowhere"):
        find_images(["photos", "nowhere"])  # though nothing is asked for yet


def test_odd_files_get_a_row_each_and_stop_nothing(run: Run) -> None:
    folder = Path("odd")
    folder.mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "round.png").symlink_to("round.png")
    good = next(find_images(["photos"])).read_bytes()
    (folder / ("ü" * 100 + ".png")).write_bytes(good)
    (folder / os.fsdecode(b"caf\xe9.png")).write_bytes(good)
    frames = [Image.new("L", (8, 8), value) for value in (10, 200)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (30_000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
    (folder / "huge.png").write_bytes(header + zlib.crc32(header[12:]).to_bytes(4, "big") + b"\0\0\0\0IEND\xaeB`\x82")
    rows, summary = predicted(run, "odd")
    problems = {Path(row["image"]).name: row["problem"] for row in rows}
    assert problems["pipe.png"] == "it is not a file"
    assert problems["round.png"] == "the link leads nowhere"
    assert problems["huge.png"].startswith("it has 900 million pixels")
    assert problems["moving.gif"] == problems["ü" * 100 + ".png"] == ""
    assert [row["problem"] for row in rows if "caf" in row["image"]] == [""]
    assert (summary.unreadable, summary.frames) == (3, 1)
    assert summary.kept + (summary.outliers or 0) == 3


def test_coverage_and_measured_accuracy_are_those_at_the_limit() -> None:
    data = blobs(unlabeled=False)
    run = ebpl.train(data, quick(epochs=3, pseudo_labels="none"), run="run")
    model, _ = run.load_model()
    assert data.test is not None
    expected = predict(model, data.test.pixels)
    assert measured_accuracy(run) == ((expected.labels == data.test.labels).sum(), 30, 30, True)
    folder = Path("test")
    folder.mkdir()
    for i, image in enumerate(data.test.pixels):
        Image.fromarray(image[..., 0]).save(folder / f"{i:02}.png")
    limit = float(np.median(expected.confidences))
    _, summary = predicted(run, "test", abstain_below=limit)
    assert summary.coverage == pytest.approx((expected.confidences >= limit).mean(), abs=0.04)
    assert measured_accuracy(Run.create("other", quick(), data, {})) is None


def test_python_gives_the_rows_that_the_command_writes(run: Run) -> None:
    (Path("photos") / "unlabeled" / "empty.png").touch()
    limits = {"abstain_below": 0.5, "outlier_quantile": 0.9}
    rows = ebpl.predict("run", "photos", **limits)
    assert [row["image"] for row in rows] == [str(path) for path in find_images(["photos"])]
    text = io.StringIO()
    write = csv_writer(text)
    for row in rows:
        write(row)
    words = ["--abstain-below", "0.5", "--outlier-quantile", "0.9"]
    assert main(["predict", "run", "photos", *words, "--output", "shell.csv"]) == 0
    assert Path("shell.csv").read_text() == text.getvalue()
    summary = ebpl.predict(run, Path("photos"), "python.csv", **limits)
    assert Path("python.csv").read_text() == text.getvalue()
    assert (summary.images, summary.unreadable) == (len(rows), 1)


def test_files_and_folders_may_be_given_one_by_one_or_together(run: Run) -> None:
    everything = ebpl.predict(run, "photos")
    assert ebpl.predict(run, ["photos/cats", "photos/dogs", Path("photos/unlabeled")]) == everything
    (alone,) = ebpl.predict(run, "photos/cats/0.png")
    assert (alone["image"], alone["label"]) == (everything[0]["image"], everything[0]["label"])
    assert alone["energy"] == pytest.approx(everything[0]["energy"], rel=1e-4)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1)])
def test_an_array_is_predicted_as_the_model_predicts_it(run: Run, shape: tuple[int, ...]) -> None:
    pixels = random_images(5, *shape)
    model, description = run.load_model()
    expected = predict(model, pixels.reshape(5, 8, 8, 1))
    rows = ebpl.predict(run, pixels)
    assert [row["image"] for row in rows] == list("01234")
    assert [row["label"] for row in rows] == [description["classes"][label] for label in expected.labels]
    for row, probabilities, energy in zip(rows, expected.probabilities, expected.energies, strict=True):
        assert [row[f"p({name})"] for name in description["classes"]] == probabilities.tolist()
        assert (row["confidence"], row["energy"]) == (probabilities.max(), energy)
        assert row["problem"] is None
    assert ebpl.predict(run, pixels[:0]) == []


@pytest.mark.parametrize("pixels", [np.zeros((2, 8, 8)), random_images(2, 9, 8), random_images(2, 8, 8, 3)])
def test_an_array_that_the_model_does_not_take_is_refused(run: Run, pixels: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"takes uint8 images of 8 x 8 x 1; these are (float64|uint8) of shape \(2, "):
        ebpl.predict(run, pixels)


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.9, 1.0])
def test_the_measured_accuracy_is_that_of_test_images_with_such_a_confidence(quantile: float) -> None:
    data = blobs(unlabeled=False)
    run = ebpl.train(data, quick(epochs=1, pseudo_labels="none"), run="run")
    assert data.test is not None
    expected = predict(run.load_model()[0], data.test.pixels)
    limit = float(np.quantile(expected.confidences, quantile)) - 1e-4
    enough = expected.confidences >= limit
    right = (expected.labels == data.test.labels)[enough].sum()
    assert measured_accuracy(run, limit) == (right, enough.sum(), 30, True)
    with np.load(run.path / "details.npz") as kept:
        older = {name: kept[name] for name in kept.files if name != "test_truth"}
    np.savez(run.path / "details.npz", **older)
    whole = measured_accuracy(run)
    assert whole == ((expected.labels == data.test.labels).sum(), 30, 30, True)
    estimated = measured_accuracy(run, limit)
    assert estimated is not None
    assert not estimated.exact
    assert enough.sum() <= estimated.images <= 30  # of the bin in which the limit is, all are counted


def test_no_test_image_may_have_such_a_confidence(run: Run) -> None:
    result = json.loads((run.path / "test_metrics.json").read_text())
    (run.path / "test_metrics.json").write_text(json.dumps({**result, "metrics": {"accuracy": 0.5}}))
    answers = {"test_confidences": np.array([0.9, 0.8, 0.8, 0.8, 0.2], np.float32), "test_labels": np.arange(5)}
    np.savez(run.path / "details.npz", **answers, test_truth=np.array([0, 1, 0, 0, 4]))
    assert measured_accuracy(run, 0.8) == (2, 4, 5, True)
    assert measured_accuracy(run, 0.95) == (0, 0, 5, True)


def test_without_test_images_no_accuracy_is_measured(run: Run) -> None:
    assert run.metrics()["metrics"] is None
    assert measured_accuracy(run) is None


@pytest.mark.parametrize("column", ["image", "Path", "file"])
def test_a_csv_stands_for_the_files_that_it_lists(run: Run, column: str) -> None:
    Path("lists").mkdir()
    Path("lists/mine.csv").write_text(f"label;{column}\n;../photos/dogs/1.png\ncats;../photos/cats/0.png\n;gone.png\n")
    rows = ebpl.predict(run, "lists/mine.csv")
    assert [row["image"] for row in rows] == [f"lists/{name}" for name in
                                              ("../photos/dogs/1.png", "../photos/cats/0.png", "gone.png")]  # fmt: skip
    assert [row["problem"] for row in rows] == [None, None, "No such file or directory"]
    alone = ebpl.predict(run, ["photos/dogs/1.png", "photos/cats/0.png"])
    assert [row["confidence"] for row in rows[:2]] == pytest.approx([row["confidence"] for row in alone])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("picture\na.png\n", "image, path or file|column"),
        ("image\n", "lists no images"),
        ("image\nnowhere.png\n", r"names no file that exists \(relative to \.\)"),
        ("image,label\nphotos/cats/0.png,a\n,b\n", "line 3: no image is named"),
    ],
)
def test_a_csv_that_lists_no_files_is_refused_before_anything_is_written(run: Run, content: str, said: str) -> None:
    Path("list.csv").write_text(content)
    with pytest.raises(DataError, match=said):
        ebpl.predict(run, "list.csv", "labels.csv")
    assert not Path("labels.csv").exists()


def test_a_file_of_arrays_is_no_image_and_nothing_is_written(run: Run) -> None:
    np.savez("data.npz", train_images=random_images(2, 8, 8))
    with pytest.raises(DataError, match=r"data\.npz holds arrays.*ebpl\.predict\(run, array\)"):
        ebpl.predict(run, "data.npz", "labels.csv")
    assert not Path("labels.csv").exists()


def test_what_is_skipped_in_folders_is_counted_and_said(run: Run) -> None:
    good = next(find_images(["photos"])).read_bytes()
    Path("new/deep").mkdir(parents=True)
    for name in ("a.png", "deep/photo", "b.svg", "deep/c.SVG", "notes.txt", ".hidden"):
        Path("new", name).write_bytes(good)
    Path("new/linked").symlink_to(Path("photos").resolve())
    summary = ebpl.predict(run, "new", "a.csv")
    assert isinstance(summary, Summary)
    assert summary.images == 1
    assert summary.skipped_in_words == (
        "4 files whose name is not that of an image (2 .svg, 1 without an ending, 1 .txt) "
        "and 1 linked folder, as links are not followed"
    )
    assert Summary(skipped=Counter({f".{i}": 1 for i in range(9)})).skipped_in_words.endswith(" and 4 other endings)")
    assert Summary().skipped_in_words == ""
    (alone,) = ebpl.predict(run, "new/deep/photo")  # a file that is named itself is tried
    assert alone["problem"] is None
    Path("new/a.png").unlink()
    with pytest.raises(DataError, match=r"no image in new\. Skipped: 4 files"):
        ebpl.predict(run, "new", "b.csv")


def test_pil_images_are_predicted_as_their_files_are(run: Run) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(random_images(1, 8, 12)[0]).save("turned.png", exif=exif)
    Image.fromarray(random_images(1, 9, 9, 4)[0]).save("clear.png")
    names = ["turned.png", "clear.png", "photos/cats/0.png"]
    expected = ebpl.predict(run, names)
    found = ebpl.predict(run, [Image.open(name) for name in names])
    assert [row["image"] for row in found] == ["0", "1", "2"]
    assert [{**row, "image": ""} for row in found] == [{**row, "image": ""} for row in expected]
    assert ebpl.predict(run, Image.open(names[1]))[0]["energy"] == pytest.approx(expected[1]["energy"], rel=1e-4)
    mixed = ebpl.predict(run, [names[0], Image.open(names[1])])
    assert [row["image"] for row in mixed] == ["turned.png", "1"]


@pytest.mark.parametrize(
    ("images", "kind"),
    [([np.zeros((8, 8), np.uint8)], "numpy.ndarray"), (3, "int"), ([None], "NoneType"), ([b"a.png"], "bytes")],
)
def test_what_is_no_image_is_refused_with_what_is_accepted(run: Run, images: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot be given as {kind}\. Give files, folders.*PIL images, or one"):
        ebpl.predict(run, images)


@pytest.mark.parametrize("name", ["abstain_below", "outlier_quantile"])
@pytest.mark.parametrize("value", [90, -0.1, float("nan"), "0.9", None])
def test_a_share_must_be_between_0_and_1(run: Run, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{name} is .*, but must be a number from 0 to 1"):
        ebpl.predict(run, "photos", **{name: value})


def test_the_decision_of_least_cost_is_the_one_computed_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import ebpl.inference.ensemble as module
    from ebpl.models.predictions import Predictions

    # deciding dogs costs 10 p(cats), deciding cats 1 p(dogs): dogs only if p(cats) < 1/11
    given = np.array([[0.95, 0.05], [0.5, 0.5], [0.1, 0.9], [0.08, 0.92]])
    monkeypatch.setattr(module, "predict", lambda *_: Predictions(given, np.zeros(4)))
    Path("costs.csv").write_text("true,dogs,cats\ndogs,0,1\ncats,10,0\n")
    rows = ebpl.predict(run, random_images(4, 8, 8), decide="costs.csv", outlier_quantile=1.0, label_outliers=True)
    assert [row["label"] for row in rows] == ["cats", "cats", "dogs", "dogs"]
    assert [row["decision"] for row in rows] == ["cats", "cats", "cats", "dogs"]
    assert ebpl.predict(run, random_images(4, 8, 8), decide=Path("costs.csv"), label_outliers=True) == rows
    with pytest.raises(
        UsageError, match="decide is 'coststypo', but must be one of probable, balanced, or an existing"
    ):
        ebpl.predict(run, "photos", decide="coststypo")


def test_a_decision_can_be_written_as_parquet(run: Run) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ebpl.predict(run, "photos", "a.parquet", decide="balanced", label_outliers=True)
    assert set(parquet.read_table("a.parquet").to_pydict()["decision"]) <= {"cats", "dogs"}


def test_a_list_may_spell_its_paths_with_backslashes(run: Run) -> None:
    Path("list.csv").write_text("image\nphotos\\cats\\0.png\nphotos/dogs/0.png\n")
    assert [row["image"] for row in ebpl.predict(run, "list.csv")] == ["photos/cats/0.png", "photos/dogs/0.png"]


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained on two classes of noisy images, with enough test images to make promises from."""
    folder = tmp_path_factory.mktemp("tested")
    for part, count, seed in (("data/train", 12, 0), ("data/test", 120, 1), ("new", 40, 2)):
        for number, (image, label) in enumerate(zip(*pixels_and_labels(count, seed), strict=True)):
            path = folder / part / ("ab"[label] if part != "new" else "") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    settings = quick(epochs=5, pseudo_labels="none", augment="none").changed({"optim.updates_per_epoch": 10})
    return ebpl.train(folder / "data", settings, run=folder / "run")


@pytest.fixture
def new(tested: Run) -> Path:
    """Images of those classes without labels."""
    return Path(shutil.copytree(tested.path.parent / "new", "new"))


def pixels_and_labels(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random, labels = np.random.default_rng(seed), np.arange(count) % 2
    pixels = random.integers(0, 120, (count, 8, 8), dtype=np.uint8)
    pixels[labels == 1, :, 4:] += 30
    return pixels, labels


def test_a_coverage_gives_each_image_the_set_that_calibration_on_the_test_images_gives(tested: Run, new: Path) -> None:
    test = ebpl.load(tested.path.parent / "data").test
    assert test is not None
    model = tested.load_model()[0]
    sets = calibrate(predict(model, test.pixels).probabilities, test.labels, 0.8)
    rows = ebpl.predict(tested, new, coverage=0.8)
    for row in rows:
        shares = np.array([[row["p(a)"], row["p(b)"]]])
        assert row["set"] == [name for name, inside in zip("ab", sets.contains(shares)[0], strict=True) if inside]
    assert ebpl.predict_set(tested, new, 0.8) == [row["set"] for row in rows]
    summary = ebpl.predict(tested, new, "a.csv", coverage=0.8)
    assert sum(size * count for size, count in summary.set_sizes.items()) == sum(len(row["set"]) for row in rows)
    with Path("a.csv").open(newline="") as file:
        assert [row["set"] for row in csv.DictReader(file)] == [" | ".join(row["set"]) for row in rows]


def test_sets_are_for_outliers_too_and_not_for_what_cannot_be_read(tested: Run, new: Path) -> None:
    (new / "empty.png").touch()
    rows = ebpl.predict(tested, new, coverage=0.9, outlier_quantile=0.0)
    assert all((row["set"] is None) == (row["problem"] is not None) for row in rows)
    assert [row["set"] for row in rows if row["problem"]] == [None]


@pytest.mark.parametrize("method", METHODS)
def test_sets_cover_new_images_by_every_method(tested: Run, method: str) -> None:
    pixels, labels = pixels_and_labels(400, 3)
    for how in ({}, {"by_class": True}, {"semi_supervised": True}):
        sets = ebpl.predict_set(tested, pixels, 0.8, method=method, **how)
        covered = np.mean(["ab"[label] in each for each, label in zip(sets, labels, strict=True)])
        assert covered > 0.68  # of two classes, those that are not random often take both
        assert covered < (0.92 if method == "lac" else 1.01)


def test_parquet_holds_sets_as_lists(tested: Run, new: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ebpl.predict(tested, new, "a.parquet", coverage=0.9)
    rows = ebpl.predict(tested, new, coverage=0.9)
    assert parquet.read_table("a.parquet").to_pydict()["set"] == [row["set"] for row in rows]


def test_an_accuracy_labels_only_images_of_enough_confidence(tested: Run, new: Path) -> None:
    summary = ebpl.predict(tested, new, "a.csv", accuracy=0.6, label_outliers=True)
    promised = summary.promises.abstention
    rows = ebpl.predict(tested, new, accuracy=0.6, label_outliers=True)
    assert promised.threshold is not None
    assert [row["label"] is not None for row in rows] == [row["confidence"] >= promised.threshold for row in rows]
    with pytest.raises(DataError, match=r"From the run's 120 test images.* an accuracy of 99 % cannot be promised"):
        ebpl.predict(tested, new, accuracy=0.99)


def test_promises_can_be_made_from_other_labels(tested: Run, new: Path, caplog: pytest.LogCaptureFixture) -> None:
    pixels, labels = pixels_and_labels(60, 4)
    mine = ebpl.from_arrays(pixels, labels, classes=["a", "b"], name="mine")
    summary = ebpl.predict(tested, new, "a.csv", coverage=0.8, calibration=mine)
    assert summary.promises.calibrated_on == "60 labelled images of mine"
    few = ebpl.from_arrays(pixels[:5], labels[:5], classes=["a", "b"], name="few")
    with pytest.raises(DataError, match=r"coverage of 90 % needs at least 9 labels .* here are 5 labels"):
        ebpl.predict(tested, new, coverage=0.9, calibration=few)
    uneven = ebpl.from_arrays(pixels[:40], np.where(np.arange(40) < 30, 0, labels[:40]), classes=["a", "b"])
    with caplog.at_level(logging.WARNING, "ebpl"):
        assert all("b" in each for each in ebpl.predict_set(tested, new, 0.9, calibration=uneven, by_class=True))
    assert "always in the set is b" in caplog.text


def test_wrong_promises_are_refused_before_any_work(tested: Run, new: Path) -> None:
    for wrong in ({"coverage": 90}, {"coverage": 0.9, "set_method": "lca"}, {"accuracy": 1.0}, {"calibration": new}):
        with pytest.raises(UsageError, match=r"must be a number|Did you mean lac|labels are for a coverage"):
            ebpl.predict(tested, new, "a.csv", **wrong)
    assert not Path("a.csv").exists()


def test_another_class_mix_changes_probabilities_and_what_can_be_said_of_them(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mix.csv").write_text("class,share\ncats,99\ndogs,1\n")
    plain, mixed = (ebpl.predict(run, "photos", class_mix=mix) for mix in (None, "mix.csv"))
    assert isinstance(plain, list)
    assert isinstance(mixed, list)
    for before, after in zip(plain, mixed, strict=True):
        odds = before["p(cats)"] / before["p(dogs)"]
        assert after["p(cats)"] / after["p(dogs)"] == pytest.approx(99 * odds, rel=1e-4)
    assert main(["predict", "run", "photos", "--class-mix", "mix.csv", "--output", "mixed.csv"]) == 0
    told = capsys.readouterr().err
    assert "the run's images have another class mix" in told
    assert "ebpl evaluate run LABELLED_IMAGES --class-mix mix.csv" in told
    for wrong in ({"coverage": 0.9}, {"accuracy": 0.9}, {"decide": "balanced"}):
        with pytest.raises(UsageError, match="give calibration images that have it"):
            ebpl.predict(run, "photos", class_mix="mix.csv", **wrong)
    with pytest.raises(UsageError, match="give calibration images that have it"):
        ebpl.predict_set(run, "photos", class_mix=Path("mix.csv"))
