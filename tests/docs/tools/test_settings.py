import dataclasses
import re

from docs.tools.settings import anchor, presets, settings, takes
from ebpl.config import Settings
from ebpl.config.presets import PRESETS, preset


def test_every_setting_has_one_row_with_its_help_and_a_value_in_each_preset() -> None:
    page = settings()
    for field in dataclasses.fields(Settings):
        [row] = re.findall(rf'^\| <code id="{anchor(field.name)}">{field.name}</code> \|(.*)\|$', page, re.MULTILINE)
        text, _, *values = [cell.strip() for cell in row.replace("\\|", "/").split("|")]
        assert text == field.metadata["help"].replace("%%", "%").replace("|", "/")
        assert len(values) == len(PRESETS)
        assert all(values)


def test_values_are_those_of_the_presets() -> None:
    [row] = re.findall(r"^\| <code id=\"learning-rate\">.*$", settings(), re.MULTILINE)
    values = row.split("|")[-1 - len(PRESETS) : -1]
    assert [float(value) for value in values] == [preset(name).learning_rate for name in PRESETS]


def test_groups_stand_in_the_order_of_their_settings() -> None:
    groups = list(dict.fromkeys(field.metadata["group"] for field in dataclasses.fields(Settings)))
    assert re.findall(r"^## (.+)$", settings(), re.MULTILINE) == groups


def test_ranges_are_told_in_words() -> None:
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    assert takes(fields["restart_probability"]) == "number from 0 to 1"
    assert takes(fields["sgld_steps"]) == "whole number, at least 1"
    assert takes(fields["labels_per_class"]) == "whole number, at least 1; may be left open"
    assert takes(fields["energy_center"]) == "number"
    assert takes(fields["clamp_samples"]) == "on or off"
    assert takes(fields["dtype"]) == "`auto`, `float32`, `bfloat16`"


def test_every_preset_is_told() -> None:
    assert all(f"`{name}`" in presets() for name in PRESETS)
