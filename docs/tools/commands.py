"""Commands reference: every command with its arguments and options, from the parsers of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from docs.tools.settings import anchor
from docs.tools.text import code, table
from ebpl.cli import build_parser
from ebpl.cli.options import Parser
from ebpl.config import find
from ebpl.errors import DataError, DivergedError, EbplError, RunError, UsageError, WriteError
from ebpl.launch import INTERRUPTED


def commands() -> str:
    """A section for each command."""
    _, known = build_parser()
    return "\n\n".join(_command(name, parser) for name, parser in known.items())


def exit_codes() -> str:
    """What the exit code of a command means."""
    kinds = (EbplError, UsageError, DataError, RunError, DivergedError, WriteError)
    rows = [[str(kind.exit_code), (kind.__doc__ or "").split("\n")[0], code(f"ebpl.{kind.__name__}")] for kind in kinds]
    done, stopped = ["0", "Success.", ""], [str(INTERRUPTED), "Interrupted by Ctrl-C or SIGTERM.", ""]
    return table(["code", "meaning", "in Python"], [done, *rows, stopped])


def _command(name: str, parser: Parser) -> str:
    description = parser.description or ""
    own: list[argparse.Action] = []
    of_settings: list[argparse.Action] = []
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            (of_settings if action.default is argparse.SUPPRESS else own).append(action)
    parts = [f"## ebpl {name}", f"{description[:1].upper()}{description[1:]}."]
    parts.append(f"```text\n{_usage(name, own)}\n```")
    if own:
        parts.append(table(["argument or option", "what it does"], map(_row, own)))
    if of_settings:
        parts.append(
            "The most used [settings](settings.md) are options too. All others are set with `--set group.name=value`, "
            f"which may be repeated.\n\n{table(['option', 'setting', 'what it does'], map(_setting, of_settings))}"
        )
    return "\n\n".join(parts)


def _usage(name: str, own: Sequence[argparse.Action]) -> str:
    places = [_place(action) for action in own if not action.option_strings]
    required = [_word(action) for action in own if action.option_strings and action.required]
    more = ["[OPTIONS]"] if any(action.option_strings and not action.required for action in own) else []
    return " ".join(["ebpl", name, *places, *required, *more])


def _place(action: argparse.Action) -> str:
    name = str(action.metavar)
    return {"+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)


def _word(action: argparse.Action) -> str:
    """The option with what it takes."""
    if not action.option_strings:
        return str(action.metavar)
    words = ", ".join(action.option_strings)
    return f"{words} {action.metavar}" if action.metavar else words


def _row(action: argparse.Action) -> list[str]:
    return [code(_word(action)), (action.help or "").replace("%%", "%")]


def _setting(action: argparse.Action) -> list[str]:
    name = find(action.dest).name
    return [code(_word(action)), f"[{code(name)}](settings.md#{anchor(name)})", (action.help or "").replace("%%", "%")]
