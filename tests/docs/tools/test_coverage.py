"""The tables of prediction sets and of ensembles, from the records."""

import json
from pathlib import Path

from docs.tools import coverage
from ebpl.calibration.conformal import METHODS
from tests.helpers import ROOT


def write(name: str, ways: dict[str, list[float]], folder: str = "results/coverage") -> None:
    rows = {way: {"50": {"coverage": values, "size": [2 * value for value in values]}} for way, values in ways.items()}
    Path(folder).mkdir(parents=True, exist_ok=True)
    data = {"name": name.partition("-")[0]}
    Path(folder, f"{name}.json").write_text(json.dumps({"data": data, "coverage": 0.9, "ways": rows}))


def cells(table: str) -> list[list[str]]:
    return [[cell.strip().replace("\u00a0", " ") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_draws_of_all_seeds_are_taken_together() -> None:
    write("cats-3", {"lac": [0.8, 1.0], "lac, semi-supervised": [0.9, 0.9], "MAPIE lac": [0.8, 0.8]})
    write("cats-4", {"lac": [0.85, 0.95], "lac, semi-supervised": [0.92, 0.92]})
    assert cells(coverage.gaps(Path())) == [
        ["cats", "50", "lac", "4", "90.0 ± 9.1", "7.5", "1.80"],
        ["cats", "50", "lac, semi-supervised", "4", "91.0 ± 1.2", "1.0", "1.82"],
    ]
    write("dogs-3", {"lac": [0.7, 0.7], "lac, semi-supervised": [0.9, 0.9]})
    assert cells(coverage.farthest(Path())) == [["lac", "20.0"], ["lac, semi-supervised", "1.0"]]
    assert cells(coverage.sizes(Path())) == [
        ["lac", "1.80 (90.0 %)", "1.40 (70.0 %)"],
        ["lac, semi-supervised", "1.82 (91.0 %)", "1.80 (90.0 %)"],
        ["MAPIE lac", "1.60 (80.0 %)", ""],
    ]


def test_members_are_beside_their_ensemble() -> None:
    one = {"accuracy": 0.5, "ece": 0.1, "overconfidence": 0.0, "nll": 1.0}
    two = {**one, "accuracy": 0.7}
    Path("results/ensemble").mkdir(parents=True)
    record = {"data": {"name": "cats"}, "members": {"0": one, "1": two}, "ensemble": {**one, "accuracy": 0.8}}
    Path("results/ensemble/a.json").write_text(json.dumps(record))
    assert cells(coverage.ensembles(Path())) == [
        ["cats", "each of 2 seeds", "60.0 ± 14.1", "10.0 ± 0.0", "0.0 ± 0.0", "1.000 ± 0.000"],
        ["cats", "together", "80.0", "10.0", "0.0", "1.000"],
    ]


def test_every_method_is_described() -> None:
    assert all(f"`{name}`" in coverage.methods() for name in METHODS)


def test_the_goals_are_met_by_seeds_that_no_choice_has_seen() -> None:
    records = [json.loads(path.read_text()) for path in (ROOT / "results/coverage").glob("*.json")]
    assert {each["settings"]["seed"] for each in records} == {3, 4, 5, 6, 7}
    assert len({each["data"]["name"] for each in records}) == 4
    (alone, semi) = cells(coverage.farthest(ROOT))
    for row in (alone, semi):
        twenty, fifty, _ = map(float, row[1:])
        assert twenty <= 3
        assert fifty <= 1.5
    found = coverage.draws(ROOT)
    for (data, way, labels), rows in found.items():
        if way == "MAPIE lac":
            assert rows == found[data, "lac", labels], "the same scores give the same sets"
