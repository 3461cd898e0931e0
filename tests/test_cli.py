import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebpl.cli import build_parser, main
from ebpl.settings import Settings
from tests.helpers import QUICK, class_folders, ebpl, environment


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_help_answers_in_well_under_a_second() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        answer = ebpl("--help")
        times.append(time.perf_counter() - start)
    assert answer.returncode == 0
    assert min(times) < 0.7
    for command in ("train", "resume", "evaluate", "demo", "benchmark"):
        assert command in answer.stdout


def test_every_option_of_every_command_has_a_line_of_help() -> None:
    _, commands = build_parser()
    for name, parser in commands.items():
        for action in parser._actions:
            assert action.help, (name, action.dest)


def test_every_setting_is_an_option_of_train() -> None:
    _, commands = build_parser()
    options = commands["train"].options()
    for field in dataclasses.fields(Settings):
        assert "--" + field.name.replace("_", "-") in options


def test_help_shows_defaults_of_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--help"])
    assert stopped.value.code == 0
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "(default: 16, paper: 28, quick: 10)" in text
    assert "100*t/T %" in text
    assert "%%" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits", "--epoch", "3"], "no option --epoch for ebpl train. Did you mean --epochs"),
        (["train", "digits", "--labels-per-clas=3"], "Did you mean --labels-per-class"),
        (["trian", "digits"], "There is no command 'trian'. Did you mean train"),
        (["train", "digits", "--method", "ebp"], "method is 'ebp'. Did you mean ebpl"),
        (["train", "digits", "--epochs", "many"], "'many' is not a whole number"),
        (["train", "digits", "--epochs", "-3"], "epochs is -3, but must be at least 1"),
        (["train", "digits", "--preset", "fast"], "There is no preset 'fast'"),
        (["train", "digits", "--depth", "17"], "Nearest: 16 or 22"),
        (["train", "digits", "--image-size", "0"], "0 is not positive"),
        (["train"], "the following arguments are required: DATA"),
        (["train", "digits", "more"], "does not take 'more'"),
        ([], "required: COMMAND"),
        (["train", "digits", "--device", "cuda"], "PyTorch sees no GPU"),
    ],
)
def test_a_wrong_command_line_is_answered_with_what_is_right(capsys, arguments: list[str], message: str) -> None:
    import torch

    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        ("no/such/folder", 3, "does not exist"),
        ("cifra10", 3, "Did you mean cifar10"),
        (".", 3, "holds no images"),
    ],
)
def test_bad_data_is_a_message_and_an_exit_code(capsys, data: str, code: int, message: str) -> None:
    found, _, error = run(capsys, "train", data)
    assert found == code
    assert message in error


def test_a_class_with_one_image(capsys, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "pets", labeled=1)
    code, _, error = run(capsys, "train", folder, *QUICK, "--validation-fraction", "0.5")
    assert code == 3
    assert "no label left" in error
    code, out, _ = run(capsys, "train", folder, *QUICK, "--method", "curriculum-labeling", "--run", "run")
    assert code == 0
    assert "no labelled test images" in out


def test_train_evaluate_and_resume(capsys) -> None:
    options = [*QUICK, "--method", "curriculum-labeling", "--pseudo-labels", "none"]
    code, out, err = run(capsys, "train", "digits", *options, "--run", "run")
    assert code == 0
    assert "macro F-score" in out
    assert "initial, epoch 1/2" in err
    code, out, _ = run(capsys, "resume", "run")
    assert code == 0
    assert "finished already" in out
    code, out, _ = run(capsys, "evaluate", "run", "--json", "-")
    assert code == 0
    result = json.loads(out)
    assert result["metrics"]["images"] == 597
    assert sum(row["images"] for row in result["reliability"]) == 597
    code, out, _ = run(capsys, "evaluate", "run", "--json", "result.json")
    assert json.loads(Path("result.json").read_text()) == result
    assert "ECE, 15 bins" in out
    code, _, error = run(capsys, "train", "digits", *options, "--run", "run")
    assert code == 4
    assert "ebpl resume run" in error


def test_interrupting_says_how_to_go_on(capsys, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("Stopped. Go on with: ebpl resume here")

    monkeypatch.setattr("ebpl.api.train", interrupted)
    code, _, error = run(capsys, "train", "digits", *QUICK)
    assert code == 130
    assert "ebpl resume here" in error


def test_too_little_memory_is_a_message(capsys) -> None:
    code, _, error = run(capsys, "train", "digits", *QUICK, "--buffer-size", 10**12, "--run", "run")
    assert code == 1
    assert "not enough memory" in error
    assert "--buffer-size" in error


def test_a_file_that_may_not_be_read_is_a_message(capsys, monkeypatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "secret.csv")

    monkeypatch.setattr("ebpl.api.train", refused)
    code, _, error = run(capsys, "train", "digits", *QUICK)
    assert (code, error) == (3, "ebpl: secret.csv: Permission denied\n")


def test_a_reader_that_goes_away_does_not_stop_training() -> None:
    command = f"{sys.executable} -m ebpl train digits {' '.join(QUICK)} --method curriculum-labeling --run run"
    subprocess.run(["bash", "-c", f"{command} 2>&1 | head -n 1"], env=environment(), check=True, capture_output=True)
    assert Path("run/test_metrics.json").is_file()
