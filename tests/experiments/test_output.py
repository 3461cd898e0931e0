import sys
from pathlib import Path

import pytest

from ebpl.config.presets import preset
from experiments.grid import cells
from experiments.output import write


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
    assert "| blood | 2 | 87.0 ± 0.0 | 85.0 ± 0.0 | 3.0 ± 0.0 | 80.9 | 77.9 | 9.0 |" in page
    assert "| digits | 0 | not measured" in page
    assert "seed 1" in written[2].read_text()  # SVG keeps its words as comments


def test_without_matplotlib_tables_are_written_and_figures_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "experiments.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    chosen = cells("best", ["digits"], [0], preset("quick"))
    assert write(Path("out"), "best", chosen, [], preset("quick")) == [Path("out/best.md")]
    assert "pip install 'ebpl[experiments]'" in capsys.readouterr().err
