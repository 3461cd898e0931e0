from ebpl.measuring.summary import measure
from ebpl.reporting.tables import measures_table, show
from tests.measuring.test_calibration import random_predictions


def test_a_table_has_a_column_for_each_result(capsys) -> None:
    results = {name: measure(*random_predictions(seed, 60, 3, 2.0)) for seed, name in enumerate(("EBPL", "baseline"))}
    show(measures_table("some data", results))
    printed = capsys.readouterr().out
    for text in ("some data", "EBPL", "baseline", "macro F-score", "over)"):
        assert text in printed


def test_only_the_measures_asked_for_are_shown(capsys) -> None:
    show(measures_table("t", {"EBPL": measure(*random_predictions(0, 60, 3, 2.0))}, ["accuracy"]))
    printed = capsys.readouterr().out
    assert "accuracy" in printed
    assert "ECE" not in printed
