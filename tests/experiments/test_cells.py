import pytest

from ebpl.config.presets import preset
from ebpl.errors import UsageError
from experiments.cells import Cell, cells

SETTINGS = preset("quick")


def test_table_1_has_a_cell_for_each_dataset_method_form_and_seed() -> None:
    made = cells("table1", ["blood", "digits"], [0, 3], SETTINGS)
    assert len(made) == len(set(made)) == 2 * 2 * 3 * 2
    assert {cell.settings.seed for cell in made} == {0, 3}
    assert {cell.settings.curriculum.pseudo_labels for cell in made} == {"none", "hard", "soft"}


def test_without_a_choice_it_is_the_papers_datasets() -> None:
    assert len({cell.data for cell in cells("table1", None, [0], SETTINGS)}) == 7
    few = cells("labels", None, [0], SETTINGS)
    assert {cell.data for cell in few} == {"blood"}
    assert {cell.settings.data.labels_per_class for cell in few} == {1, 2, 3, 4, 5}


def test_past_the_paper_it_is_ebpl_with_soft_pseudo_labels_alone() -> None:
    made = cells("best", None, [0, 1], preset("best"))
    assert made == [
        Cell(data, preset("best", seed=s)) for data in ("blood", "fashion", "svhn", "cifar10") for s in (0, 1)
    ]


def test_all_forms_of_a_seed_share_one_trunk() -> None:
    made = cells("table1", ["digits"], [0], SETTINGS)
    assert len({cell.trunk for cell in made}) == 2  # one for each method
    assert all(cell.trunk.settings.curriculum.pseudo_labels == "none" for cell in made)


def test_a_cell_knows_its_record_and_no_other() -> None:
    cell = Cell("digits", SETTINGS)
    record = {"data": {"name": "digits", "fingerprint": "x"}, "settings": SETTINGS.to_dict()}
    assert cell.is_in(record)
    assert cell.is_in({**record, "settings": SETTINGS.changed(runtime__checkpoint_seconds=7.0).to_dict()})
    assert not cell.is_in({**record, "settings": SETTINGS.changed(epochs=7).to_dict()})
    guarded = {**record, "settings": SETTINGS.changed(divergence__max_energy_gap=7.0).to_dict()}
    assert cell.is_in(guarded)
    assert not cell.is_in({**guarded, "result": {"healed_divergences": [{"epoch": 1}]}})
    assert not cell.is_in({**record, "data": {"name": "blood", "fingerprint": "x"}})


def test_a_share_of_labels_that_are_too_few_to_wait_makes_no_other_cell() -> None:
    waiting = SETTINGS.changed(curriculum__calibration_holdout=0.2)
    assert Cell("cifar10", waiting) == Cell("cifar10", SETTINGS)
    assert Cell("svhn", waiting) != Cell("svhn", SETTINGS)
    many, few = ({"labels_per_class": n} for n in (50, 49))
    assert Cell("digits", waiting.changed(**many)) != Cell("digits", SETTINGS.changed(**many))
    assert Cell("digits", waiting.changed(**few)) == Cell("digits", SETTINGS.changed(**few))
    baseline = SETTINGS.changed(method="curriculum-labeling")
    assert Cell("svhn", baseline.changed(curriculum__calibration_holdout=0.2)) == Cell("svhn", baseline)


def test_records_are_told_apart_by_whether_labels_waited() -> None:
    waiting = SETTINGS.changed(curriculum__calibration_holdout=0.2)
    plain, asked = ({"data": {"name": "svhn"}, "settings": s.to_dict(), "result": {}} for s in (SETTINGS, waiting))
    checked = {**asked, "result": {"check": {"images": 100}}}
    assert [Cell("svhn", waiting).is_in(record) for record in (plain, asked, checked)] == [False, False, True]
    assert [Cell("svhn", SETTINGS).is_in(record) for record in (plain, asked, checked)] == [True, True, False]


def test_a_record_from_before_a_setting_existed_was_as_its_default_is() -> None:
    older = SETTINGS.to_dict()
    del older["warm_up"]
    record = {"data": {"name": "digits", "fingerprint": "x"}, "settings": older}
    assert Cell("digits", SETTINGS).is_in(record)
    assert not Cell("digits", SETTINGS.changed(optim__warmup_updates=5)).is_in(record)


def test_wrong_names_are_answered_with_the_right_ones() -> None:
    with pytest.raises(UsageError, match="table1"):
        cells("table", None, [0], SETTINGS)
    with pytest.raises(UsageError, match="blood"):
        cells("table1", ["bloood"], [0], SETTINGS)
