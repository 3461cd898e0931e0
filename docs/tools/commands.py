"""Every command as Markdown, with what it takes, from the parsers of the command line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence

from docs.tools.settings import anchor
from docs.tools.text import code, table
from ebpl.cli import build_parser
from ebpl.cli.options import Parser
from ebpl.config import Settings
from ebpl.errors import DataError, DivergedError, EbplError, RunError, UsageError, WriteError
from ebpl.launch import INTERRUPTED


def commands() -> str:
    """A section for each command."""
    _, known = build_parser()
    return "\n\n".join(_command(name, parser) for name, parser in known.items())


def exit_codes() -> str:
    """What the command's exit code says."""
    kinds = (EbplError, UsageError, DataError, RunError, DivergedError, WriteError)
    rows = [[str(kind.exit_code), (kind.__doc__ or "").split("\n")[0]] for kind in kinds]
    done = ["0", "All went well."]
    return table(["code", "meaning"], [done, *rows, [str(INTERRUPTED), "Stopped from the keyboard, or asked to end."]])


def _command(name: str, parser: Parser) -> str:
    settings = {field.name for field in dataclasses.fields(Settings)}
    words = f"{(parser.description or '')[:1].upper()}{(parser.description or '')[1:]}."
    own: list[argparse.Action] = []
    of_settings: list[argparse.Action] = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        is_setting = action.dest in settings and action.default is argparse.SUPPRESS
        (of_settings if is_setting else own).append(action)
    parts = [f"## ebpl {name}", words, f"```text\n{_usage(name, own, of_settings)}\n```"]
    if own:
        parts.append(table(["argument or option", "what it does"], map(_row, own)))
    if of_settings:
        parts.append(f"It takes these [settings](settings.md) too:\n\n{_links(of_settings)}")
    return "\n\n".join(parts)


def _usage(name: str, own: Sequence[argparse.Action], of_settings: Sequence[argparse.Action]) -> str:
    places = [_place(action) for action in own if not action.option_strings]
    required = [_word(action) for action in own if action.option_strings and action.required]
    more = ["[OPTIONS]"] if any(action.option_strings and not action.required for action in own) else []
    return " ".join(["ebpl", name, *places, *required, *more, *(["[SETTINGS]"] if of_settings else [])])


def _place(action: argparse.Action) -> str:
    name = str(action.metavar)
    return {"+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)


def _word(action: argparse.Action) -> str:
    """The option with what it takes; of one that can be switched off, both words."""
    if not action.option_strings:
        return str(action.metavar)
    words = ", ".join(action.option_strings)
    if action.nargs == "?":
        return f"{words} [{action.metavar}]"
    return f"{words} {action.metavar}" if action.metavar else words


def _row(action: argparse.Action) -> list[str]:
    return [code(_word(action)), (action.help or "").replace("%%", "%")]


def _links(actions: Iterable[argparse.Action]) -> str:
    links = [f"[{code(action.option_strings[0])}](settings.md#{anchor(action.dest)})" for action in actions]
    return " ".join(links) + "\n{: .options }"
