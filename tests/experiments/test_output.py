from ebpl.experiments.cells import cells
from ebpl.experiments.output import overview
from ebpl.settings import preset


def test_the_overview_counts_what_is_there_and_names_what_is_missing() -> None:
    chosen = cells("table1", ["digits"], [0, 1, 2, 5], preset("quick"))
    there = [{"data": {"name": "digits"}, "settings": chosen[1].settings.to_dict()}]
    lines = overview(chosen, there)
    assert lines[1] == ["digits", "EBPL", "none", "paper's", "1", "0, 2, 5"]
    assert lines[2] == ["digits", "EBPL", "hard", "paper's", "0", "0-2, 5"]
