from ebpl.config.presets import preset
from experiments.grid import cells
from experiments.overview import overview, reported

CHOSEN = cells("table1", ["digits"], [0, 1, 2, 5], preset("quick"))


def record(place: int, commit: str | None = "abc", **result: object) -> dict[str, object]:
    settings = CHOSEN[place].settings.to_dict()
    return {"data": {"name": "digits"}, "settings": settings, "environment": {"commit": commit}, "result": result}


def test_the_overview_counts_what_is_there_and_names_what_is_missing() -> None:
    heads, *lines = overview(CHOSEN, [record(1)])
    assert heads[-2:] == ["seeds there", "missing"]
    assert lines[0] == ["digits", "EBPL", "none", "paper's", "1", "0, 2, 5"]
    assert lines[1] == ["digits", "EBPL", "hard", "paper's", "0", "0-2, 5"]


def test_runs_of_unknown_code_and_those_that_recovered_are_named() -> None:
    there = [record(0, None), record(1, "abc-dirty"), record(2, None, healed_divergences=[{"epoch": 1}]), record(4)]
    heads, first, second, *_ = overview(CHOSEN, there)
    assert heads[-1] == "remarks"
    assert first[-3:] == ["3", "5", "no commit: 0, 2; uncommitted changes: 1; recovered from divergence: 2"]
    assert second[-3:] == ["1", "1-2, 5", ""]


def test_seeds_that_no_choice_has_seen_are_reported_once_every_group_has_three_of_them() -> None:
    seeds = [0, 3, 4, 6]
    chosen = cells("table1", ["digits"], seeds, preset("quick"))

    def records(*wanted: tuple[str, str, int]) -> list[dict[str, object]]:
        return [
            {"data": {"name": "digits"}, "settings": cell.settings.to_dict(), "result": {}}
            for cell in chosen
            if (cell.settings.method, cell.settings.curriculum.pseudo_labels, cell.settings.seed) in wanted
        ]

    both = ["ebpl", "curriculum-labeling"]
    all_of_them = [(method, "none", seed) for method in both for seed in seeds]
    assert {cell.settings.seed for cell in reported(chosen, records(*all_of_them))} == {3, 4, 6}
    too_few = [each for each in all_of_them if each != ("curriculum-labeling", "none", 6)]
    assert reported(chosen, records(*too_few)) == chosen
    assert reported(chosen, []) == chosen


def test_a_single_record_of_another_method_does_not_change_which_seeds_are_reported() -> None:
    methods = ["ebpl", "curriculum-labeling", "fixmatch"]
    chosen = cells("table1", ["digits"], [0, 3, 4, 6], preset("quick"), methods=methods)

    def there(*wanted: tuple[str, int]) -> list[dict[str, object]]:
        return [
            {"data": {"name": "digits"}, "settings": cell.settings.to_dict(), "result": {}}
            for cell in chosen
            if (cell.settings.method, cell.settings.seed) in wanted and cell.settings.curriculum.pseudo_labels == "none"
        ]

    both = [(method, seed) for method in methods[:2] for seed in (0, 3, 4, 6)]
    assert {cell.settings.seed for cell in reported(chosen, there(*both, ("fixmatch", 3)))} == {3, 4, 6}
    assert reported(chosen, there(*both[:-1], ("fixmatch", 3))) == chosen
