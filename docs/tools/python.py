"""Python reference: the public names, which mkdocstrings turns into signatures and docstrings."""

from __future__ import annotations

import ebpl

FIRST = (
    "train",
    "resume",
    "evaluate",
    "predict",
    "inspect",
    "suggest",
    "add_labels",
    "label_errors",
    "report",
    "export",
)
"""The functions that are commands too; all other names follow."""
OPTIONS = {"Settings": "members: [changed, to_dict]"}
"""For mkdocstrings; the fields of the settings have a page of their own."""


def names() -> str:
    """A section for each public name."""
    others = [name for name in ebpl.__all__ if name not in FIRST and not name.startswith("__")]
    return "\n\n".join(_section(name) for name in (*FIRST, *others))


def _section(name: str) -> str:
    options = f"\n    options:\n      {OPTIONS[name]}" if name in OPTIONS else ""
    return f"::: ebpl.{name}{options}"
