"""The public names of the package as Markdown, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import ebpl

WIDEST = 92


def names() -> str:
    """A section for each public name: functions and classes, those of one module together."""
    order = list(dict.fromkeys(ebpl._HOME.values()))
    every = sorted(ebpl._HOME, key=lambda name: order.index(ebpl._HOME[name]))
    return "\n\n".join(_section(name, getattr(ebpl, name)) for name in every)


def _section(name: str, found: Any) -> str:
    parts = [f"## ebpl.{name}"]
    if inspect.isclass(found):
        parts += [_block(_class_signature(name, found)), prose(inspect.getdoc(found) or "")]
        parts += [_member(name, inner, member) for inner, member in _members(found)]
    else:
        parts += [_block(signature(f"ebpl.{name}", found)), prose(inspect.getdoc(found) or "")]
    return "\n\n".join(part for part in parts if part)


def _class_signature(name: str, kind: type) -> str:
    if issubclass(kind, Exception):
        return f"class ebpl.{name}({', '.join(base.__name__ for base in kind.__bases__)})"
    if kind is ebpl.Settings:
        return f"ebpl.{name}(*, ...)  # every setting by name"
    return signature(f"ebpl.{name}", kind)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that the class itself defines and documents, in their order."""
    for name, member in vars(kind).items():
        documented = inspect.getdoc(getattr(member, "__func__", member))
        if not name.startswith("_") and documented and (callable(member) or isinstance(member, property | classmethod)):
            yield name, member


def _member(owner: str, name: str, member: Any) -> str:
    if isinstance(member, property):
        returned = inspect.signature(member.fget).return_annotation if member.fget else ""
        shown = f"{owner}.{name}: {_annotation(returned)}"
    else:
        shown = signature(f"{owner}.{name}", getattr(member, "__func__", member))
    return f"### {owner}.{name}\n\n{_block(shown)}\n\n{prose(inspect.getdoc(member) or '')}"


def signature(name: str, function: Any) -> str:
    """How it is called, in one line or, where that is too long, a line for each argument."""
    found = inspect.signature(function)
    arguments = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    shown = [_argument(each) for each in arguments]
    if by_name := [place for place, each in enumerate(arguments) if each.kind is each.KEYWORD_ONLY]:
        shown.insert(by_name[0], "*")
    returns = "" if inspect.isclass(function) else f" -> {_annotation(found.return_annotation)}"
    one_line = f"{name}({', '.join(shown)}){returns}"
    if len(one_line) <= WIDEST:
        return one_line
    inner = "".join(f"    {line},\n" for line in shown)
    return f"{name}(\n{inner}){returns}"


def _argument(argument: inspect.Parameter) -> str:
    stars = "**" if argument.kind is argument.VAR_KEYWORD else "*" if argument.kind is argument.VAR_POSITIONAL else ""
    given = "" if argument.default is argument.empty else f" = {_plain(argument.default)}"
    return f"{stars}{argument.name}: {_annotation(argument.annotation)}{given}"


def _annotation(annotation: Any) -> str:
    """As it was written, but for long names that everybody knows by a short one."""
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    written = re.sub(r"\bData\b", "str | os.PathLike[str] | ImageSet", written)
    return written.replace("str | os.PathLike[str]", "str | Path")


def _plain(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _block(text: str) -> str:
    return f"```python\n{text}\n```"


def prose(docstring: str) -> str:
    """A docstring as Markdown: examples and numpydoc's sections become what Markdown has for them.

    >>> print(prose("Parameters\\n----------\\nx : a number"))
    **Parameters**
    <BLANKLINE>
    - `x`: a number
    """
    text = re.sub(r"^(\w[\w ]*)\n-{3,}$", r"**\1**\n", docstring, flags=re.MULTILINE)
    text = re.sub(r"^(\w[\w, ]*?) : (.+(?:\n {4}.+)*)", _definition, text, flags=re.MULTILINE)
    return re.sub(r"^>>> (?:.+\n?)+", lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text, flags=re.MULTILINE)


def _definition(found: re.Match[str]) -> str:
    """A parameter or attribute and what it is, as an item of a list."""
    names = ", ".join(f"`{name.strip()}`" for name in found[1].split(","))
    return f"- {names}: {' '.join(found[2].split())}"
