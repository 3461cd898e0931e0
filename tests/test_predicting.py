import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.cli import main
from ebpl.errors import DataError
from ebpl.predicting import Summary, csv_writer, find_images, outlier_limit, predict_files
from ebpl.runs import Run
from tests.helpers import class_folders, quick


@pytest.fixture
def run() -> Run:
    class_folders(Path("photos"))
    return ebpl.train("photos", quick(epochs=3, pseudo_labels="none"), run="run")


def predicted(run: Run, *places: str, **options: float) -> tuple[list[dict[str, str]], Summary]:
    text = io.StringIO()
    summary = predict_files(run, find_images(places), csv_writer(text), **options)
    text.seek(0)
    return list(csv.DictReader(text)), summary


def test_every_image_gets_a_row_that_agrees_with_the_model(run: Run) -> None:
    rows, summary = predicted(run, "photos")
    files = sorted(find_images(["photos"]))
    assert sorted(row["image"] for row in rows) == [str(path) for path in files]
    assert summary.images == summary.kept == len(files)
    model, description = run.load_model()
    row = rows[0]
    with Image.open(row["image"]) as image:
        pixels = np.asarray(image.convert("L" if description["image_shape"][0] == 1 else "RGB"))
    expected = ebpl.predict(model, pixels[None])
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
    assert (summary.images, summary.unreadable, summary.kept) == (4, 3, 1)


def test_below_the_wanted_confidence_there_is_no_label(run: Run) -> None:
    everything, _ = predicted(run, "photos")
    middle = float(np.median([float(row["confidence"]) for row in everything])) + 1e-4
    rows, summary = predicted(run, "photos", abstain_below=middle)
    assert all(bool(row["label"]) == (float(row["confidence"]) > middle) for row in rows)
    kept = [float(row["confidence"]) for row in rows if row["label"]]
    if kept:
        assert summary.expected_accuracy == pytest.approx(np.mean(kept), abs=1e-4)


def test_images_with_a_higher_energy_than_the_training_images_are_outliers(run: Run) -> None:
    limit = outlier_limit(run, 0.5)
    assert limit is not None
    rows, summary = predicted(run, "photos", outlier_quantile=0.5)
    assert summary.outliers == sum(row["outlier"] == "yes" for row in rows)
    assert 0.3 < summary.outliers / len(rows) < 0.7
    assert predicted(run, "photos", outlier_quantile=1.0)[1].outliers <= 1  # but for the last digit


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


def test_the_command_writes_a_whole_file_or_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "photos", "--output", "out/labels.csv"]) == 0
    with Path("out/labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"{len(rows)} images, {len(rows)} labelled" in capsys.readouterr().err
    assert main(["predict", "run", "photos", "nowhere", "--output", "out/other.csv"]) == DataError.exit_code
    assert [path.name for path in Path("out").iterdir()] == ["labels.csv"]
    assert main(["predict", "run", "photos", "--abstain-below", "2"]) == 2
