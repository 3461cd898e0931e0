from ebpl.config.presets import preset
from experiments.grid import cells
from experiments.selection import moments, rows

SETTINGS = preset("quick", epochs=2, curriculum__steps=2, curriculum__epochs=1)
CELLS = cells("table1", ["digits"], [0, 1], SETTINGS)


def record(cell, accuracy, ece):
    curves = {"validation_accuracy": accuracy, "validation_ece": ece}
    return {"data": {"name": "digits"}, "settings": cell.settings.to_dict(), "result": {"curves": curves}}


SOFT = [cell for cell in CELLS if (cell.settings.method, cell.settings.curriculum.pseudo_labels) == ("ebpl", "soft")]
RECORDS = [
    record(SOFT[0], [0.1, 0.5, 0.9, 0.7], [0.4, 0.3, 0.2, 0.1]),
    record(SOFT[1], [0.3, 0.8, 0.6, 0.7], [0.4, 0.3, 0.2, 0.3]),
]


def test_moments_are_the_ends_of_phases_and_the_best_epoch() -> None:
    assert moments(RECORDS[0]) == {
        "best validation accuracy": 2,
        "end of the initial training": 1,
        "end of step 1": 2,
        "end of step 2": 3,
    }


def test_each_moment_has_the_mean_over_seeds() -> None:
    heads, line = rows(CELLS, RECORDS)
    assert dict(zip(heads, line, strict=True)) == {
        "data": "digits",
        "method": "EBPL",
        "pseudo-labels": "soft",
        "n": "2",
        "best validation accuracy": "85.0 / 25.0",
        "end of the initial training": "65.0 / 30.0",
        "end of step 1": "75.0 / 20.0",
        "end of step 2": "70.0 / 20.0",
    }


def test_records_without_curves_have_no_moments() -> None:
    assert rows(CELLS, [{**RECORDS[0], "result": {}}]) == []
