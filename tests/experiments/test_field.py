import json
from pathlib import Path
from typing import Any

import pytest

from ebpl.config.presets import preset
from ebpl.data import load
from ebpl.errors import UsageError
from experiments.__main__ import main
from experiments.field import FIELD_METHODS, Field, field_settings, published, read_times, time_update, times_path
from experiments.grid import Cell
from experiments.results_store import Record
from experiments.results_store import load as load_records
from tests.experiments.test_main import TINY
from tests.helpers import quick

TIMES = {"cifar10": {"ebpl": 0.02, "fixmatch": 0.03, "supervised": 0.004}}
WORK = Field(datasets=["cifar10"], seeds=[3, 4, 5], methods=list(TIMES["cifar10"]), times=TIMES)
BEST = preset("best")
UPDATES = (BEST.optim.epochs + BEST.curriculum.steps * BEST.curriculum.epochs) * 256


def updates(cell: Cell) -> int:
    chosen = cell.settings
    steps = chosen.curriculum.steps * chosen.curriculum.epochs if chosen.curriculum.pseudo_labels != "none" else 0
    return (chosen.optim.epochs + steps) * (chosen.optim.updates_per_epoch or 0)


def record(cell: Cell, accuracy: float = 0.8, ece: float = 0.02) -> Record:
    metrics = {"accuracy": accuracy, "ece": ece, "nll": 0.4, "aurc": 0.03}
    epochs = updates(cell) // 256
    curves = {f"validation_{name}": [value] * epochs for name, value in (("accuracy", accuracy), ("ece", ece))}
    result: dict[str, Any] = {"metrics": metrics, "last": {"metrics": metrics}, "curves": curves}
    result["updates"] = {"made": updates(cell), "of": updates(cell)}
    if cell.settings.curriculum.calibration_holdout:
        result["check"] = {"images": 105}
        result["calibrations"] = {
            name: {**metrics, "ece": value}
            for name, value in (("none", 0.1), ("temperature", 0.05), ("histogram binning", 0.04))
        }
    return {"data": {"name": cell.data}, "settings": cell.settings.to_dict(), "result": result}


def test_all_methods_have_the_settings_of_best_and_as_many_updates() -> None:
    for method in FIELD_METHODS:
        cell = WORK.cell("updates", "cifar10", method, 3)
        assert cell is not None
        assert updates(cell) == UPDATES
        changed = {"method", "optim.epochs", "curriculum.pseudo_labels", "curriculum.calibration_holdout", "seed"}
        steps = {"curriculum.selection", "curriculum.pseudo_label_temperature", "curriculum.labeled_batch_fraction"}
        mine, other = cell.settings.to_dict(), BEST.to_dict()
        assert {name for name in mine if mine[name] != other[name]} <= changed | steps


def test_at_equal_minutes_the_updates_are_those_that_take_as_long() -> None:
    for method, seconds in TIMES["cifar10"].items():
        cell = WORK.cell("minutes", "cifar10", method, 3)
        assert cell is not None
        assert updates(cell) * seconds == pytest.approx(UPDATES * 0.02, rel=256 / UPDATES)
    assert WORK.cell("minutes", "cifar10", "ebpl", 3) == WORK.cell("updates", "cifar10", "ebpl", 3)
    assert WORK.cell("minutes", "blood", "fixmatch", 3) is None


def test_the_tables_have_means_minutes_and_the_best_in_bold() -> None:
    of = {"ebpl": (0.8, 0.02), "fixmatch": (0.9, 0.05), "supervised": (0.6, 0.2)}
    records = [record(cell, *of[cell.settings.method]) for cell in WORK.cells()]
    heads, *lines = WORK.rows("minutes", records)
    named = {line[1]: dict(zip(heads, line, strict=True)) for line in lines}
    assert named["FixMatch"]["accuracy %"] == "**90.0 ± 0.0**"
    assert named["EBPL"]["ECE %"] == "**2.0 ± 0.0**"
    assert named["EBPL"]["accuracy %"] == "80.0 ± 0.0"
    assert named["EBPL"]["updates"] == f"{UPDATES:,}"
    whole = UPDATES * 0.02 / 60
    assert [float(line["minutes"]) for line in named.values()] == pytest.approx([whole] * 3, abs=0.1)
    assert {line["n"] for line in named.values()} == {"3"}
    few = [each for each in records if each["settings"]["seed"] < 5]
    assert "**" not in WORK.markdown(few)
    page = WORK.pages(records)["field.md"]
    assert page.count("| FixMatch |") == 3
    assert "| cifar10 | FixMatch | 3 | 90.0 ± 0.0 | 10.0 ± 0.0 | 5.0 ± 0.0 | 4.0 ± 0.0 |" in page


def test_a_single_method_is_not_a_comparison() -> None:
    assert WORK.pages([record(cell) for cell in WORK.cells(["updates"]) if cell.settings.method == "ebpl"]) == {}
    assert published().pages([]) == {}


def test_times_are_found_again_whatever_the_length_but_not_for_another_network() -> None:
    settings = field_settings()
    longer = settings.changed(epochs=99, seed=4, method="fixmatch", pseudo_labels="none")
    places = {times_path(Path("r"), each).name for each in (settings, longer)}
    assert len(places) == 1
    assert times_path(Path("r"), settings.changed(width=2)).name not in places
    assert times_path(Path("r"), settings.changed({"sgld.steps": 1})).name not in places
    assert read_times(Path("r"), settings) == {}


def test_an_update_with_more_images_takes_longer() -> None:
    digits = load("digits")
    small, large = (time_update(digits, quick(method="supervised", batch_size=size), 2) for size in (2, 256))
    assert 0 < small < large


def test_the_command_times_trains_and_writes_tables_and_the_curve(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.field.UPDATES", 1)
    command = ["field", "--datasets", "digits", "--seeds", "0", "--methods", "ebpl,fixmatch", *TINY]
    assert main(command) == 0
    [times] = Path("results/field").glob("*.json")
    stored = json.loads(times.read_text())
    assert set(stored["seconds"]["digits"]) == {"ebpl", "fixmatch"}
    made = load_records(Path("results"))
    assert {each["settings"]["method"] for each in made} == {"ebpl", "fixmatch"}
    assert "At equal minutes" in Path("reproduced/field.md").read_text()
    assert Path("reproduced/field-curve-digits.png").stat().st_size > 10_000
    assert "equal minutes" in capsys.readouterr().out
    before = times.stat().st_mtime_ns
    assert main(command) == 0
    assert times.stat().st_mtime_ns == before
    assert len(load_records(Path("results"))) == len(made)


@pytest.mark.parametrize(
    ("given", "message"), [({"datasets": ["cifar"]}, "cifar10"), ({"methods": ["fixmach"]}, "fixmatch")]
)
def test_names_that_are_not_known_suggest_known_ones(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Field(**given)
    assert main(["field", "--variants", "minute", "--show"]) == 2
