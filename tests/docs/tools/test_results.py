from pathlib import Path

from docs.tools import results
from docs.tools.results import _cells
from ebpl.io import write_json
from experiments.ledger import load
from experiments.output import tables

ROOT = Path(__file__).parents[2]


def test_the_tables_hold_what_the_repository_shows_elsewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    whole = tables(_cells(), load(ROOT / "results"))["table1.md"]
    assert results.of_readme(ROOT, "digits") in readme
    assert results.speed(ROOT) in readme
    assert results.moments(ROOT) in whole


def test_distances_are_of_what_was_measured() -> None:
    heads = results.distances(ROOT).splitlines()[0]
    assert "blood" in heads
    assert "not measured" not in "".join(line.split("|")[4] for line in results.distances(ROOT).splitlines()[2:])


def test_the_three_measures_of_a_cell_stand_below_each_other() -> None:
    text = results.table1(ROOT)
    assert "<br>" in text
    assert " / " not in text


def test_an_empty_ledger_is_told() -> None:
    assert results.moments(Path()) == "Not measured."
    assert results.beyond(Path(), "outliers") == "Not measured yet."


def test_an_experiment_past_the_paper_is_shown_without_empty_columns() -> None:
    arm = {"metrics": {"accuracy": 0.5, "ece": 0.1}}
    made = {"experiment": "suggestions", "data": "blood", "settings": {"depth": 16, "width": 4}}
    write_json(Path("results/beyond/x.json"), {**made, "arms": {"random": arm}})
    assert results.beyond(Path(), "suggestions").splitlines() == [
        "| data | network | arm | n | accuracy % | ECE % |",
        "| --- | --- | --- | --- | --- | --- |",
        "| blood | WRN-16-4 | random | 1 | 50.0 | 10.0 |",
    ]


def test_what_was_explored_says_in_which_way_the_confidence_was_wrong() -> None:
    tried = {"changes": {"mix": 0.5}, "accuracy": 0.5, "ece": 0.04}
    base = {"data": "svhn", "seed": 0, "preset": "quick", "base": {"mix": 0.0}, "updates": 100}
    variants = {"sure": {**tried, "overconfidence": 0.04}, "unsure": {**tried, "overconfidence": -0.04}}
    write_json(Path("results/explored/unsure/svhn.json"), {**base, "variants": variants})
    assert [line.split("|")[2].strip() for line in results.explored(Path(), "unsure").splitlines()[-2:]] == [
        "50.0 / 4.0 (too sure)",
        "50.0 / 4.0 (too unsure)",
    ]


def test_what_was_explored_is_shown_side_by_side() -> None:
    tried = {"changes": {"mix": 0.5}, "accuracy": 0.834, "ece": 0.07}
    stopped = {**tried, "updates": 12288, "on": "validation images"}
    base = {"seed": 1, "preset": "standard", "base": {"strong": 0.5}, "updates": 4608}
    for data, variants in (("blood", {"std": {**tried, "changes": {}}, "mix": tried}), ("cifar10", {"mix": tried})):
        write_json(
            Path(f"results/explored/mixing/{data}.json"),
            {**base, "data": data, "variants": {**variants, "long": stopped}},
        )
    assert results.explored(Path(), "mixing").splitlines() == [
        "From `standard` with `strong` 0.5, 4,608 updates:",
        "",
        "| changed | blood, seed 1 | cifar10, seed 1 |",
        "| --- | --- | --- |",
        "| nothing | 83.4 / 7.0 |  |",
        "| `mix` 0.5 | 83.4 / 7.0 | 83.4 / 7.0 |",
        "| `mix` 0.5, 12,288 updates | 83.4 / 7.0 (validation images) | 83.4 / 7.0 (validation images) |",
    ]
