import re
from pathlib import Path

import pytest
from PIL import Image

from ebpl.config.presets import preset
from ebpl.errors import DataError
from experiments import ledger
from experiments.cells import cells, found
from experiments.output import tables
from experiments.readme import SHOWN, TABLES, comparison, fill

ROOT = Path(__file__).parents[2]


def record(seed: int, method: str, accuracy: float) -> ledger.Record:
    return {
        "data": {"name": "x", "fingerprint": "f"},
        "settings": {"seed": seed, "method": method, "pseudo_labels": "none", "depth": 16, "width": 4},
        "environment": {"gpu": None, "threads": 2, "torch": "2.0"},
        "result": {"metrics": {"accuracy": accuracy, "f_score": 0.5, "ece": 0.1}, "seconds": 7.0},
    }


def test_what_was_not_measured_is_said_so() -> None:
    table = comparison(
        [record(0, "ebpl", 0.9), record(0, "curriculum-labeling", 0.8), record(1, "ebpl", 0.7)], "x", "none"
    )
    assert "| 0 | 80.0 | 50.0 | 10.0 | 90.0 | 50.0 | 10.0 |" in table
    assert "| 1 | not measured | not measured | not measured | 70.0 | 50.0 | 10.0 |" in table
    assert "2 CPU threads; PyTorch 2.0" in table


def test_the_time_of_runs_that_shared_a_gpu_is_said_to_be_shared() -> None:
    shared = record(1, "ebpl", 0.7)
    shared["environment"]["runs_together"] = 5
    table = comparison([record(0, "ebpl", 0.9), shared], "x", "none")
    assert "EBPL 7 to 7 s of training, EBPL 7 to 7 s of training with up to 5 runs together on one GPU" in table


def test_runs_with_other_settings_are_not_mixed_into_a_table() -> None:
    other = record(1, "ebpl", 0.7)
    other["settings"]["width"] = 8
    with pytest.raises(DataError, match="differ in seed, width"):
        comparison([record(0, "ebpl", 0.9), other], "x", "none")
    with pytest.raises(DataError, match="may not mix"):
        comparison([record(0, "ebpl", 0.9), record(0, "ebpl", 0.8)], "x", "none")


def test_only_the_tables_are_replaced() -> None:
    text = "before <!-- results: digits -->old<!-- end: digits --> after"
    filled = fill(text, [])
    assert filled.startswith("before <!-- results: digits -->\n")
    assert filled.endswith("<!-- end: digits --> after")
    assert "old" not in filled


def test_the_readme_shows_what_the_ledger_holds() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in TABLES:
        assert f"<!-- results: {name} -->" in text
    assert text == fill(text, ledger.load(ROOT / "results")), "run: make readme"


CELLS = cells("table1", SHOWN, range(5), preset("standard"))


@pytest.mark.parametrize("name", re.findall(r"\(reproduced/(\S+\.png)\)", (ROOT / "README.md").read_text("utf-8")))
def test_the_figures_were_drawn_from_what_the_ledger_holds(name: str) -> None:
    experiment, data = name.split("-", 1)[0], name.removesuffix(".png").rsplit("-", 1)[-1]
    assert experiment == "table1"
    drawn_from = [record for cell, record in found(CELLS, ledger.load(ROOT / "results")) if cell.data == data]
    assert len(drawn_from) > 0
    with Image.open(ROOT / "reproduced" / name) as image:
        assert image.info["Source"] == ledger.digest(drawn_from), "run: make reproduced"


def test_the_readme_shows_two_figures() -> None:
    assert (ROOT / "README.md").read_text("utf-8").count("](reproduced/") >= 2


def test_the_tables_beside_the_figures_hold_what_the_ledger_holds() -> None:
    for name, text in tables(CELLS, ledger.load(ROOT / "results")).items():
        assert (ROOT / "reproduced" / name).read_text("utf-8") == text, "run: make reproduced"
