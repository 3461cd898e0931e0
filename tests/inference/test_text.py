import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ebpl.errors import DataError
from ebpl.reporting.model_card import literal, markdown_table
from experiments.readme import between


def test_only_what_stands_between_the_comments_is_replaced() -> None:
    text = "before <!-- a -->old<!-- b --> after"
    assert between(text, "<!-- a -->", "<!-- b -->", r"new \1") == "before <!-- a -->\nnew \\1\n<!-- b --> after"
    with pytest.raises(DataError, match="no <!-- c -->"):
        between(text, "<!-- c -->", "<!-- b -->", "new")


@given(st.text(max_size=20))
def test_any_text_is_shown_as_it_is_and_makes_no_markup(text: str) -> None:
    table = MarkdownIt("commonmark").enable("table").render(markdown_table(["name"], [[literal(text)]]))
    (cell,) = re.findall(r"<td>(.*?)</td>", table, re.DOTALL)
    printable = "".join(c if c.isprintable() else " " for c in text)
    assert html.unescape(cell) == " ".join(printable.split())


def test_a_table_has_a_line_below_its_heads() -> None:
    assert markdown_table(["a", "b"], []) == "| a | b |\n| --- | --- |"
