"""Files of a run directory, read with suspicion: they may be a stranger's, of another version, or damaged.

What passes here can be used without looking again; what does not is a `RunError` with the file and what to do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ebpl.errors import RunError, UsageError
from ebpl.settings import read_toml

Rule = Callable[[Any], bool]
Object = dict[str, Any]


def is_text(value: Any) -> bool:
    """Whether a value is text that can be written into a file; JSON can spell half a character, which cannot."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number above zero."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_object(value: Any) -> bool:
    """Whether a value has entries with names."""
    return isinstance(value, dict)


def wrong_entry(stored: Any, needed: Mapping[str, Rule], allowed: Mapping[str, Rule]) -> str | None:
    """What is wrong with an object that needs some entries and may have others; None if nothing is.

    >>> wrong_entry({"name": 3}, {"name": is_text}, {})
    'name is 3'
    """
    if not is_object(stored):
        return "it is no object with names and values"
    if missing := [name for name in needed if name not in stored]:
        return f"it has no {missing[0]}"
    for name, rule in {**needed, **allowed}.items():
        if name in stored and not rule(stored[name]):
            shown = repr(stored[name])
            return f"{name} is {shown if len(shown) <= 40 else shown[:40] + ' ...'}"
    return None


def read_settings(path: Path) -> tuple[Object, Object]:
    """The settings of a run, still to be checked one by one, and where its data came from."""
    advice = "Put the file back as it was, or start a new run."
    allowed = {
        "fingerprint": is_text,
        "path": is_text,
        "data_dir": is_text,
        "image_size": is_whole,
        "skip_unreadable": lambda value: isinstance(value, bool),
    }
    try:
        stored = read_toml(path)
    except UsageError as error:
        raise RunError(f"{error} {advice}") from error
    reason = wrong_entry(stored, {"settings": is_object, "data": is_object}, {})
    reason = reason or wrong_entry(stored["data"], {"name": is_text}, allowed)
    if reason:
        raise damaged(path, reason, advice)
    return stored["settings"], stored["data"]


def read_environment(path: Path) -> Object:
    """What a run was started on."""
    rules = {"threads": is_whole, "processes": is_whole, "runs_together": is_whole}
    advice = "Put it back, or write {} into it to go on without what it told."
    return _read_json(path, {}, rules, advice)


def read_metrics(path: Path) -> Object:
    """What a finished run came to."""
    from ebpl.measuring.summary import NAMES

    needed: dict[str, Rule] = {"metrics": lambda value: value is None or is_object(value), "chosen": is_object}
    allowed: dict[str, Rule] = {
        "training_energies": lambda value: isinstance(value, list) and value != [] and all(map(is_number, value)),
        "reliability": lambda value: isinstance(value, list) and all(map(is_object, value)),
    }
    advice = f"Remove it, and it is made anew by: ebpl resume {path.parent}"
    stored = _read_json(path, needed, allowed, advice)
    reason = wrong_entry(stored["chosen"], {"phase": is_text, "epoch": is_number, "by": is_text}, {})
    if stored["metrics"] is not None:
        reason = reason or wrong_entry(stored["metrics"], dict.fromkeys(NAMES, is_number), {})
    for row in stored.get("reliability", ()):
        sides = dict.fromkeys(("above", "up_to", "images"), is_number)
        means = dict.fromkeys(("accuracy", "confidence"), lambda value: value is None or is_number(value))
        reason = reason or wrong_entry(row, {**sides, **means}, {})
    if reason:
        raise damaged(path, reason, advice)
    return stored


def _read_json(path: Path, needed: Mapping[str, Rule], allowed: Mapping[str, Rule], advice: str) -> Object:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing. {advice}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error), advice) from error
    if reason := wrong_entry(stored, needed, allowed):
        raise damaged(path, reason, advice)
    found: Object = stored
    return found


def damaged(path: Path, reason: str, advice: str) -> RunError:
    """The error for a file that is not what it should be."""
    return RunError(f"{path} is damaged or of another version: {reason.splitlines()[0]}. {advice}")
