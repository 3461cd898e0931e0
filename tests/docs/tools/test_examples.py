import doctest
import importlib
from pathlib import Path

import pytest

TOOLS = sorted(path.stem for path in (Path(__file__).parents[3] / "docs/tools").glob("*.py"))


@pytest.mark.parametrize("name", TOOLS)
def test_examples_in_docstrings_are_right(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"docs.tools.{name}")).failed == 0
