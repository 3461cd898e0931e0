import csv
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.calibration.conformal import calibrate
from ebpl.cli import main
from ebpl.cli.evaluate import _measured, _promised
from ebpl.errors import DataError, UsageError
from ebpl.inference.predict import Measured, Promises, Summary
from ebpl.runs import Run
from tests.helpers import class_folders, quick


@pytest.fixture
def run() -> Run:
    class_folders(Path("photos") / "train")
    class_folders(Path("photos") / "test", unlabeled=0)
    return ebpl.train("photos", quick(epochs=3, pseudo_labels="none"), run="run")


def test_the_command_writes_a_whole_file_or_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "photos", "--output", "out/labels.csv", "--label-outliers"]) == 0
    with Path("out/labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"{len(rows)} images, {len(rows)} labelled" in capsys.readouterr().err
    assert main(["predict", "run", "photos", "nowhere", "--output", "out/other.csv"]) == DataError.exit_code
    assert [path.name for path in Path("out").iterdir()] == ["labels.csv"]
    assert main(["predict", "run", "photos", "--abstain-below", "2"]) == 2


def test_what_is_told_besides_the_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "photos", "--output", "a.csv"]) == 0
    told = capsys.readouterr().err
    assert re.search(r"of the run's 8 test images, \d are right \(\d+ %, 95 % interval \d+ to \d+ %\)", told)
    assert "coverage" not in told
    assert main(["predict", "run", "photos", "--output", "b.csv", "--abstain-below", "0.5"]) == 0
    with Path("b.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labelled = sum(bool(row["label"]) for row in rows)
    usual = sum(row["outlier"] == "no" for row in rows)
    told = capsys.readouterr().err
    assert f"{labelled} labelled (coverage {100 * labelled / usual:.0f} %)" in told
    assert re.search(r"of the run's \d test images? with such a confidence|none of the run's 8 test images", told)
    assert main(["predict", "run", "photos", "--output", "c.csv", "--decide", "balanced"]) == 0
    assert "this is of the column 'label'; the decisions were not measured" in capsys.readouterr().err


def test_what_was_measured_is_counted_at_the_same_confidence_with_an_interval() -> None:
    summary = Summary(images=100, kept=10, outliers=0)
    assert _measured(Measured(9, 14, 431, True), 0.4, summary) == (
        "of the run's 14 test images with such a confidence, 9 are right (64 %, 95 % interval 39 to 84 %)"
    )
    assert _measured(Measured(3, 4, 431, False), 0, summary).startswith("of the run's 4 test images, about 3 are right")
    assert "none of the run's 431 test images has such a confidence" in _measured(Measured(0, 0, 431, True), 1, summary)
    different = _measured(Measured(300, 400, 431, True), 0.4, summary)
    assert different.endswith("; among those the coverage is 93 %, so the new images differ from them")
    few = Summary(images=5, kept=0, outliers=0)
    assert "coverage" not in _measured(Measured(300, 400, 431, True), 0.4, few)


def test_outliers_get_no_label_and_the_line_says_how_many_were_left_out(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    half = ["predict", "run", "photos", "--outlier-quantile", "0.5", "--output"]
    assert main([*half, "a.csv"]) == 0
    with Path("a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    outliers = sum(row["outlier"] == "yes" for row in rows)
    assert outliers
    assert not any(row["label"] for row in rows if row["outlier"] == "yes")
    told = capsys.readouterr().err
    assert f"{len(rows)} images, {len(rows) - outliers} labelled; " in told
    assert f"{outliers} are outliers, unlike the training images: without a label, and left out" in told
    assert main([*half, "b.csv", "--label-outliers"]) == 0
    told = capsys.readouterr().err
    assert f"{len(rows)} images, {len(rows)} labelled; " in told
    assert f"mean confidence of the {len(rows) - outliers} that are no outliers " in told
    assert f"{outliers} are outliers, unlike the training images: left out of these numbers" in told


def test_a_balanced_decision_is_a_column_beside_the_label(run: Run) -> None:
    assert main(["predict", "run", "photos", "--decide", "balanced", "--output", "a.csv"]) == 0
    with Path("a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["image", "label", "decision", "confidence"]
    assert {bool(row["decision"]) == bool(row["label"]) for row in rows} == {True}


def test_no_image_at_all_is_an_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert main(["predict", "run", "empty", "--output", "a.csv"]) == DataError.exit_code
    assert "no image in empty" in capsys.readouterr().err
    assert not Path("a.csv").exists()


def test_images_that_cannot_be_read_end_in_an_error_only_if_all_are(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken").mkdir()
    Path("broken/a.png").write_bytes(b"not an image")
    assert main(["predict", "run", "broken", "--output", "a.csv"]) == DataError.exit_code
    told = capsys.readouterr().err
    assert "1 cannot be read" in told
    assert "None of the images can be read: the column 'problem' in a.csv says why." in told
    with Path("a.csv").open(newline="") as file:
        assert [bool(row["problem"]) for row in csv.DictReader(file)] == [True]
    assert main(["predict", "run", "broken", "photos", "--output", "b.csv"]) == 0


def test_labels_are_not_written_over_a_file_unless_forced_nor_over_the_run(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.csv").write_text("precious")
    Path("link.csv").symlink_to("mine.csv")
    before = (run.path / "metrics.csv").read_bytes()
    for name in ("mine.csv", "link.csv", ".", "run/metrics.csv"):
        assert main(["predict", "run", "photos", "--output", name]) == 2
        assert name in capsys.readouterr().err
    assert main(["predict", "run", "photos", "--output", "run/metrics.csv", "--force"]) == 2
    assert (run.path / "metrics.csv").read_bytes() == before
    assert Path("mine.csv").read_text() == "precious"
    assert main(["predict", "run", "photos", "--output", "mine.csv", "--force"]) == 0
    assert Path("mine.csv").read_text().startswith("image,label,")


def test_what_was_measured_comes_before_the_confidence(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "photos", "--output", "a.csv"]) == 0
    told = capsys.readouterr().err
    assert 0 < told.index("of the run's 8 test images, ") < told.index("mean confidence ")
    assert "not measured" not in told
    assert "about" not in told


def test_without_test_images_no_accuracy_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    class_folders(Path("photos"))
    run = ebpl.train("photos", quick(epochs=3, pseudo_labels="none"), run="run")
    assert main(["predict", "run", "photos", "--output", "a.csv", "--label-outliers"]) == 0
    told = capsys.readouterr().err
    assert re.search(
        r"; mean confidence [^;]*\d %; how many are right was not measured: the run has no test images", told
    )
    assert "To measure it: ebpl evaluate run LABELLED_IMAGES (or train with a part test/ in the data)." in told
    assert "% right" not in told
    assert "about" not in told
    result = json.loads((run.path / "test_metrics.json").read_text())
    check = {"images": 120, "accuracy": 0.5, "confidence": 0.75, "proof": 0.0, "temperature": 1.0}
    (run.path / "test_metrics.json").write_text(json.dumps({**result, "check": check}))
    assert main(["predict", "run", "photos", "--output", "b.csv"]) == 0
    told = capsys.readouterr().err
    assert "Accuracy on 120 held-out labels is 50.0 % at a mean confidence of 75.0 %" in told


def test_an_accuracy_that_is_estimated_is_called_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path / "details.npz").unlink()
    assert main(["predict", "run", "photos", "--output", "a.csv", "--abstain-below", "0.01"]) == 0
    assert re.search(r"of the run.s 8 test images with such a confidence, about \d are right", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["a.xlsx", "a.tsv", "a.json", "a.csv.gz"])
def test_a_name_of_a_format_that_is_not_written_is_refused(
    run: Run, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "run", "photos", "--output", name]) == UsageError.exit_code
    told = capsys.readouterr().err
    assert f"tables are not written as {Path(name).suffix}" in told
    assert ".csv" in told
    assert ".parquet" in told
    assert not Path(name).exists()


def test_a_list_of_files_and_what_was_skipped(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("list.csv").write_text("image\nphotos/test/cats/0.png\nphotos/test/dogs/0.png\n")
    assert main(["predict", "run", "list.csv", "--output", "a.csv"]) == 0
    told = capsys.readouterr().err
    assert told.startswith("2 images, ")
    assert "Skipped" not in told
    Path("photos/drawing.svg").touch()
    assert main(["predict", "run", "photos", "--output", "b.csv"]) == 0
    assert "\nSkipped: 1 file whose name is not that of an image (1 .svg).\n" in capsys.readouterr().err


def test_costs_decide_where_they_are_given(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("costs.csv").write_text("true,cats,dogs\ncats,0,0\ndogs,1,0\n")
    assert main(["predict", "run", "photos", "--decide", "costs.csv", "--output", "a.csv", "--label-outliers"]) == 0
    with Path("a.csv").open(newline="") as file:
        assert {row["decision"] for row in csv.DictReader(file)} == {"dogs"}
    assert main(["predict", "run", "photos", "--decide", "fair", "--output", "b.csv"]) == UsageError.exit_code
    assert "probable, balanced, or an existing CSV of costs" in capsys.readouterr().err
    assert not Path("b.csv").exists()


def test_promises_are_told_with_the_labels_that_they_are_from(capsys: pytest.CaptureFixture[str]) -> None:
    class_folders(Path("photos") / "train")
    class_folders(Path("photos") / "test", labeled=20, unlabeled=0)
    ebpl.train("photos", quick(epochs=3, pseudo_labels="none"), run="run")
    capsys.readouterr()
    assert main(["predict", "run", "photos/train", "--coverage", "0.8", "--output", "a.csv"]) == 0
    told = capsys.readouterr().err
    assert "Calibrated on the run's 40 test images, which are no longer a fair test of this." in told
    assert re.search(
        r"hold the true class with a probability of 80 % \(lac\); for the labels at hand it is \d\d to \d\d % in 90 of "
        r"100 draws\. Mean size [\d.]+; \d+ of 14 sets hold one class, \d+ none\.",
        told,
    )
    words = ["--set-method", "raps", "--by-class", "--calibration", "photos/test", "--accuracy", "0.1"]
    assert main(["predict", "run", "photos/train", "--coverage", "0.8", *words, "--output", "b.csv"]) == 0
    told = capsys.readouterr().err
    assert "Calibrated on 40 labelled images of photos/test." in told
    assert "80 % within each class (raps). Mean size" in told
    assert re.search(r"By calibration, images are labelled at a confidence of at least 0\.\d\d, for an accuracy", told)
    words = ["--coverage", "0.8", "--semi-supervised"]
    assert main(["predict", "run", "photos/train", *words, "--output", "c.csv"]) == 0
    assert "; 14 unlabelled images were used too, so this is approximate." in capsys.readouterr().err
    assert main(["predict", "run", "photos/train", "--accuracy", "0.999", "--output", "d.csv"]) == DataError.exit_code
    assert "an accuracy of 99.9 % cannot be promised" in capsys.readouterr().err
    assert main(["predict", "run", "photos/train", "--coverage", "0.99", "--output", "d.csv"]) == DataError.exit_code
    assert "A coverage of 99 % needs at least 99 labels" in capsys.readouterr().err
    assert main(["predict", "run", "photos/train", "--coverage", "1", "--output", "d.csv"]) == UsageError.exit_code
    assert not Path("d.csv").exists()


def test_empty_sets_are_explained() -> None:
    sets = calibrate(np.tile([0.6, 0.4], (20, 1)), np.zeros(20, int), 0.5)
    summary = Summary(images=3, promises=Promises(sets, None, "20 images", ()), set_sizes=Counter({0: 1, 2: 2}))
    lines = _promised(summary)
    assert "Mean size 1.33; 0 of 3 sets hold one class, 1 none." in lines[1]
    assert lines[2].startswith("An empty set means that no class is probable enough.")
    assert _promised(Summary()) == []
