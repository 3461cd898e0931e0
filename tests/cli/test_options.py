import argparse
import dataclasses

import pytest

from ebpl.cli.options import Parser, add_settings, changes, counts, positive, seconds, share
from ebpl.config import Settings


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_times_are_read_as_people_write_them(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_values_out_of_range_are_refused_with_the_reason() -> None:
    for kind, text, reason in (
        (positive, "0", "not positive"),
        (share, "1.5", "between 0 and 1"),
        (counts, "1,x", "not a whole number"),
        (seconds, "soon", "not a number"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=reason):
            kind(text)


def test_every_setting_has_an_option_and_only_given_ones_are_changes() -> None:
    parser = Parser(prog="x")
    add_settings(parser, without=("seed",))
    names = {field.name for field in dataclasses.fields(Settings)} - {"seed"}
    assert {"--" + name.replace("_", "-") for name in names} <= set(parser.options())
    assert "--seed" not in parser.options()
    assert changes(parser.parse_args(["--epochs", "3", "--no-clamp-samples"])) == {"epochs": 3, "clamp_samples": False}


def test_the_help_says_what_presets_set_also_where_the_default_is_open() -> None:
    parser = Parser(prog="x")
    add_settings(parser)
    text = " ".join(parser.format_help().split())
    assert "one pass over all training images takes) (standard: 128, best: 256)" in text
    assert "(default: 12, paper: 120, best: 24, quick: 30)" in text
