"""Every setting as Markdown: what it does, what it takes, and its value in each preset."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin

from docs.tools.text import code, table
from ebpl.config import Settings, field_type, is_optional
from ebpl.config.presets import PRESET_HELP, PRESETS, preset


def settings() -> str:
    """A table for each group of settings."""
    groups: dict[str, list[dataclasses.Field[Any]]] = {}
    for field in dataclasses.fields(Settings):
        groups.setdefault(field.metadata["group"], []).append(field)
    heads = ["setting", "what it does", "takes", *PRESETS]
    return "\n\n".join(f"## {title}\n\n{table(heads, map(_row, fields))}" for title, fields in groups.items())


def presets() -> str:
    """The presets, each in a line."""
    return table(["preset", "what it is"], [[code(name), PRESET_HELP[name]] for name in PRESETS])


def anchor(name: str) -> str:
    """Where a setting is on the page of settings.

    >>> anchor("learning_rate")
    'learning-rate'
    """
    return name.replace("_", "-")


def _row(field: dataclasses.Field[Any]) -> list[str]:
    values = [_value(getattr(preset(name), field.name)) for name in PRESETS]
    name = f'<code id="{anchor(field.name)}">{field.name}</code>'
    return [name, field.metadata["help"].replace("%%", "%"), takes(field), *values]


def takes(field: dataclasses.Field[Any]) -> str:
    """The values that a setting may have, in words."""
    kind = field_type(field.name)
    if get_origin(kind) is Literal:
        words = ", ".join(map(code, get_args(kind)))
    elif kind is bool:
        words = "on or off"
    else:
        words = ("whole number" if kind is int else "number") + _range(field.metadata["low"], field.metadata["high"])
    return words + ("; may be left open" if is_optional(field.name) else "")


def _range(low: float, high: float) -> str:
    if high < math.inf:
        return f" from {low:g} to {high:g}"
    return f", at least {low:g}" if low > -math.inf else ""


def _value(value: object) -> str:
    """As the help of the command line shows it."""
    if value is None:
        return "open"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
