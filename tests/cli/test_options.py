import argparse

import pytest

from ebpl.cli.options import Parser, add_settings, changes, counts, positive, seconds, share
from ebpl.config import fields
from ebpl.config.presets import PRESETS
from ebpl.methods import method_names


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_times_are_read_as_people_write_them(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_values_out_of_range_are_refused_with_the_reason() -> None:
    for kind, text, reason in (
        (positive, "0", "not positive"),
        (share, "1.5", "between 0 and 1"),
        (counts, "1,x", "not a whole number"),
        *(
            (seconds, text, "not a time. Give for instance 90, 90s, 20m or 1.5h")
            for text in ("soon", "nan", "-3m", "", "inf", "0")
        ),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=reason):
            kind(text)


def test_options_are_settings_and_only_given_ones_are_changes() -> None:
    parser = Parser(prog="x")
    add_settings(parser, without=("seed",))
    names = {setting.field.name for setting in fields().values() if setting.is_option} - {"seed"}
    assert {"--" + name.replace("_", "-") for name in names} <= set(parser.options())
    assert "--seed" not in parser.options()
    words = ["--epochs", "3", "--set", "sgld.clamp_samples=no", "--set", "sgld__steps=2"]
    assert changes(parser.parse_args(words)) == {"optim.epochs": 3, "sgld.clamp_samples": False, "sgld.steps": 2}


def test_the_help_names_presets_and_methods() -> None:
    parser = Parser(prog="x")
    add_settings(parser)
    text = " ".join(parser.format_help().split())
    for name in (*PRESETS, *method_names()):
        assert name in text
