import pytest

from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.errors import UsageError
from experiments.grid import PAPER_METHODS, Cell, cells, found, methods_of, shown_cells
from experiments.results_store import Record, modern_record

SETTINGS = preset("quick")


def record(cell: Cell, **result: object) -> Record:
    return {"data": {"name": cell.data, "fingerprint": "x"}, "settings": cell.settings.to_dict(), "result": result}


def test_table_1_has_a_cell_for_each_dataset_method_form_and_seed() -> None:
    made = cells("table1", ["blood", "digits"], [0, 3], SETTINGS)
    assert len(made) == len(set(made)) == 2 * 2 * 3 * 2
    assert {cell.settings.seed for cell in made} == {0, 3}
    assert {cell.settings.curriculum.pseudo_labels for cell in made} == {"none", "hard", "soft"}


def test_methods_of_other_papers_have_one_cell_each_without_pseudo_labels() -> None:
    others = ["fixmatch", "freematch", "jem", "mixmatch", "pseudo-label", "softmatch", "supervised"]
    made = cells("table1", ["blood"], [0], preset("best"), others)
    expected = [preset("best", method=name, pseudo_labels="none") for name in others]
    assert [cell.settings for cell in made] == [Cell("blood", settings).settings for settings in expected]
    assert not any(cell.is_in(record(other)) for cell in made for other in made if other != cell)


def test_without_a_choice_it_is_the_papers_datasets() -> None:
    assert len({cell.data for cell in cells("table1", None, [0], SETTINGS)}) == 7
    few = cells("labels", None, [0], SETTINGS)
    assert {cell.data for cell in few} == {"blood"}
    assert {cell.settings.data.labels_per_class for cell in few} == {1, 2, 3, 4, 5}
    assert {cell.settings.curriculum.pseudo_labels for cell in few} == {"none", "soft"}


def test_past_the_paper_it_is_ebpl_with_soft_pseudo_labels_alone() -> None:
    made = cells("best", None, [0, 1], preset("best"))
    assert made == [
        Cell(data, preset("best", seed=s)) for data in ("blood", "fashion", "svhn", "cifar10") for s in (0, 1)
    ]


def test_parts_are_paired_by_seed_and_differ_in_energies_and_pseudo_labels_alone() -> None:
    made = cells("parts", ["blood"], [3, 4], preset("best"))
    combinations = {(cell.settings.method, cell.settings.curriculum.pseudo_labels) for cell in made}
    assert combinations == {(m, k) for m in ("ebpl", "ebpl-without-energy") for k in ("none", "soft")}
    assert len(made) == 8
    assert len({Cell("blood", cell.settings.changed(method="ebpl", seed=0)).trunk for cell in made}) == 1


@pytest.mark.parametrize("experiment", ["table1", "labels"])
def test_a_method_that_begins_steps_with_fresh_weights_has_steps_as_long_as_its_initial_training(
    experiment: str,
) -> None:
    made = cells(experiment, ["digits"], [0], SETTINGS, [*PAPER_METHODS, "ebpl-without-energy"])
    lengths = {(cell.settings.method, cell.settings.curriculum.epochs) for cell in made}
    assert lengths == {("curriculum-labeling", 30), ("ebpl", 6), ("ebpl-without-energy", 6)}
    assert {cell.settings.optim.epochs for cell in made} == {30}


def test_the_length_of_steps_is_without_effect_where_there_are_none() -> None:
    longer = SETTINGS.changed(curriculum__epochs=12, curriculum__steps=2)
    for kind, same in (("none", True), ("soft", False)):
        cell, other = (Cell("digits", settings.changed(pseudo_labels=kind)) for settings in (SETTINGS, longer))
        assert cell.is_in(record(other)) is same
        assert other.is_in(record(cell)) is same


def test_all_forms_of_a_seed_share_one_trunk() -> None:
    made = cells("table1", ["digits"], [0], SETTINGS)
    assert len({cell.trunk for cell in made}) == 2  # one for each method
    assert all(cell.trunk.settings.curriculum.pseudo_labels == "none" for cell in made)


def test_a_cell_knows_its_record_and_no_other() -> None:
    cell = Cell("digits", SETTINGS)
    own = record(cell)
    assert cell.is_in(own)
    assert cell.is_in({**own, "settings": SETTINGS.changed(runtime__checkpoint_seconds=7.0).to_dict()})
    assert not cell.is_in({**own, "settings": SETTINGS.changed(epochs=7).to_dict()})
    guarded = {**own, "settings": SETTINGS.changed(divergence__max_energy_gap=7.0).to_dict()}
    assert cell.is_in(guarded)
    assert not cell.is_in({**guarded, "result": {"healed_divergences": [{"epoch": 1}]}})
    assert not cell.is_in({**own, "data": {"name": "blood", "fingerprint": "x"}})
    assert found([cell], [{**own, "data": {"name": "blood"}}, guarded]) == [(cell, guarded)]


def test_a_holdout_for_which_there_are_too_few_labels_makes_no_other_cell() -> None:
    holding = SETTINGS.changed(curriculum__calibration_holdout=0.2)
    assert Cell("cifar10", holding) == Cell("cifar10", SETTINGS)
    assert Cell("svhn", holding) != Cell("svhn", SETTINGS)
    many, few = ({"labels_per_class": n} for n in (50, 49))
    assert Cell("digits", holding.changed(**many)) != Cell("digits", SETTINGS.changed(**many))
    assert Cell("digits", holding.changed(**few)) == Cell("digits", SETTINGS.changed(**few))
    baseline = SETTINGS.changed(method="curriculum-labeling")
    assert Cell("svhn", baseline.changed(curriculum__calibration_holdout=0.2)) == Cell("svhn", baseline)
    without = SETTINGS.changed(method="ebpl-without-energy")
    assert Cell("svhn", without.changed(curriculum__calibration_holdout=0.2)) != Cell("svhn", without)


def test_records_are_told_apart_by_whether_labels_were_held_out() -> None:
    holding = SETTINGS.changed(curriculum__calibration_holdout=0.2)
    plain, asked = ({"data": {"name": "svhn"}, "settings": s.to_dict(), "result": {}} for s in (SETTINGS, holding))
    checked = {**asked, "result": {"check": {"images": 100}}}
    assert [Cell("svhn", holding).is_in(record) for record in (plain, asked, checked)] == [False, False, True]
    assert [Cell("svhn", SETTINGS).is_in(record) for record in (plain, asked, checked)] == [True, True, False]


def test_a_record_from_before_a_setting_existed_was_as_its_default_is() -> None:
    older = SETTINGS.to_dict()
    del older["optim.warmup_updates"]
    record = {"data": {"name": "digits", "fingerprint": "x"}, "settings": older}
    assert Cell("digits", SETTINGS).is_in(record)
    assert not Cell("digits", SETTINGS.changed(optim__warmup_updates=5)).is_in(record)


def test_a_record_with_a_setting_that_is_gone_is_of_no_cell_where_that_had_an_effect() -> None:
    old = {"method": "ebpl", "seed": 0, "pseudo_labels": "soft", "mix": 0.5, "mixed": "labeled", "guard_every": 7}
    stored = modern_record({"data": {"name": "digits"}, "settings": old, "result": {"metrics": {"accuracy": 1.0}}})
    plain = Settings().changed({"data.mixup_probability": 0.5})
    assert not Cell("digits", plain).is_in(stored)
    neutral = modern_record({**stored["as stored"], "settings": {**old, "mixed": "all", "strong": 0.0}})
    assert Cell("digits", plain).is_in(neutral)


def test_wrong_names_are_answered_with_the_right_ones() -> None:
    with pytest.raises(UsageError, match="table1"):
        cells("table", None, [0], SETTINGS)
    with pytest.raises(UsageError, match="blood"):
        cells("table1", ["bloood"], [0], SETTINGS)
    with pytest.raises(UsageError, match="Did you mean ebpl"):
        cells("table1", ["blood"], [0], SETTINGS, ["ebppl"])
    with pytest.raises(UsageError, match="table1 and labels do"):
        cells("best", None, [0], SETTINGS, ["ebpl"])


def test_tables_show_the_papers_methods_those_asked_for_and_those_with_a_record() -> None:
    def shown(methods: list[str] | None, records: list[Record]) -> list[str]:
        return methods_of(shown_cells("table1", ["digits"], [0], SETTINGS, methods, records))

    assert shown(None, []) == list(PAPER_METHODS)
    assert shown(["ebpl-without-energy"], []) == [*PAPER_METHODS, "ebpl-without-energy"]
    (cell, *_) = cells("table1", ["digits"], [0], SETTINGS, ["ebpl-without-energy"])
    assert shown(None, [record(cell)]) == [*PAPER_METHODS, "ebpl-without-energy"]
    elsewhere = {**record(cell), "data": {"name": "blood"}}
    assert shown(None, [elsewhere]) == list(PAPER_METHODS)
