import re

from docs.tools.settings import anchor, presets, settings, takes
from ebpl.config import fields, groups
from ebpl.config.presets import PRESETS, preset


def test_every_setting_has_one_row_with_its_help_and_a_value_in_each_preset() -> None:
    page = settings()
    for name, setting in fields().items():
        [row] = re.findall(rf'^\| <code id="{anchor(name)}">{re.escape(name)}</code> \|(.*)\|$', page, re.MULTILINE)
        text, _, *values = [cell.strip() for cell in row.replace("\\|", "/").split("|")]
        assert text.startswith(setting.help.replace("%%", "%").replace("|", "/"))
        assert ("(option `--" in text) == setting.is_option
        assert len(values) == len(PRESETS)
        assert all(values)


def test_values_are_those_of_the_presets() -> None:
    [row] = re.findall(r"^\| <code id=\"optim-learning-rate\">.*$", settings(), re.MULTILINE)
    values = row.split("|")[-1 - len(PRESETS) : -1]
    assert [float(value) for value in values] == [preset(name).optim.learning_rate for name in PRESETS]


def test_every_group_has_a_section_that_says_what_it_is_about() -> None:
    heads = [head.strip("`") for head in re.findall(r"^## (.+)$", settings(), re.MULTILINE)]
    assert heads[1:] == [name for name in groups() if name]
    assert all(about in settings() for about in groups().values())


def test_what_a_setting_takes() -> None:
    known = fields()
    assert takes(known["sgld.restart_probability"]) == "number from 0 to 1"
    assert takes(known["sgld.steps"]) == "whole number from 1 to 100000"
    assert takes(known["data.labels_per_class"]) == "whole number, at least 1; `auto`"
    assert takes(known["energy.center"]) == "number"
    assert takes(known["sgld.clamp_samples"]) == "`true` or `false`"
    assert takes(known["runtime.dtype"]) == "`auto`, `float32`, `bfloat16`"
    assert takes(known["model.backbone"]) == "a name"


def test_every_preset_is_described() -> None:
    assert all(f"`{name}`" in presets() for name in PRESETS)
