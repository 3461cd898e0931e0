from collections.abc import Callable
from pathlib import Path

import pytest

from ebpl.cli import main
from ebpl.runs import Run

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
