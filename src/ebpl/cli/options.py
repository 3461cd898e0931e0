"""What options of the command line are made of: the parser, the kinds of values, and the options of settings."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Collection, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from ebpl import terminal
from ebpl.config import Setting, fields, find
from ebpl.config.compat import OLD_NAMES
from ebpl.config.presets import PRESETS
from ebpl.data import BENCHMARK_NAMES
from ebpl.errors import UsageError, did_you_mean
from ebpl.methods import method_names


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, and suggests the right word for a wrong one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "allow_abbrev": False, "formatter_class": _Formatter})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")

    def refuse(self, unknown: Sequence[str]) -> None:
        """Say what is wrong with words that the parser does not know, if there are any."""
        if not unknown:
            return
        wrong = unknown[0].split("=")[0]
        if not wrong.startswith("-"):
            raise UsageError(f"{self.prog} does not take {wrong!r} here. See: {self.prog} --help")
        raise UsageError(f"There is no option {wrong} for {self.prog}. {self._nearest(wrong)}")

    def _nearest(self, wrong: str) -> str:
        """What may have been meant: an option, or a setting, perhaps under the name that it had in version 0.1."""
        words = {word: word for word in self.options()}
        if "--set" not in words:
            return did_you_mean(wrong, words)
        settings = {**{name: name for name, setting in fields().items() if not setting.is_option}, **OLD_NAMES}
        reached = {f"--{re.sub('[._]', '-', name)}": f"--set {full}=X" for name, full in settings.items()}
        words = {**reached, **words}
        alike = [wrong] if wrong in words else difflib.get_close_matches(wrong, words, n=3, cutoff=0.75)
        near = dict.fromkeys(words[word] for word in alike)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        return f"{hint}Options: {self.prog} --help. Other settings: --set group.name=value."

    def options(self) -> list[str]:
        """All option words of this parser."""
        return [word for action in self._actions for word in action.option_strings if word.startswith("--")]


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Names with dashes stay in one line."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        """Only the arguments: options are listed below."""
        given = [action for action in actions if not action.option_strings]
        return super()._format_usage(usage, given, [], prefix).rstrip() + " [options]\n\n"


def add_data(parser: Parser, more: str = "") -> None:
    """What to train on or to look at, and how it is found and read; `more` is what else can be given."""
    known = f"class folders and unlabeled/, a CSV, an .npz, or: {', '.join(BENCHMARK_NAMES)}"
    parser.add_argument("data", metavar="DATA", help=known + more)
    add_data_dir(parser)
    parser.add_argument(
        "--image-size", type=positive, metavar="N", help="resize your own images to N x N (default: 32, or as they are)"
    )


def add_data_dir(parser: Parser) -> None:
    """Where benchmarks are."""
    parser.add_argument("--data-dir", metavar="DIR", help="where benchmarks are (also: EBPL_DATA)")


def add_skip_unreadable(parser: Parser) -> None:
    """What happens with image files that cannot be read."""
    parser.add_argument("--skip-unreadable", action="store_true", help="leave out files that cannot be read")


def add_settings(parser: Parser, without: Collection[str] = ()) -> None:
    """An option for each of the most used settings but some, and a way to all others."""
    group = parser.add_argument_group(
        "settings", "What is not given is as the preset has it; docs/reference lists all."
    )
    add = group.add_argument
    add("--preset", metavar="NAME", help=f"{', '.join(PRESETS)} (default: see ebpl inspect)")
    add("--config", metavar="FILE", help="a TOML file, such as a run's settings.toml")
    add("--set", metavar="X=Y", dest="set", action="append", default=[],
        help="any setting, such as sgld.steps=5; repeatable")  # fmt: skip
    for setting in fields().values():
        if setting.is_option and setting.name not in without:
            _add_setting(group, setting)


def _add_setting(group: Any, setting: Setting) -> None:
    word, name = "--" + setting.field.name.replace("_", "-"), setting.field.name
    common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": SHORT_HELP.get(name, setting.help)}
    if get_origin(setting.type) is Literal:
        group.add_argument(word, metavar="|".join(get_args(setting.type)), **common)
    elif setting.type is str:
        group.add_argument(word, metavar="NAME", **common)
    else:
        kind = whole if setting.type is int else number
        group.add_argument(word, type=kind, metavar="N" if setting.type is int else "X", **common)


SHORT_HELP = {
    "method": ", ".join(method_names()),
    "labels_per_class": "labels kept per class (default: all)",
    "validation_fraction": "labels held out to choose the weights",
    "class_mix": "labels, auto (estimated), balanced, or a CSV",
    "augment": "label-preserving augmentation",
    "seed": "seed of all random numbers",
    "encoder": "a pretrained encoder: see ebpl encoders",
    "fine_tune": "which of its weights are learned too",
    "depth": "depth of the network: 10, 16, 22, 28 ...",
    "width": "width factor of the network",
    "batch_size": "images in a batch",
    "pseudo_labels": "none, the predicted class, or the posterior",
}
"""What a line of `--help` has room for."""


def assignment(text: str) -> tuple[str, Any]:
    """A setting and its value, from name=value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: give a name and a value, for instance sgld.steps=5.")
    setting = find(name.strip())
    return setting.name, setting.parsed(value.strip())


def changes(options: argparse.Namespace) -> dict[str, Any]:
    """The settings among the options that were given."""
    named = {setting.field.name: setting.name for setting in fields().values() if setting.is_option}
    given = {named[name]: value for name, value in vars(options).items() if name in named}
    return {**dict(map(assignment, options.set)), **given}


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


def share(text: str) -> float:
    """A number from 0 to 1."""
    if not 0 <= (value := number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def seconds(text: str) -> float:
    """Seconds from 90, 90s, 20m or 1.5h."""
    try:
        return terminal.seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def words(text: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for word in text.split(",")]


def counts(text: str) -> list[int]:
    """Whole numbers above zero, between commas."""
    return [positive(word) for word in words(text)]
