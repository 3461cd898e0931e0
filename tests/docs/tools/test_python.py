import ast
import inspect
import re

import ebpl
from docs.tools.python import names, prose, signature


def test_every_public_name_has_a_section_with_words() -> None:
    page = names()
    parts = re.split(r"^## ebpl\.(\w+)$", page, flags=re.MULTILINE)
    assert set(parts[1::2]) == set(ebpl.__all__) - {"__version__"}
    for name, part in zip(parts[1::2], parts[2::2], strict=True):
        assert len(re.sub(r"```.*?```", "", part, flags=re.DOTALL).split()) > 3, name


def test_signatures_are_python() -> None:
    def example(
        data: "str", *, seed: int = 0, name: str | None = None, kind: str = "soft", **more: object
    ) -> list[int]: ...

    short = signature("example", example)
    assert short == (
        "example(\n    data: str,\n    *,\n    seed: int = 0,\n    name: str | None = None,\n"
        '    kind: str = "soft",\n    **more: object,\n) -> list[int]'
    )
    for name in ("train", "load", "suggest", "measure"):
        ast.parse(f"def {signature(name, getattr(ebpl, name))}: ...")


def test_sections_and_lists_of_a_docstring_become_markdown() -> None:
    made = prose(inspect.getdoc(ebpl.EBPLClassifier) or "")
    assert not re.search(r"^-{3,}$", prose("Parameters\n----------\nx : a number"), re.MULTILINE)
    assert (
        prose("Parameters\n----------\nx, y : numbers\n    of any kind")
        == "**Parameters**\n\n- `x`, `y`: numbers of any kind"
    )
    assert "```pycon" in made


def test_examples_end_where_prose_goes_on() -> None:
    assert prose(">>> 1\n1\n\nMore.") == "```pycon\n>>> 1\n1\n```\n\nMore."
