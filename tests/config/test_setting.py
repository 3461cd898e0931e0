"""A single setting: its kind, its range, and the words of the command line that stand for its values."""

import math
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpl.config import fields, find
from ebpl.config.setting import Setting
from ebpl.errors import UsageError


def kind(setting: Setting) -> str:
    if get_origin(setting.type) is Literal:
        return "choice"
    return str(setting.type.__name__)


def test_there_is_a_setting_of_every_kind() -> None:
    assert {kind(setting) for setting in fields().values()} == {"choice", "str", "int", "float", "bool"}
    assert {name for name, setting in fields().items() if setting.is_optional} == {
        "data.labels_per_class",
        "data.validation_fraction",
        "data.class_mix",
        "model.encoder",
        "optim.updates_per_epoch",
        "consistency.final_threshold",
        "consistency.final_temperature",
        "unlabeled.weight",
        "unlabeled.ratio",
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sgld.steps", "5", 5),
        ("learning_rate", "1e-3", 1e-3),
        ("learning_rate", "2", 2.0),
        ("method", "ebpl", "ebpl"),
        ("augment", "none", "none"),  # a choice of its own here
        ("pseudo_labels", "none", "none"),
        ("labels_per_class", "4", 4),
        ("labels_per_class", "none", None),
        ("validation_fraction", "auto", None),
        ("validation_fraction", "0.25", 0.25),
        ("class_mix", "auto", "auto"),  # a choice of its own, and not the default
        ("class_mix", "none", None),
        ("optim.updates_per_epoch", "None", None),
        *(("sgld.clamp_samples", word, True) for word in ("true", "True", "yes", "on", "1")),
        *(("sgld.clamp_samples", word, False) for word in ("false", "FALSE", "no", "off", "0")),
    ],
)
def test_a_word_is_the_value_of_its_settings_kind(name: str, text: str, value: Any) -> None:
    parsed = find(name).parsed(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sgld.steps", "five", "sgld.steps is 'five', but must be a whole number"),
        ("sgld.steps", "5.5", "a whole number"),
        ("learning_rate", "fast", "optim.learning_rate is 'fast', but must be a number"),
        ("sgld.clamp_samples", "maybe", "sgld.clamp_samples is 'maybe', but must be true or false"),
        ("labels_per_class", "some", "a whole number"),
    ],
)
def test_a_word_that_is_no_such_value_says_what_it_must_be(name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(name).parsed(text)


@given(st.data())
def test_any_value_of_any_setting_survives_being_written_as_a_word(data: st.DataObject) -> None:
    setting = data.draw(st.sampled_from(list(fields().values())))
    low, high = setting.range
    values = {
        "int": st.integers(int(max(low, -(10**9))), int(min(high, 10**9))),
        "float": st.floats(max(low, -1e9), min(high, 1e9)),
        "bool": st.booleans(),
        "str": st.sampled_from(["ebpl", "wide_resnet"]),
        "choice": st.sampled_from(get_args(setting.type) or ("",)),
    }
    value = data.draw(values[kind(setting)])
    assert setting.checked(setting.parsed(str(value))) == value


@given(st.floats())
def test_a_number_outside_of_its_range_is_refused_whatever_it_is(value: float) -> None:
    setting = find("consistency.confidence_threshold")
    if 0 <= value <= 1:
        assert setting.checked(value) == value
    else:
        with pytest.raises(UsageError, match=r"between 0 and 1|a finite number"):
            setting.checked(value)
    assert setting.range == (0, 1)
    assert find("energy.center").range == (-math.inf, math.inf)


def test_a_path_is_the_name_of_its_file() -> None:
    assert find("class_mix").checked(Path("shares") / "clinic.csv") == str(Path("shares/clinic.csv"))
    with pytest.raises(UsageError, match="must be a name"):
        find("class_mix").checked(3)
