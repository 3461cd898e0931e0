import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import ebpl
from ebpl.cli import main
from ebpl.runs import Run
from tests.helpers import class_folders, quick

Named = Callable[[str], Run]


def test_the_command_writes_the_page_and_says_where(run_named: Named, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_named("without truth")
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out == f"The report is in {run.path / 'report.html'}\n"
    assert (run.path / "report.html").is_file()
    assert main(["report", str(run.path), "--output", "page.html"]) == 0
    assert Path("page.html").is_file()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["nowhere"], 4, "There is no run at nowhere"),
        (["run", "--data", "nowhere/"], 3, "does not exist"),
        (["run", "--output", "run/train.log"], 2, "file of the run itself"),
        (["run", "--outputs", "x"], 2, "Did you mean --output"),
        ([], 2, "required: RUN"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    run_named: Named, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    run_named("without truth")
    assert main(["report", *options]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_folder_of_seeds_is_told_to_name_one(run_named: Named, capsys: pytest.CaptureFixture[str]) -> None:
    run_named("without truth").path.rename("seed-0")
    assert main(["report", "."]) == 4
    assert "Name one of them" in capsys.readouterr().err


def test_images_that_are_gone_are_told(run_named: Named, capsys: pytest.CaptureFixture[str], caplog) -> None:
    assert main(["report", str(run_named("with truth").path)]) == 0
    assert "could not be looked at" in caplog.text


def test_metrics_are_not_written_over_a_file_a_folder_a_link_or_the_run(
    run_named: Named, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_named("without truth")
    Path("mine.json").write_text("precious")
    Path("link.json").symlink_to("mine.json")
    before = (run.path / "settings.toml").read_bytes()
    class_folders(Path("photos"), unlabeled=0)
    for name in ("mine.json", "link.json", ".", "run/settings.toml"):
        assert main(["evaluate", "run", "photos", "--json", name]) == 2
        assert name.removeprefix("run/") in capsys.readouterr().err
    assert Path("mine.json").read_text() == "precious"
    assert (run.path / "settings.toml").read_bytes() == before
    assert main(["evaluate", "run", "photos", "--json", "mine.json", "--force"]) == 0
    found = json.loads(Path("mine.json").read_text())
    assert [row["class"] for row in found["by_class"]] == ["cats", "dogs"]


def test_evaluate_and_the_report_say_the_same_of_the_confidence(
    run_named: Named, capsys: pytest.CaptureFixture[str]
) -> None:
    run_named("without truth")
    class_folders(Path("photos"), unlabeled=0)
    assert main(["evaluate", "run", "photos"]) == 0
    said = re.search(r"\((over|under|within chance)\)", capsys.readouterr().out)
    assert said
    assert main(["report", "run", "--data", "photos", "--output", "page.html"]) == 0
    word = "neither over- nor under-confident" if said[1] == "within chance" else f"It is {said[1]}-confident"
    assert word in Path("page.html").read_text()


def test_prediction_sets_are_measured_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    run = ebpl.train("digits", quick(epochs=1, pseudo_labels="none"), run="sets")
    capsys.readouterr()
    assert main(["evaluate", "sets", "--coverage", "0.9", "--set-method", "random-aps", "--json", "a.json"]) == 0
    told = capsys.readouterr().out.replace("\n", " ")
    found = json.loads(Path("a.json").read_text())
    row = next(row for row in found["by_class"] if row["class"] == "3")
    low, high = (round(100 * end) for end in row["recall_interval"])
    assert f"│ 3 │ {row['images']} │ {100 * row['recall']:.1f} % ({low} to {high}) │" in " ".join(told.split())
    found = found["prediction_sets"]
    assert f"(random-aps), each by the other images in ten folds: coverage {100 * found['coverage']:.1f} %" in told
    assert found["coverage"] == pytest.approx(0.9, abs=0.04)
    assert len(found["by_class"]) == 10
    assert ebpl.evaluate(run, coverage=0.9)["prediction_sets"]["method"] == "lac"
    assert "prediction_sets" not in ebpl.evaluate(run)
    assert main(["evaluate", "sets", "--coverage", "0"]) == 2


def test_the_metrics_before_and_after_calibration_are_shown_where_labels_were_held_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ebpl.calibration.MIN_HOLDOUT", 1)
    short = {"epochs": 1, "pseudo_labels": "none", "method": "supervised", "optim.updates_per_epoch": 2}
    run = ebpl.train("digits", quick(**short, **{"curriculum.calibration_holdout": 0.4}), run="held")
    assert main(["evaluate", "held"]) == 0
    shown = capsys.readouterr().out
    head = next(line for line in shown.splitlines() if "histogram binning" in line)
    assert [cell.strip() for cell in re.split("[┃│|]", head) if cell.strip()][1:] == [
        "none",
        "temperature",
        "histogram binning",
    ]
    ece = [re.findall(r"[\d.]+ %", line) for line in shown.splitlines() if "ECE, 15 bins" in line][-1]
    stored = run.metrics()["calibrations"]
    assert ece == [f"{100 * each['ece']:.1f} %" for each in stored.values()]
    assert main(["evaluate", "held", "--json", "-"]) == 0
    assert list(json.loads(capsys.readouterr().out)["calibrations"]) == list(stored)
