import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpl.config import Settings
from ebpl.config.presets import PRESET_HELP, PRESETS, preset, read_toml, write_toml
from ebpl.errors import UsageError


def test_the_paper_preset_is_the_papers_setting() -> None:
    settings = preset("paper")
    assert (settings.model.depth, settings.model.width) == (28, 10)
    assert (settings.optim.epochs, settings.curriculum.steps, settings.curriculum.epochs) == (120, 4, 20)
    assert (settings.optim.learning_rate, settings.energy.coupling_weight) == (1e-4, 1e-3)
    assert (settings.data.augment, settings.optim.ema_decay, settings.curriculum.pseudo_labels) == ("none", 0.0, "soft")


def test_every_setting_has_a_line_of_help_and_a_group() -> None:
    for field in dataclasses.fields(Settings):
        assert len(field.metadata["help"]) > 10, field.name
        assert field.metadata["group"], field.name
    assert PRESETS.keys() == PRESET_HELP.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "Did you mean epochs"),
        ({"method": "ebp"}, "Did you mean ebpl"),
        ({"depth": 15}, "6n \\+ 4. Nearest: 10 or 16"),
        ({"epochs": -1}, "at least 1"),
        ({"epochs": 1.5}, "a whole number"),
        ({"epochs": True}, "a whole number"),
        ({"clamp_samples": 1}, "true or false"),
        ({"learning_rate": "fast"}, "a number"),
        ({"restart_probability": 2}, "between 0 and 1"),
        ({"chains": 20_000}, "buffer"),
        ({"seed": None}, "needs a value"),
        ({"guard_gap": float("inf")}, "a finite number"),
        ({"learning_rate": float("nan")}, "a finite number"),
    ],
)
def test_a_wrong_setting_is_an_error_that_says_what_is_right(changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        preset("standard", **changes)


def test_an_unknown_preset_suggests_a_known_one() -> None:
    with pytest.raises(UsageError, match="Did you mean standard"):
        preset("standart")


@given(
    st.dictionaries(
        st.text("abcdefgh_", min_size=1),
        st.one_of(
            st.booleans(),
            st.integers(-(2**60), 2**60),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(st.characters(blacklist_categories=["Cs"])),
        ),
    )
)
def test_what_is_written_as_toml_is_read_back(tmp_path_factory, values: dict) -> None:
    path = tmp_path_factory.mktemp("toml") / "settings.toml"
    path.write_text(write_toml({"section": values, "empty": {"nothing": None}}), encoding="utf-8")
    assert read_toml(path) == {"section": values, "empty": {}}


def test_settings_survive_their_file(tmp_path) -> None:
    settings = preset("quick", labels_per_class=4, learning_rate=1e-5, device="cpu")
    path = tmp_path / "settings.toml"
    path.write_text(write_toml({"settings": settings.to_dict()}), encoding="utf-8")
    assert Settings().changed(**read_toml(path)["settings"]) == settings


def test_a_damaged_settings_file_is_named(tmp_path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[settings\n")
    with pytest.raises(UsageError, match=r"settings\.toml is not valid TOML"):
        read_toml(path)
