"""One setting: its type and range, and what values and words mean for it."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import types
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from ebpl.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Setting:
    """A field of one of the groups, with its full name."""

    group: str
    """'' for the few that stand outside of the groups."""
    field: dataclasses.Field[Any]
    hint: Any

    @property
    def name(self) -> str:
        """`group.name`."""
        return f"{self.group}.{self.field.name}" if self.group else self.field.name

    @property
    def help(self) -> str:
        """What it does, in a line."""
        text: str = self.field.metadata["help"]
        return text

    @property
    def is_option(self) -> bool:
        """Whether it is an option of the command line, without its group."""
        return bool(self.field.metadata["option"])

    @property
    def type(self) -> Any:
        """Its type without `| None`."""
        if get_origin(self.hint) is types.UnionType:
            return next(kind for kind in get_args(self.hint) if kind is not type(None))
        return self.hint

    @property
    def is_optional(self) -> bool:
        """Whether it may be left open (None), to be filled in from the data."""
        return type(None) in get_args(self.hint)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest value that make sense."""
        return self.field.metadata["low"], self.field.metadata["high"]

    def checked(self, value: Any) -> Any:
        """The value in the field's own type, or an error that names the setting and what it takes."""
        kind = self.type
        if value is None:
            if self.is_optional:
                return None
            raise UsageError(f"{self.name} needs a value.")
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise UsageError(f"{self.name} is {value!r}. {did_you_mean(str(value), get_args(kind))}")
            return value
        if kind is str:
            value = os.fspath(value) if isinstance(value, os.PathLike) else value
            if not isinstance(value, str):
                raise UsageError(f"{self.name} is {value!r}, but must be a name.")
            return value
        wrong_bool = isinstance(value, bool) != (kind is bool)
        if wrong_bool or not isinstance(value, (int, float)):
            raise UsageError(f"{self.name} is {value!r}, but must be {_KINDS[kind]}.")
        if not -sys.float_info.max <= value <= sys.float_info.max:
            raise UsageError(f"{self.name} is {str(value)[:40]}, but must be a finite number.")
        if kind is int and value != int(value):
            raise UsageError(f"{self.name} is {value!r}, but must be {_KINDS[kind]}.")
        low, high = self.range
        if not low <= value <= high:
            wanted = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:.12g}"
            raise UsageError(f"{self.name} is {str(value)[:40]}, but must be {wanted}.")
        return kind(value)

    def parsed(self, text: str) -> Any:
        """The value that a word of the command line stands for."""
        if self.is_optional and text.lower() in (("none",) if self.type is str else ("auto", "none")):
            return None
        if self.type is bool:
            if text.lower() not in (*_YES, *_NO):
                raise UsageError(f"{self.name} is {text!r}, but must be true or false.")
            return text.lower() in _YES
        if self.type in (int, float):
            try:
                return self.type(text)
            except ValueError:
                raise UsageError(f"{self.name} is {text!r}, but must be {_KINDS[self.type]}.") from None
        return text


_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}
