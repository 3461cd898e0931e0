"""The training methods, from their registry."""

from __future__ import annotations

from docs.tools.text import code, table
from ebpl.methods import get_method, method_names


def methods() -> str:
    """Every method in a line."""
    rows = []
    for name in method_names():
        method = get_method(name)
        weights = "new ones" if method.reinitialise else "kept"
        rows.append([code(name), method.title, method.summary, "yes" if method.density else "no", weights])
    return table(["name", "in tables", "what it is", "energy model", "weights at each step"], rows)
