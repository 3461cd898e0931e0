import shlex
from pathlib import Path

import pytest

from ebpl.cli import main
from ebpl.config.presets import preset
from ebpl.io import write_json
from experiments.ablation import SMALL
from experiments.cells import Cell
from experiments.ledger import load

TINY = ("--preset", "quick", "--epochs", "1", "--steps", "1", "--step-epochs", "1", "--epoch-updates", "2")


def test_one_variant_can_be_trained_without_what_it_is_a_variant_of(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("reproduce", "ablation", "--datasets", "digits", "--seeds", "0", "--variants", "hard pseudo-labels")
    assert main([*command, *TINY]) == 0
    assert "hard pseudo-labels" in capsys.readouterr().out
    records = load(Path("results"))
    assert {record["settings"]["pseudo_labels"] for record in records} == {"none", "hard"}
    assert not any("details" in record for record in records)


def test_a_variant_that_changes_nothing_on_the_data_is_a_mistake_that_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ("reproduce", "ablation", "--variants", "no labels wait", "--seeds", "0", "--show")
    assert main([*command, "--datasets", "svhn"]) == 0
    assert main([*command, "--datasets", "blood"]) == 2
    assert "changes nothing about these settings and data" in capsys.readouterr().err


def test_the_command_of_the_docs_is_the_ablation_of_a_small_network(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs/explanation/improvements.md"
    (line,) = (line for line in page.read_text().splitlines() if line.startswith("ebpl reproduce ablation --preset"))
    settings = preset("best", **SMALL).to_dict()
    record = {"data": {"name": "blood"}, "settings": settings, "result": {"last": {"metrics": {}}}}
    assert Cell("blood", preset("best", **SMALL)).is_in(record)
    Path("results").mkdir()
    write_json(Path("results/x.json"), record)
    assert main([*shlex.split(line)[1:], "--variants", "as it is", "--show"]) == 0
    (found,) = (row for row in capsys.readouterr().out.splitlines() if "as it is" in row)
    assert found.split()[-2:] == ["1", "1-2"]
