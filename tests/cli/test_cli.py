import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ebpl.cli import VERBS, build_parser, main
from ebpl.cli.options import assignment
from ebpl.config import Settings, fields
from ebpl.errors import DataError, DivergedError, RunError, UsageError
from ebpl.runs import Run
from tests.helpers import QUICK, blobs, class_folders, ebpl, environment, quick


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
    assert all(f"\n    {verb}" in answer.stdout for verb in VERBS)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["train", "digits", "--epoch", "3"]])
def test_help_and_wrong_options_need_no_torch(arguments: list[str]) -> None:
    code = (
        "import contextlib, sys\nfrom ebpl.cli import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({arguments})\n"
        "print([name for name in ('torch', 'numpy', 'sklearn', 'rich') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_every_option_of_every_command_has_a_line_of_help() -> None:
    _, commands = build_parser()
    for name, parser in commands.items():
        for action in parser._actions:
            assert action.help, (name, action.dest)


def test_every_setting_can_be_given_on_the_command_line() -> None:
    options = build_parser()[1]["train"].options()
    for name, setting in fields().items():
        if setting.is_option:
            assert "--" + setting.field.name.replace("_", "-") in options
        value = Settings()[name]
        word = "none" if value is None else str(value)
        assert assignment(f"{name}={word}") == (name, value)


SHELL_ONLY = {
    "inspect": {"json", "no_timing", "output", "force"},
    "evaluate": {"json", "force"},
    "suggest": {"output", "label_studio", "image_url", "no_predictions", "force"},
}
"""Forms of output, which in Python are values; --no-timing is timing=False."""
PYTHON_ONLY = {"settings", "changes", "data", "timing", "progress", "done", "details"}
"""What cannot be typed: objects of Python, functions to be told of progress; details=True is what --json writes."""


SHELL_VERBS = {"demo", "encoders"}
"""What is no function of `ebpl`: in Python, `ebpl.encoders` is the package with the functions themselves."""


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in SHELL_VERBS])
def test_python_has_every_verb_with_the_arguments_of_the_shell(verb: str) -> None:
    package = importlib.import_module("ebpl")
    parameters = inspect.signature(getattr(package, verb.replace("-", "_"))).parameters
    assert verb.replace("-", "_") in package.__all__
    given = {action.dest: action for action in build_parser(verb)[1][verb]._actions if action.dest != "help"}
    settings = {setting.field.name for setting in fields().values() if setting.is_option} if verb == "train" else set()
    assert given.keys() - parameters.keys() - settings == SHELL_ONLY.get(verb, set())
    assert parameters.keys() - given.keys() <= PYTHON_ONLY
    for name in given.keys() & parameters.keys():
        default = parameters[name].default
        if given[name].option_strings and default is not inspect.Parameter.empty:
            assert given[name].default in (default, [], "-"), name


def test_only_few_verbs_are_for_the_shell_alone() -> None:
    assert set(VERBS) - SHELL_VERBS == {"inspect", "train", "resume", "evaluate", "predict", "suggest", "add-labels",
                                        "report", "export"}  # fmt: skip
    assert not SHELL_VERBS & set(importlib.import_module("ebpl").__all__)


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_the_help_of_every_command_fits_one_screen(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in VERBS:
        text = help_of(capsys, verb, "--help")
        assert len(text.splitlines()) <= 50, verb
        assert max(map(len, text.splitlines())) <= 80, verb
        assert text.startswith(f"usage: ebpl {verb} "), "the way it is typed"
        assert "%%" not in text


def test_help_is_shown_however_it_is_asked_for(capsys) -> None:
    whole = help_of(capsys, "--help")
    assert help_of(capsys) == help_of(capsys, "help") == whole
    assert help_of(capsys, "help", "train") == help_of(capsys, "train", "--help") != whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits", "--epoch", "3"], "no option --epoch for ebpl train. Did you mean --epochs?"),
        (["train", "digits", "--epoch", "3"], "Other settings: --set group.name=value"),
        (["train", "digits", "--sgld-steps", "3"], "Did you mean --set sgld.steps=X?"),
        (["train", "digits", "--no-clamp-samples"], "Did you mean --set sgld.clamp_samples=X?"),
        (["train", "digits", "--held-back=0.2"], "Did you mean --set curriculum.calibration_holdout=X?"),
        (["train", "digits", "--set", "nonsense=1"], "There is no setting 'nonsense'. Known: augment, "),
        (["train", "digits", "--set", "sgld.stesp=1"], "There is no setting 'sgld.stesp'. Did you mean sgld.steps"),
        (["train", "digits", "--set", "steps=3"], "steps could be curriculum.steps or sgld.steps."),
        (["train", "digits", "--set", "sgld.steps=many"], "sgld.steps is 'many', but must be a whole number"),
        (["train", "digits", "--set", "sgld.steps=0"], "sgld.steps is 0, but must be between 1 and 100000"),
        (["train", "digits", "--set", "sgld.steps"], "give a name and a value, for instance sgld.steps=5"),
        (["train", "digits", "--set", "sgld.clamp_samples=maybe"], "'maybe', but must be true or false"),
        (["train", "digits", "--config", "none.toml"], "There is no file none.toml"),
        (["train", "digits", "--labels-per-clas=3"], "Did you mean --labels-per-class"),
        (["trian", "digits"], "There is no command 'trian'. Did you mean train"),
        (["train", "digits", "--method", "ebp"], "There is no method 'ebp'. Did you mean ebpl"),
        (["train", "digits", "--epochs", "many"], "'many' is not a whole number"),
        (["train", "digits", "--epochs", "-3"], "epochs is -3, but must be between 1 and 10000"),
        (["train", "digits", "--preset", "fast"], "There is no preset 'fast'"),
        (["train", "digits", "--depth", "17"], "Nearest: 16 or 22"),
        (["train", "digits", "--image-size", "0"], "0 is not positive"),
        (["train"], "the following arguments are required: DATA"),
        (["train", "digits", "more"], "does not take 'more'"),
        (["train", "digits", "--seeds", "0-2,1"], "Seed 1 is named more than once"),
        (["train", "digits", "--seeds", "five"], "'five' in --seeds five is no seed"),
        (["train", "digits", "--seeds", "0-4", "--seed", "1"], "--seed trains one seed and --seeds several"),
        (["train", "digits", "--device", "cuda"], "PyTorch sees no GPU"),
    ],
)
def test_a_wrong_command_line_is_answered_with_what_is_right(capsys, arguments: list[str], message: str) -> None:
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


BASELINE = [*QUICK, "--method", "curriculum-labeling", "--pseudo-labels", "none"]


def test_several_seeds_are_trained_resumed_and_evaluated_together(capsys) -> None:
    code, out, err = run(capsys, "train", "digits", *BASELINE, "--seeds", "0,2")
    assert code == 0
    folder = Path("runs/digits-curriculum-labeling-none-seeds0_2")
    assert sorted(path.name for path in folder.iterdir()) == ["seed-0", "seed-2", "seeds.json"]
    assert "digits, test images, 2 seeds" in out
    assert "mean ± std" in out
    assert "seed 0: initial, epoch 1/2" in err
    assert "seed 2: initial, epoch 1/2" in err
    (folder / "seed-2" / "test_metrics.json").unlink()
    code, out, err = run(capsys, "evaluate", folder)
    assert code == 0
    assert "Not finished, and left out: seed 2" in out
    code, out, err = run(capsys, "resume", folder)
    assert code == 0
    assert "seed-0 is finished already" in out
    assert "seed 2: continuing after 2 epochs" in err
    assert "2 seeds" in out
    code, out, _ = run(capsys, "evaluate", folder, "--json", "-")
    result = json.loads(out)
    accuracies = [result["seeds"][seed]["metrics"]["accuracy"] for seed in ("0", "2")]
    assert result["mean"]["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert result["standard_deviation"]["accuracy"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    code, _, error = run(capsys, "train", "digits", *BASELINE, "--seeds", "5", "--run", folder)
    assert code == 4
    assert f"ebpl resume {folder}" in error


def test_a_seed_that_fails_is_told_beside_the_results_of_the_others(capsys, monkeypatch) -> None:
    from ebpl.training.trainer import Trainer

    work = Trainer.work

    def diverges(trainer: Trainer, stored: object) -> object:
        if trainer.settings.seed == 1:
            raise DivergedError("It diverged.")
        return work(trainer, stored)

    monkeypatch.setattr(Trainer, "work", diverges)
    code, out, error = run(capsys, "train", "digits", *BASELINE, "--seeds", "0-2", "--run", "seeds")
    assert code == DivergedError.exit_code
    assert "2 seeds" in out
    assert "macro F-score" in out
    assert "1 of 3 runs failed." in error
    assert f"{Path('seeds/seed-1')}: It diverged." in error
    code, out, error = run(capsys, "resume", "seeds")
    assert code == DivergedError.exit_code
    assert "2 seeds" in out
    monkeypatch.undo()


def test_runs_that_have_nothing_in_common_are_resumed_together_and_shown_one_by_one(capsys) -> None:
    for name in ("a", "b"):
        assert run(capsys, "train", "digits", *BASELINE, "--run", name)[0] == 0
    Path("b/test_metrics.json").unlink()
    code, out, err = run(capsys, "resume", "a", "b", "b")
    assert code == 0
    assert "b: continuing after 2 epochs" in err
    assert out.count("macro F-score") == 2
    assert "Each seed's weights" not in out


def test_seeds_without_test_images_say_how_to_measure(capsys, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "pets")
    code, out, _ = run(capsys, "train", folder, *BASELINE, "--seeds", "0-1", "--run", "seeds")
    assert code == 0
    assert "ebpl evaluate seeds DATA" in out
    code, out, _ = run(capsys, "evaluate", "seeds", folder)
    assert code == 0
    assert "2 seeds" in out
    Path("seeds/seed-0/settings.toml").write_text("no settings")
    code, out, _ = run(capsys, "evaluate", "seeds", folder)
    assert code == 0
    assert "Seed 0 is left out" in out


def test_interrupting_says_how_to_go_on(capsys, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("Stopped. Continue with: ebpl resume here")

    monkeypatch.setattr("ebpl.api.train", interrupted)
    code, _, error = run(capsys, "train", "digits", *QUICK)
    assert code == 130
    assert "ebpl resume here" in error


def test_too_little_memory_is_a_message(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebpl.training.train_state.ReplayBuffer", lambda *_: torch.empty(10**15))
    code, _, error = run(capsys, "train", "digits", *QUICK, "--run", "run")
    assert code == 1
    assert "not enough memory" in error
    assert "sgld.buffer_size" in error


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


def test_several_runs_are_not_resumed_on_several_devices(capsys: pytest.CaptureFixture[str]) -> None:
    Run.create_for_seeds("seeds", quick(), [0, 1], blobs(), {})
    assert main(["resume", "seeds", "--devices", "2"]) == 2
    assert "for one run" in capsys.readouterr().err


def test_names_from_outside_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(Path("pets"))
    (root / "cats" / "\x1b]0;title\x07\x1b[2J.png").touch()
    code, _, error = run(capsys, "train", root)
    assert code == 3
    assert r"\x1b]0;title\x07\x1b[2J.png: the file is empty" in error
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", error)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_standard_streams_are_no_traceback(closed: int, run: Run) -> None:
    shell = f'exec "$@" {closed}>&-'
    command = [sys.executable, "-m", "ebpl", "evaluate", str(run.path), "nothing.npz"]
    done = subprocess.run(["sh", "-c", shell, "sh", *command], capture_output=True, text=True, env=environment())
    assert done.returncode == DataError.exit_code
    assert "Traceback" not in done.stderr
    command = [sys.executable, "-m", "ebpl", "--version"]
    done = subprocess.run(["sh", "-c", shell, "sh", *command], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


def test_predictions_for_a_closed_standard_output_are_no_traceback(run: Run) -> None:
    class_folders(Path("pets"))
    command = [sys.executable, "-m", "ebpl", "predict", str(run.path), "pets"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True, text=True, env=environment()
    )
    assert "Traceback" not in done.stderr
    assert "images" in done.stderr


def test_a_time_limit_or_a_run_that_makes_no_sense_is_one_line(capsys) -> None:
    for words, said in (
        (["--time-limit", "banana"], "'banana' is not a time. Give for instance 90, 90s, 20m or 1.5h"),
        (["--time-limit", "nan"], "'nan' is not a time"),
        (["--run", "run-\udcff"], "is not valid UTF-8"),
        (["--set", "updates_per_epoch=1000000000000000"], "must be between 1 and 1000000"),
    ):
        assert main(["train", "digits", "--preset", "quick", *words]) in (UsageError.exit_code, RunError.exit_code)
        assert said in capsys.readouterr().err
    assert not list(Path().glob("run*"))


def test_seeds_whose_runs_are_gone_are_named_and_resume_does_not_end_well(capsys) -> None:
    assert (
        main(["train", "digits", *QUICK, "--epochs", "1", "--pseudo-labels", "none", "--seeds", "0,1,2", "--run", "s"])
        == 0
    )
    capsys.readouterr()
    shutil.rmtree("s/seed-1")
    assert main(["resume", "s"]) == RunError.exit_code
    assert "no run directory for seed 1 in s" in capsys.readouterr().out
    shutil.rmtree("s/seed-2")
    assert main(["resume", "s"]) == RunError.exit_code
    assert "no run directory for seed 1, 2 in s" in capsys.readouterr().out
    shutil.rmtree("s/seed-0")
    assert main(["resume", "s"]) == RunError.exit_code
    assert "the runs of 0, 1, 2 are gone" in capsys.readouterr().err


def test_resume_of_a_finished_run_with_damaged_weights_does_not_end_well(capsys, run: Run) -> None:
    weights = run.path / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    assert main(["resume", str(run.path)]) == RunError.exit_code
    told = capsys.readouterr()
    assert "its check sum is wrong" in told.err
    assert "Weights of" not in told.out
    assert "finished already" not in told.out
