"""Settings reference: a table for each group, with the value of each setting in each preset."""

from __future__ import annotations

import math
from typing import Literal, get_args, get_origin

from docs.tools.text import code, table
from ebpl.config import Setting, fields, groups
from ebpl.config.presets import PRESET_HELP, PRESETS, preset


def settings() -> str:
    """A section with a table for each group."""
    heads = ["setting", "what it does", "takes", *PRESETS]
    parts = []
    for group, about in groups().items():
        own = [setting for setting in fields().values() if setting.group == group]
        title = f"`{group}`" if group else "Without a group"
        parts.append(f"## {title}\n\n{about}\n\n{table(heads, map(_row, own))}")
    return "\n\n".join(parts)


def presets() -> str:
    """The presets, each in a line."""
    return table(["preset", "what it is"], [[code(name), PRESET_HELP[name]] for name in PRESETS])


def anchor(name: str) -> str:
    """The anchor of a setting on the settings page.

    >>> anchor("optim.learning_rate")
    'optim-learning-rate'
    """
    return name.replace("_", "-").replace(".", "-")


def _row(setting: Setting) -> list[str]:
    values = [_value(preset(name)[setting.name]) for name in PRESETS]
    name = f'<code id="{anchor(setting.name)}">{setting.name}</code>'
    option = f" (option `--{setting.field.name.replace('_', '-')}`)" if setting.is_option else ""
    return [name, setting.help.replace("%%", "%") + option, takes(setting), *values]


def takes(setting: Setting) -> str:
    """The values that a setting accepts."""
    kind = setting.type
    if get_origin(kind) is Literal:
        words = ", ".join(map(code, get_args(kind)))
    elif kind is bool:
        words = "`true` or `false`"
    elif kind is str:
        words = "a name"
    else:
        words = ("whole number" if kind is int else "number") + _range(*setting.range)
    return words + ("; `auto`" if setting.is_optional else "")


def _range(low: float, high: float) -> str:
    if high < math.inf:
        return f" from {low:g} to {high:.12g}"
    return f", at least {low:g}" if low > -math.inf else ""


def _value(value: object) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
