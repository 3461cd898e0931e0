import sys
from pathlib import Path
from typing import Any

import pytest

from ebpl.config.presets import preset
from experiments.grid import Cell, cells
from experiments.output import LENGTH_OF_STEPS, past_the_paper, tables, write


def test_what_is_past_the_paper_stands_beside_its_best_with_the_course_of_training() -> None:
    chosen = cells("best", ["blood", "digits"], [0, 1], preset("quick", epochs=2, curriculum__epochs=1))
    measures = {"accuracy": 0.87, "f_score": 0.85, "ece": 0.03}
    curves = {
        "validation_accuracy": [0.5, 0.6, 0.7, 0.7, 0.8, 0.8],
        "validation_ece": [0.1, 0.1, 0.05, 0.04, 0.03, 0.03],
    }
    there = [
        {
            "data": {"name": "blood", "fingerprint": "x"},
            "settings": cell.settings.to_dict(),
            "result": {"metrics": {**measures, "accuracy": 0.99}, "last": {"metrics": measures}, "curves": curves},
        }
        for cell in chosen[:2]
    ]
    written = write(Path("out"), "best", chosen, there, preset("quick"))
    assert [path.name for path in written] == ["best.md", "best-curves-blood.png", "best-curves-blood.svg"]
    page = written[0].read_text()
    assert "| blood | 0-1 | 2 | 87.0 ± 0.0 | 85.0 ± 0.0 | 3.0 ± 0.0 | 80.9 | 77.9 | 9.0 |" in page
    assert "| digits |  | 0 | not measured" in page
    assert "seed 1" in written[2].read_text()  # SVG keeps its words as comments


def test_seeds_that_no_choice_has_seen_are_shown_alone_where_there_are_three() -> None:
    chosen = cells("best", ["blood"], range(8), preset("best"))

    def page(seeds: range) -> str:
        there = []
        for cell in chosen:
            metrics = {"accuracy": 0.1 * cell.settings.seed, "f_score": 0.5, "ece": 0.1}
            result = {"metrics": metrics, "last": {"metrics": metrics}}
            there.append({"data": {"name": "blood"}, "settings": cell.settings.to_dict(), "result": result})
        return past_the_paper(chosen, [there[seed] for seed in seeds])

    assert "| blood | 3-5 | 3 | 40.0 ± 10.0" in page(range(6))
    assert "| blood | 0-4 | 5 | 20.0 ± 15.8" in page(range(5))


def test_a_dataset_with_a_fitted_temperature_is_also_shown_without() -> None:
    settings = preset("best")
    with_one = cells("best", ["svhn"], [0], settings)
    without = cells("best", ["svhn"], [0], settings.changed(calibration_holdout=0.0))

    def record(cell: Cell, ece: float, **more: object) -> dict[str, Any]:
        metrics = {"accuracy": 0.94, "f_score": 0.94, "ece": ece}
        result = {"metrics": metrics, "last": {"metrics": metrics}, **more}
        return {"data": {"name": "svhn"}, "settings": cell.settings.to_dict(), "result": result}

    fitted = record(with_one[0], 0.013, check={"temperature": 0.6})
    page = past_the_paper(with_one, [fitted, record(without[0], 0.092)]).splitlines()
    assert [line.split("|")[1].strip() for line in page[2:]] == ["svhn, with a temperature", "svhn, without"]
    assert [line.split("|")[6].strip() for line in page[2:]] == ["1.3", "9.2"]


def test_without_matplotlib_tables_are_written_and_figures_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "experiments.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    chosen = cells("best", ["digits"], [0], preset("quick"))
    assert write(Path("out"), "best", chosen, [], preset("quick")) == [Path("out/best.md")]
    assert "pip install 'ebpl[experiments]'" in capsys.readouterr().err


def test_above_table_1_stands_how_long_the_steps_of_the_baseline_are() -> None:
    page = tables(cells("table1", ["digits"], [0], preset("quick")), [])["table1.md"]
    assert LENGTH_OF_STEPS in page.split("## ")[0]
