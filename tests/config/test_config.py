import dataclasses
from typing import Any

import pytest

from ebpl.config import Settings, fields, find, groups
from ebpl.config.presets import preset
from ebpl.errors import UsageError

OPTIONS = {
    "method",
    "seed",
    "pseudo_labels",
    "labels_per_class",
    "validation_fraction",
    "class_mix",
    "augment",
    "encoder",
    "fine_tune",
    "depth",
    "width",
    "epochs",
    "batch_size",
    "learning_rate",
    "device",
}


def test_every_setting_has_a_line_of_help_and_every_group_says_what_it_is_about() -> None:
    for name, setting in fields().items():
        assert len(setting.help) > 10, name
        assert setting.name == name
        assert setting.group in groups()
    assert set(groups()) == {"", *(name.partition(".")[0] for name in fields() if "." in name)}
    assert all(len(text) > 10 for text in groups().values())


def test_the_most_used_settings_are_options_and_their_names_stand_for_one_setting() -> None:
    options = [setting for setting in fields().values() if setting.is_option]
    assert {setting.field.name for setting in options} == OPTIONS
    assert len(options) == len(OPTIONS)
    for setting in options:
        assert find(setting.field.name) == setting


def test_defaults_are_values_of_their_own_fields() -> None:
    for name, setting in fields().items():
        assert setting.checked(setting.field.default) == setting.field.default, name
        assert Settings()[name] == setting.field.default


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("sgld.steps", "sgld.steps"),
        ("sgld__steps", "sgld.steps"),
        ("curriculum__pseudo_label_temperature", "curriculum.pseudo_label_temperature"),
        ("epochs", "optim.epochs"),  # the option, though steps of the curriculum have epochs too
        ("batch_size", "optim.batch_size"),
        ("ema_decay", "optim.ema_decay"),  # no option, but the only one of this name
        ("seed", "seed"),
    ],
)
def test_a_setting_is_found_by_its_full_name_by_keyword_and_alone(name: str, full: str) -> None:
    assert find(name).name == full


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("steps", ["curriculum.steps", "sgld.steps"]),
        ("gradient_clip", ["optim.gradient_clip", "sgld.gradient_clip"]),
        ("weight", ["energy.weight", "consistency.weight", "unlabeled.weight"]),
    ],
)
def test_a_name_that_several_groups_have_names_them_all(name: str, candidates: list[str]) -> None:
    with pytest.raises(UsageError, match=f"{name} could be {' or '.join(candidates)}. Give the whole name"):
        find(name)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("epoch", "epochs"),
        ("sgld.step", "sgld.steps"),
        ("sgld__stepz", "sgld.steps"),
        ("sgld_steps", "sgld.steps"),
        ("model.dept", "model.depth"),
        ("curiculum.epochs", "curriculum.epochs"),
    ],
)
def test_an_unknown_name_suggests_the_right_one(wrong: str, right: str) -> None:
    with pytest.raises(UsageError, match=rf"There is no setting '{wrong}'\. Did you mean .*{right}"):
        find(wrong)
    with pytest.raises(UsageError, match="Did you mean"):
        Settings().changed({wrong: 1})


def test_every_way_to_change_a_setting_gives_the_same() -> None:
    expected = Settings().changed({"sgld.steps": 5, "optim.epochs": 3, "seed": 7})
    assert Settings().changed(sgld__steps=5, epochs=3, seed=7) == expected
    assert Settings().changed({"sgld": {"steps": 5}, "optim": {"epochs": 3}}, seed=7) == expected
    assert Settings().changed({"sgld.steps": 5}, optim__epochs=3, seed=7) == expected
    assert (expected.sgld.steps, expected["sgld.steps"], expected["sgld__steps"]) == (5, 5, 5)
    assert expected.changed() == expected
    assert Settings().sgld.steps == 20, "settings are never changed in place"


def test_settings_are_a_flat_dictionary_of_full_names() -> None:
    settings = preset("best", labels_per_class=3)
    flat = settings.to_dict()
    assert list(flat) == list(fields())
    assert flat["data.labels_per_class"] == 3
    assert Settings().changed(flat) == settings


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().sgld.steps = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "Did you mean epochs"),
        ({"depth": 15}, "6n \\+ 4. Nearest: 10 or 16"),
        ({"epochs": -1}, "optim.epochs is -1, but must be between 1 and 10000"),
        ({"curriculum.steps": 10**9}, "curriculum.steps is 1000000000, but must be between 1 and 1000"),
        ({"optim.updates_per_epoch": 10**15}, "updates_per_epoch is 10+, but must be between 1 and 1000000"),
        ({"learning_rate": 10**400}, "optim.learning_rate is 10+, but must be a finite number"),
        ({"learning_rate": -1}, "optim.learning_rate is -1, but must be at least 0"),
        ({"epochs": 1.5}, "a whole number"),
        ({"epochs": True}, "a whole number"),
        ({"sgld.clamp_samples": 1}, "true or false"),
        ({"learning_rate": "fast"}, "a number"),
        ({"sgld.restart_probability": 2}, "between 0 and 1"),
        ({"sgld.chains": 20_000}, "exceeds sgld.buffer_size"),
        ({"seed": None}, "needs a value"),
        ({"divergence.max_energy_gap": float("inf")}, "a finite number"),
        ({"learning_rate": float("nan")}, "a finite number"),
        ({"method": 3}, "must be a name"),
        ({"augment": "flipp"}, "data.augment is 'flipp'. Did you mean flip"),
        ({"pseudo_labels": None}, "needs a value"),
    ],
)
def test_a_wrong_setting_is_an_error_that_says_what_is_right(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        preset("standard", changes)


def test_the_depth_of_another_backbone_is_its_own_to_judge() -> None:
    assert preset("quick", model__backbone="mine", depth=17).model.depth == 17


def test_numbers_become_those_of_their_field() -> None:
    settings = Settings().changed(epochs=3.0, learning_rate=1)
    assert (settings.optim.epochs, type(settings.optim.epochs)) == (3, int)
    assert type(settings.optim.learning_rate) is float
