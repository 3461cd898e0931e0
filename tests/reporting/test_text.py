import pytest

from ebpl.errors import DataError
from ebpl.reporting.text import between, markdown_table


def test_only_what_stands_between_the_comments_is_replaced() -> None:
    text = "before <!-- a -->old<!-- b --> after"
    assert between(text, "<!-- a -->", "<!-- b -->", r"new \1") == "before <!-- a -->\nnew \\1\n<!-- b --> after"
    with pytest.raises(DataError, match="no <!-- c -->"):
        between(text, "<!-- c -->", "<!-- b -->", "new")


def test_a_table_has_a_line_below_its_heads() -> None:
    assert markdown_table(["a", "b"], []) == "| a | b |\n| --- | --- |"
