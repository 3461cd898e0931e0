import csv
import io
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.cli import main
from ebpl.errors import DataError, RunError, UsageError
from ebpl.inference.predict import Summary, find_images, measured_accuracy, predict_files
from ebpl.io import csv_writer
from ebpl.models.predictions import BATCH, predict
from ebpl.runs import Run
from tests.helpers import blobs, class_folders, quick, random_images


@pytest.fixture
def run() -> Run:
    class_folders(Path("photos"))
    return ebpl.train("photos", quick(epochs=3, pseudo_labels="none"), run="run")


def predicted(run: Run, *places: str, **options: Any) -> tuple[list[dict[str, str]], Summary]:
    text = io.StringIO()
    summary = predict_files(run, find_images(places), csv_writer(text), **options)
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
        assert summary.expected_accuracy == pytest.approx(np.mean(kept), abs=1e-4)


def test_images_with_a_higher_energy_than_the_training_images_are_outliers(run: Run) -> None:
    limit = run.energy_limit(0.5)
    assert limit is not None
    rows, summary = predicted(run, "photos", outlier_quantile=0.5)
    assert summary.outliers == sum(row["outlier"] == "yes" for row in rows)
    assert 0.3 < summary.outliers / len(rows) < 0.7
    assert predicted(run, "photos", outlier_quantile=1.0)[1].outliers <= 1  # but for the last digit


def test_outliers_get_no_label_and_are_left_out_of_what_is_promised(run: Run) -> None:
    rows, summary = predicted(run, "photos", outlier_quantile=0.5)
    assert summary.outliers
    assert all((row["label"] == "") == (row["outlier"] == "yes") for row in rows)
    usual = [float(row["confidence"]) for row in rows if row["outlier"] == "no"]
    assert summary.kept == len(usual)
    assert summary.coverage == 1
    assert summary.expected_accuracy == pytest.approx(np.mean(usual), abs=1e-4)
    rows, everything = predicted(run, "photos", outlier_quantile=0.5, label_outliers=True)
    assert all(row["label"] for row in rows)
    assert everything.labelled_outliers == everything.outliers == summary.outliers
    assert (everything.kept, everything.expected_accuracy) == (summary.kept, summary.expected_accuracy)


def test_an_energy_that_is_not_a_number_is_an_outlier(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import ebpl.inference.predict as module

    real = module.predict_images

    def damaged(*arguments: Any) -> Any:
        found = real(*arguments)
        return type(found)(found.probabilities, np.full_like(found.energies, np.nan))

    monkeypatch.setattr(module, "predict_images", damaged)
    rows, summary = predicted(run, "photos")
    assert {(row["label"], row["outlier"]) for row in rows} == {("", "yes")}
    assert summary.expected_accuracy is None


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

    summary = predict_files(run, images(3 * BATCH + 5), write)
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


def test_coverage_and_measured_accuracy_are_told_at_that_coverage() -> None:
    data = blobs(unlabeled=False)
    run = ebpl.train(data, quick(epochs=3, pseudo_labels="none"), run="run")
    model, _ = run.load_model()
    assert data.test is not None
    expected = predict(model, data.test.pixels)
    whole = measured_accuracy(run, 1.0)
    assert whole is not None
    assert whole == (pytest.approx((expected.labels == data.test.labels).mean()), 30)
    folder = Path("test")
    folder.mkdir()
    for i, image in enumerate(data.test.pixels):
        Image.fromarray(image[..., 0]).save(folder / f"{i:02}.png")
    limit = float(np.median(expected.confidences))
    _, summary = predicted(run, "test", abstain_below=limit)
    assert summary.coverage == pytest.approx((expected.confidences >= limit).mean(), abs=0.04)
    assert measured_accuracy(Run.create("other", quick(), data, {}), 1.0) is None


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
