from pathlib import Path

import pytest

from ebpl.config import Settings, fields
from ebpl.config.presets import preset
from ebpl.errors import UsageError
from experiments.ablation import SHORT, VARIANTS, base, cell_of, markdown, name_of, only, overview, rows
from experiments.grid import Cell, cells
from experiments.output import write
from experiments.results_store import Record

BASE = base()


def record(cell: Cell, accuracy: float, data: str = "blood") -> Record:
    measures = {"accuracy": accuracy, "f_score": accuracy, "ece": 0.04}
    return {
        "data": {"name": data, "fingerprint": "x"},
        "settings": cell.settings.to_dict(),
        "environment": {"commit": "abc"},
        "result": {"metrics": {**measures, "accuracy": 0.99}, "last": {"metrics": measures}, "healed_divergences": []},
    }


def chosen(*names: str, seeds: range = range(2)) -> list[Cell]:
    return only(cells("ablation", ["blood"], seeds, BASE), names, BASE)


def test_every_variant_changes_something_and_no_two_are_the_same() -> None:
    made = cells("ablation", ["svhn"], [3], BASE)
    assert len(set(made)) == len(VARIANTS)
    assert [name_of(cell, BASE) for cell in made] == list(VARIANTS)
    assert made[0].settings == BASE.changed(seed=3)


def test_variants_that_differ_in_their_steps_alone_share_their_initial_training() -> None:
    names = ("unchanged", "no fixed fraction of true labels", "hard pseudo-labels", "no pseudo-labels")
    assert len({cell.trunk for cell in chosen(*names, seeds=range(1))}) == 1
    (none,) = chosen("no pseudo-labels", seeds=range(1))
    assert none.trunk == none
    assert chosen("no mixup", seeds=range(1))[0].trunk != none


def test_the_last_weights_are_compared_seed_by_seed() -> None:
    made = chosen("unchanged", "hard pseudo-labels", "20 sampling steps")
    accuracies = [0.8, 0.82, 0.7, 0.74, 0.9]
    records = [record(cell, accuracy) for cell, accuracy in zip(made, accuracies, strict=False)]
    heads, *lines = rows(made, records, BASE)
    assert [line[:4] for line in lines] == [
        ["blood", "unchanged", "2", "81.0 ± 1.4"],
        ["blood", "hard pseudo-labels", "2", "72.0 ± 2.8"],
        ["blood", "20 sampling steps", "1", "90.0"],
    ]
    assert [line[-1] for line in lines] == ["", "-9.0", ""]
    assert len(heads) == len(lines[0])


def test_a_variant_that_changes_nothing_on_a_dataset_is_none_of_it() -> None:
    made = only(cells("ablation", ["blood", "svhn"], [0], BASE), ["unchanged", "no calibration holdout"], BASE)
    told = [(cell.data, name_of(cell, BASE)) for cell in made]
    assert told == [("blood", "unchanged"), ("svhn", "unchanged"), ("svhn", "no calibration holdout")]
    with pytest.raises(UsageError, match="changes nothing about these settings and data"):
        chosen("no calibration holdout")


def test_what_is_missing_is_listed_and_a_page_is_written() -> None:
    made = chosen("unchanged", "no warm-up")
    records = [record(made[0], 0.8)]
    assert overview(made, records, BASE)[1:] == [
        ["blood", "unchanged", "1", "1"],
        ["blood", "no warm-up", "0", "0-1"],
    ]
    (page,) = write(Path("out"), "ablation", made, records, BASE)
    assert "| blood | unchanged | 1 | 80.0 | 80.0 | 4.0 |  |" in page.read_text()
    assert markdown(rows(made, [], BASE)) == "Not measured yet."


def test_what_changes_nothing_about_other_settings_is_no_variant_of_them() -> None:
    plain = preset("quick")
    made = cells("ablation", ["digits"], [0], plain)
    names = [name_of(cell, plain) for cell in made]
    assert names[0] == "unchanged"
    assert len(set(names)) == len(set(made)) == len(made) < len(VARIANTS)
    assert "no consistency" not in names
    with pytest.raises(UsageError, match=r"'no consistency' changes nothing .* Leave it out"):
        only(made, ["no consistency"], plain)


def test_a_wrong_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError, match="no warm-up"):
        chosen("no warmup")


def test_variants_are_of_the_preset_on_a_shorter_schedule() -> None:
    whole = preset("best")
    assert whole.changed(SHORT) == BASE
    assert epochs(BASE) < epochs(whole) / 2
    assert base({"data.mixup_probability": 0.1}).data.mixup_probability == 0.1
    (full,) = chosen("as long as the preset", seeds=range(1))
    assert full == Cell("blood", whole)  # whose records serve for both


def epochs(settings: Settings) -> int:
    return settings.optim.epochs + settings.curriculum.steps * settings.curriculum.epochs


def test_every_change_is_of_a_setting_that_exists() -> None:
    for name, changes in VARIANTS.items():
        assert changes.keys() <= fields().keys(), name


def test_what_is_twice_as_long_is_so_of_any_settings() -> None:
    for settings in (BASE, preset("best"), preset("quick")):
        twice = cell_of("digits", settings, "initial training twice as long", 0).settings
        assert twice.optim.epochs == 2 * settings.optim.epochs
        half = cell_of("digits", settings, "twice as many steps of half the length", 0).settings.curriculum
        assert half.steps * half.epochs == settings.curriculum.steps * settings.curriculum.epochs
        assert half.steps == 2 * settings.curriculum.steps


def test_runs_that_recovered_are_told() -> None:
    made = chosen("unchanged", "no warm-up")
    records = [record(cell, 0.8) for cell in made]
    records[2]["result"]["healed_divergences"] = [{"epoch": 1}]
    assert [line[2] for line in rows(made, records, BASE)[1:]] == ["2", "2, 1 recovered"]
    assert overview(made, records, BASE)[2][-1] == "recovered from divergence: 0"
