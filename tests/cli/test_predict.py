import csv
from pathlib import Path

import pytest

import ebpl
from ebpl.cli import main
from ebpl.errors import DataError
from ebpl.runs import Run
from tests.helpers import class_folders, quick


@pytest.fixture
def run() -> Run:
    class_folders(Path("photos") / "train")
    class_folders(Path("photos") / "test", unlabeled=0)
    return ebpl.train("photos", quick(epochs=3, pseudo_labels="none"), run="run")


def test_the_command_writes_a_whole_file_or_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "photos", "--output", "out/labels.csv"]) == 0
    with Path("out/labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"{len(rows)} images, {len(rows)} labelled" in capsys.readouterr().err
    assert main(["predict", "run", "photos", "nowhere", "--output", "out/other.csv"]) == DataError.exit_code
    assert [path.name for path in Path("out").iterdir()] == ["labels.csv"]
    assert main(["predict", "run", "photos", "--abstain-below", "2"]) == 2


def test_what_is_told_besides_the_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "photos", "--output", "a.csv"]) == 0
    told = capsys.readouterr().err
    assert "measured on the run's 8 test images: " in told
    assert "coverage" not in told
    assert main(["predict", "run", "photos", "--output", "b.csv", "--abstain-below", "0.5"]) == 0
    with Path("b.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labelled = sum(bool(row["label"]) for row in rows)
    told = capsys.readouterr().err
    assert f"{labelled} labelled (coverage {100 * labelled / len(rows):.0f} %)" in told
    assert "measured on the run's 8 test images at that coverage: " in told


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
