import csv
import json
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.cli import main
from ebpl.cli.labels import SHOWN, advice, doubtful, one_line
from ebpl.labeling.label_errors import LabelCheck, LabelError
from tests.helpers import quick
from tests.labeling.test_label_errors import wrongly_labelled


@pytest.fixture
def wrong() -> list[int]:
    """A run in `run` on `wrong.npz`, with some wrong labels."""
    data, wrong = wrongly_labelled()
    np.savez("wrong.npz", train_images=data.train.pixels, train_labels=data.train.labels)
    ebpl.train("wrong.npz", quick(pseudo_labels="none"), run="run")
    return wrong


def test_a_run_is_asked_which_of_its_labels_may_be_wrong(wrong: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "run"]) == 0
    told = capsys.readouterr().out
    rows = [line.split("│")[1].strip() for line in told.splitlines() if line.startswith("│")]
    assert set(rows[:3]) == {str(i) for i in wrong}
    assert "of 120 labels are doubtful" in told
    assert "ebpl inspect run --output doubtful.csv" in told
    assert "How accuracy depends on the number of labels was not measured" in told


def test_the_list_is_filled_in_and_comes_back_as_labels(wrong: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "run", "--output", "doubtful.csv"]) == 0
    told = capsys.readouterr().out
    assert f"ebpl add-labels {Path('wrong.npz').resolve()} doubtful.csv" in told
    with open("doubtful.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["label"] = row["suggested"] if int(row["image"]) in wrong else ""
    with open("doubtful.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert main(["add-labels", "wrong.npz", "doubtful.csv", "--output", "right.npz"]) == 0
    assert "3 images got another label" in capsys.readouterr().out
    found = ebpl.load("right.npz").train.labels
    assert (found == np.arange(len(found)) % 3).all()


def test_the_list_can_be_json_or_go_to_a_pipe(wrong: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {error["index"] for error in found["errors"][:3]} == set(wrong)
    assert found["labels"] == 120
    assert found["learning_curve"] is None
    assert "not measured" in found["more_labels"]
    assert main(["inspect", "run", "--output", "-"]) == 0
    out = capsys.readouterr().out
    assert next(iter(csv.DictReader(out.splitlines())))["label"] == ""


@pytest.mark.usefixtures("wrong")
def test_no_file_is_replaced_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("mine")
    assert main(["inspect", "run", "--output", "mine.csv"]) != 0
    assert Path("mine.csv").read_text() == "mine"
    assert main(["inspect", "run", "--output", "run/settings.toml", "--force"]) != 0
    assert main(["inspect", "run", "--output", "mine.csv", "--force"]) == 0
    assert Path("mine.csv").read_text().startswith("rank,image,label")
    capsys.readouterr()


def test_for_data_the_option_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "digits", "--output", "x.csv"]) != 0
    assert "run directory" in capsys.readouterr().err


def test_too_few_labels_and_none_in_doubt_are_said() -> None:
    assert advice(LabelCheck((), 0, float("nan"), "x"), "run", None, "d") == [
        "There are too few labels to judge them by each other."
    ]
    (only,) = advice(LabelCheck((), 50, 1.0, "x"), "run", None, "d")
    assert only.startswith("0 of 50 labels are doubtful")


def test_names_stay_on_their_line_and_the_table_is_short() -> None:
    error = LabelError("a\nb\x1b[2J", 0, "c", "d", 0.1, 0.9, "other")
    table = doubtful(LabelCheck((error,) * 50, 60, 0.5, "x"))
    assert table.row_count == SHOWN
    assert one_line(error.image) == "a\\nb\\x1b[2J"
