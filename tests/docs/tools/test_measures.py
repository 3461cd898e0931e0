from docs.tools.measures import FUNCTIONS, definition, measures, others
from ebpl.metrics import NAMES


def test_every_measure_is_defined() -> None:
    assert ["images", *FUNCTIONS] == list(NAMES)
    assert all(f"| `{name}` | {title} |" in measures() for name, title in NAMES.items())


def test_examples_are_no_part_of_a_definition() -> None:
    assert ">>>" not in others()
    assert definition(FUNCTIONS["ece"]).startswith("ECE: mean distance of accuracy and confidence")
