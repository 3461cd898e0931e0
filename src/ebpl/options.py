"""What options of the command line are made of: the parser, the kinds of values, and an option for each setting."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from ebpl.data.names import BENCHMARK_NAMES
from ebpl.errors import UsageError
from ebpl.settings import PRESETS, Settings, field_type, preset


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, and suggests the right word for a wrong one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "allow_abbrev": False, "formatter_class": _Formatter})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")

    def options(self) -> list[str]:
        """All option words of this parser."""
        return [word for action in self._actions for word in action.option_strings if word.startswith("--")]


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def add_data(parser: Parser) -> None:
    """What to train on or to look at, and how it is found and read."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a folder of class folders and unlabeled/, a CSV of image,label, an .npz with MedMNIST's keys, "
        f"or a benchmark: {', '.join(BENCHMARK_NAMES)}",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where benchmarks are looked for first (also: EBPL_DATA)")
    parser.add_argument(
        "--image-size",
        type=positive,
        metavar="N",
        help="resize your own images to N x N (default: 32, or as they are)",
    )


def add_settings(parser: Parser, without: Sequence[str] = ()) -> None:
    """An option for each of the settings, in their groups."""
    groups: dict[str, Any] = {}
    defaults = {name: preset(name) for name in PRESETS}
    for field in dataclasses.fields(Settings):
        title = field.metadata["group"]
        if field.name in without:
            continue
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_setting(groups[title], field, defaults)


def _add_setting(group: Any, field: dataclasses.Field[Any], defaults: dict[str, Settings]) -> None:
    kind = field_type(field.name)
    word = "--" + field.name.replace("_", "-")
    text = field.metadata["help"]
    if field.default is not None:
        text += f" ({_default_text(field.name, defaults)})"
    elif set_by := [f"{name}: {_plain(value)}" for name, value in _set(field.name, defaults)]:
        text += f" ({', '.join(set_by)})"
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text}
    if kind is bool:
        group.add_argument(word, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(kind) is Literal:
        group.add_argument(word, metavar="|".join(get_args(kind)), **common)
    else:
        group.add_argument(word, type=whole if kind is int else number, metavar="N" if kind is int else "X", **common)


def _default_text(name: str, defaults: dict[str, Settings]) -> str:
    """The default, with the presets that differ from the standard one."""
    shown = {preset_name: getattr(settings, name) for preset_name, settings in defaults.items()}
    standard = shown.pop("standard")
    others = [f"{preset_name}: {_plain(value)}" for preset_name, value in shown.items() if value != standard]
    return ", ".join([f"default: {_plain(standard)}", *others])


def _set(name: str, defaults: dict[str, Settings]) -> list[tuple[str, object]]:
    """The presets that give a value to a setting that is left open otherwise."""
    shown = {preset_name: getattr(settings, name) for preset_name, settings in defaults.items()}
    return [(preset_name, value) for preset_name, value in shown.items() if value is not None]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive(text: str) -> int:
    """A whole number above zero."""
    if (value := whole(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def changes(options: argparse.Namespace) -> dict[str, Any]:
    """The settings among the options that were given."""
    names = {field.name for field in dataclasses.fields(Settings)}
    return {name: value for name, value in vars(options).items() if name in names}


def share(text: str) -> float:
    """A number from 0 to 1."""
    if not 0 <= (value := number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def seconds(text: str) -> float:
    """Seconds from 90, 90s, 20m or 1.5h."""
    units = {"s": 1, "m": 60, "h": 3600}
    unit = units.get(text[-1:], 0)
    return number(text[:-1] if unit else text) * (unit or 1)


def words(text: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for word in text.split(",")]


def counts(text: str) -> list[int]:
    """Whole numbers above zero, between commas."""
    return [positive(word) for word in words(text)]
