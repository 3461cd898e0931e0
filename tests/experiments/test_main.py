import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ebpl.config.presets import preset
from ebpl.io import write_json
from experiments.__main__ import main
from experiments.ablation import SMALL
from experiments.grid import Cell
from experiments.results_store import load
from tests.helpers import ROOT, environment

TINY = ("--preset", "quick", "--epochs", "1", "--set", "curriculum.steps=1", "--set", "curriculum.epochs=1", "--set",
        "optim.updates_per_epoch=2")  # fmt: skip


def test_the_package_is_a_command_with_tables_figures_and_an_overview() -> None:
    places = [word for name in ("results", "runs", "output") for word in (f"--{name}", str(Path(name).resolve()))]
    chosen = ["--datasets", "digits", "--seeds", "0", "--methods", "curriculum-labeling"]
    command = [sys.executable, "-m", "experiments", "table1", *chosen, *TINY, *places]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 cells are done" in done.stderr
    assert "seeds there" in done.stdout
    assert len(load(Path("results"))) == 3
    assert "n = 1" in Path("output/table1.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel1"], "There is no experiment 'tabel1'. Did you mean table1"),
        (["table1", "--dataset", "blood"], "There is no option --dataset for python -m experiments. Did you mean --da"),
        (["table1", "--datasets", "bloood"], "Did you mean blood"),
        (["table1", "--methods", "ebppl"], "Did you mean ebpl"),
        (["table1", "--metrics", "eec"], "Did you mean ece"),
        (["table1", "--set", "method=ebpl"], "table1 chooses method itself"),
        (["table1", "--set", "sgld.step=5"], "There is no setting 'sgld.step'"),
        (["table1", "--variants", "no warm-up"], "--variants are those of the ablation"),
        (["best", "--methods", "ebpl"], "table1 and labels do"),
        (["best", "--metrics", "ece"], "--metrics is for table1"),
        (["outliers", "--ray", "local"], "--ray is not for outliers"),
        (["table1", "extra"], "does not take 'extra' here"),
        (["table1", "--config", "none.toml"], "There is no file none.toml"),
    ],
)
def test_a_mistake_is_told_without_a_trace(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([*arguments, "--show"]) == 2
    assert capsys.readouterr().err.startswith("experiments: ")
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_stop_from_the_keyboard_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebpl.api.resume_runs", stop)
    for name in ("table1", "suggestions"):
        assert main([name, "--datasets", "digits", "--seeds", "0", *TINY]) == 130
        assert "The same command continues where it was stopped." in capsys.readouterr().err


def test_the_help_names_every_experiment_and_old_words_are_gone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for word in ("table1", "labels", "best", "ablation", "outliers", "suggestions", "--plots-only", "--methods"):
        assert word in shown
    assert "--draw-only" not in shown
    assert "--method " not in shown


def test_settings_come_from_a_file_too(capsys: pytest.CaptureFixture[str]) -> None:
    settings = preset("standard", seed=3, width=2, sgld__steps=3)
    record = {"data": {"name": "blood"}, "settings": settings.to_dict(), "result": {"metrics": None}}
    write_json(Path("results/x.json"), record)
    Path("mine.toml").write_text("[model]\nwidth = 2\n[sgld]\nsteps = 3\n")
    assert main(["table1", "--datasets", "blood", "--config", "mine.toml", "--show"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "EBPL" in line and "soft" in line)
    assert line.split()[4:6] == ["1", "4-7"]


def test_the_records_of_the_repository_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["table1", "--datasets", "blood", "--results", str(ROOT / "results"), "--seeds", "3-7", "--show"]
    assert main([*command, "--preset", "paper", "--set", "model.width=2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("blood")]
    there = {(row[1], row[2]): row[4] for row in rows}
    assert [there["EBPL", "none"], there["EBPL", "soft"], there["baseline", "none"]] == ["5", "5", "5"]


def test_one_variant_can_be_trained_without_what_it_is_a_variant_of(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("ablation", "--datasets", "digits", "--seeds", "0", "--variants", "hard pseudo-labels")
    assert main([*command, *TINY]) == 0
    assert "hard pseudo-labels" in capsys.readouterr().out
    records = load(Path("results"))
    assert {record["settings"]["curriculum.pseudo_labels"] for record in records} == {"none", "hard"}
    assert not any("details" in record for record in records)


def test_a_variant_that_changes_nothing_on_the_data_is_a_mistake_that_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ("ablation", "--variants", "no calibration holdout", "--seeds", "0", "--show")
    assert main([*command, "--datasets", "svhn"]) == 0
    assert main([*command, "--datasets", "blood"]) == 2
    assert "changes nothing about these settings and data" in capsys.readouterr().err


def test_the_command_of_the_docs_is_the_ablation_of_a_small_network(capsys: pytest.CaptureFixture[str]) -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    words = "python -m experiments "
    (line,) = (line for line in pages.splitlines() if line.startswith(f"{words}ablation --preset"))
    settings = preset("best", SMALL).to_dict()
    record = {"data": {"name": "blood"}, "settings": settings, "result": {"last": {"metrics": {}}}}
    assert Cell("blood", preset("best", SMALL)).is_in(record)
    write_json(Path("results/x.json"), record)
    assert main([*shlex.split(line.removeprefix(words)), "--variants", "unchanged", "--show"]) == 0
    (found,) = (row for row in capsys.readouterr().out.splitlines() if "unchanged" in row)
    assert found.split()[2:4] == ["1", "1-2"]
