import re
from pathlib import Path

import ebpl
from docs.tools.python import names


def test_every_public_name_has_a_section() -> None:
    shown = re.findall(r"^::: ebpl\.(\w+)$", names(), re.MULTILINE)
    assert sorted(shown) == sorted(set(ebpl.__all__) - {"__version__"})


def test_the_page_holds_signatures_docstrings_and_examples(site: Path) -> None:
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    for name in set(ebpl.__all__) - {"__version__"}:
        assert f'id="ebpl.{name}"' in page, name
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))
    assert "Train on data and return the finished run" in text
    assert "EBPLClassifier( preset: str | None = None" in text
    assert page.count('<span class="gp">') > 10, "examples are highlighted"
    assert "<blockquote>" not in page, "an example that is not a code block"
