"""An extension of griffe, which reads docstrings for mkdocstrings: examples with `>>>` become code blocks."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^>>> (?:.+(?:\n|\Z))+", re.MULTILINE)


class Examples(Extension):
    """Marks examples outside of a section "Examples", which griffe knows only there."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called with each object once it was read."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    r"""A docstring whose examples are code blocks of Markdown.

    >>> fenced(">>> 1\n1")
    '```pycon\n>>> 1\n1\n```'
    """
    if "\nExamples\n---" in docstring:
        return docstring
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", docstring).rstrip("\n")
