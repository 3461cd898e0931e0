from pathlib import Path

from ebpl.config.presets import preset
from experiments.cells import cells
from experiments.output import overview, write


def test_the_overview_counts_what_is_there_and_names_what_is_missing() -> None:
    chosen = cells("table1", ["digits"], [0, 1, 2, 5], preset("quick"))
    there = [{"data": {"name": "digits"}, "settings": chosen[1].settings.to_dict()}]
    lines = overview(chosen, there)
    assert lines[1] == ["digits", "EBPL", "none", "paper's", "1", "0, 2, 5"]
    assert lines[2] == ["digits", "EBPL", "hard", "paper's", "0", "0-2, 5"]


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
