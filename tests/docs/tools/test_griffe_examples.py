from docs.tools.griffe_examples import fenced


def test_examples_end_where_prose_continues() -> None:
    assert fenced(">>> 1\n1\n\nMore.") == "```pycon\n>>> 1\n1\n```\n\nMore."


def test_a_section_of_examples_is_left_to_griffe() -> None:
    text = "Short.\n\nExamples\n--------\n>>> 1\n1"
    assert fenced(text) == text
