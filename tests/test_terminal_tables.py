import numpy as np

from ebpl.metrics import measure
from ebpl.terminal import measures_table, seeds_table, show
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


def test_five_seeds_and_their_spread_fit_a_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    results = {seed: measure(*random_predictions(seed, 60, 3, 2.0)) for seed in range(5)}
    show(seeds_table("some data", results))
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in lines if "accuracy %" in line and "minus" not in line)
    values = [100 * result["accuracy"] for result in results.values()]
    spread = [f"{np.mean(values):.1f}", "±", f"{np.std(values, ddof=1):.1f}"]
    assert row == ["accuracy", "%", *[f"{value:.1f}" for value in values], *spread]
    assert sum(bool(line.strip()) for line in lines) == 3 + len(results[0]), "no row is broken in two"


def test_of_many_seeds_the_range_is_shown(capsys) -> None:
    results = {seed: measure(*random_predictions(seed, 60, 3, 2.0)) for seed in range(9)}
    show(seeds_table("some data", results))
    printed = capsys.readouterr().out
    assert "lowest" in printed
    assert f"{100 * min(result['accuracy'] for result in results.values()):.1f}" in printed
