import re
import shlex
from pathlib import Path

from docs.tools import results
from docs.tools.results import _cells
from ebpl.cli.options import changes
from ebpl.config.presets import PRESETS, preset
from ebpl.io import write_json
from experiments.__main__ import build_parser
from experiments.ablation import SMALL
from experiments.output import tables
from experiments.results_store import load

ROOT = Path(__file__).parents[3]


def test_the_tables_hold_what_the_repository_shows_elsewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    whole = tables(_cells(), load(ROOT / "results"))["table1.md"]
    assert results.table(ROOT, "best") in readme
    assert results.stopping_points(ROOT) in whole


def test_the_table_of_digits_has_five_seeds_and_says_what_it_ran_on() -> None:
    lines = results.table(ROOT, "digits").splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:7]] == ["0", "1", "2", "3", "4"]
    assert "CPU threads" in lines[-1]


def test_the_training_time_of_every_preset_is_there_or_said_to_be_missing() -> None:
    lines = results.table(ROOT, "presets").splitlines()[2:]
    assert {line.split("|")[1].strip() for line in lines} == set(PRESETS)


def test_distances_are_of_what_was_measured() -> None:
    heads, _, *lines = ([cell.strip() for cell in line.split("|")] for line in results.distances(ROOT).splitlines())
    of = {heads[i]: {line[i] for line in lines} for i in range(4, len(heads) - 1)}
    assert {"blood", "fashion", "cifar10", "svhn"} == of.keys()
    assert "not measured" not in of["blood"] | of["fashion"]
    assert all(len(values) > 1 for values in of.values())


def test_the_three_metrics_of_a_cell_stand_below_each_other() -> None:
    text = results.table1(ROOT)
    assert "<br>" in text
    assert " / " not in text


def test_the_papers_configuration_has_a_row_for_each_form_and_is_not_mixed_with_other_networks() -> None:
    text = results.table1(ROOT, "paper configuration")
    assert [line.split("|")[2].strip() for line in text.splitlines()[2:5]] == ["none", "hard", "soft"]
    assert "(WRN-28-2; " in text


def test_what_was_not_measured_is_said_so() -> None:
    assert results.stopping_points(Path()) == "Not measured yet."
    assert results.multi_run(Path(), "outliers") == "Not measured yet."


def test_an_experiment_beyond_the_paper_is_shown_without_empty_columns() -> None:
    arm = {"metrics": {"accuracy": 0.5, "ece": 0.1}}
    record = {"experiment": "suggestions", "data": "blood", "settings": {"depth": 16, "width": 4}}
    write_json(Path("results/beyond/x.json"), {**record, "arms": {"random": arm}})
    assert results.multi_run(Path(), "suggestions").splitlines() == [
        "| data | network | arm | n | accuracy % | ECE % |",
        "| --- | --- | --- | --- | --- | --- |",
        "| blood | WRN-16-4 | random | 1 | 50.0 | 10.0 |",
    ]


def test_what_was_explored_says_in_which_direction_the_confidence_was_wrong() -> None:
    tried = {"changes": {"mix": 0.5}, "accuracy": 0.5, "ece": 0.04}
    base = {"data": "svhn", "seed": 0, "preset": "quick", "base": {"mix": 0.0}, "updates": 100}
    variants = {"over": {**tried, "overconfidence": 0.04}, "under": {**tried, "overconfidence": -0.04}}
    write_json(Path("results/explored/unsure/svhn.json"), {**base, "variants": variants})
    assert [line.split("|")[2].strip() for line in results.explored(Path(), "unsure").splitlines()[-2:]] == [
        "50.0 / 4.0 (over-confident)",
        "50.0 / 4.0 (under-confident)",
    ]


def test_what_was_explored_is_shown_side_by_side_under_todays_names() -> None:
    tried = {"changes": {"mix": 0.5}, "accuracy": 0.834, "ece": 0.07}
    stopped = {**tried, "updates": 12288, "on": "validation images"}
    base = {"seed": 1, "preset": "standard", "base": {"strong": 0.5}, "updates": 4608}
    for data, variants in (("blood", {"std": {**tried, "changes": {}}, "mix": tried}), ("cifar10", {"mix": tried})):
        write_json(
            Path(f"results/explored/mixing/{data}.json"),
            {**base, "data": data, "variants": {**variants, "long": stopped}},
        )
    assert results.explored(Path(), "mixing").splitlines() == [
        "From `standard` with `strong` (removed) 0.5, 4,608 updates:",
        "",
        "| changed | blood, seed 1 | cifar10, seed 1 |",
        "| --- | --- | --- |",
        "| nothing | 83.4 / 7.0 |  |",
        "| `data.mixup_probability` 0.5 | 83.4 / 7.0 | 83.4 / 7.0 |",
        "| `data.mixup_probability` 0.5, 12,288 updates | 83.4 / 7.0 (validation images) | 83.4 / 7.0 (validation "
        "images) |",
    ]


def test_the_command_of_the_small_ablation_gives_the_settings_of_its_table() -> None:
    page = (ROOT / "docs/explanation/improvements.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^python -m experiments (ablation --preset .*)$", page, re.MULTILINE)
    options = build_parser().parse_args(shlex.split(line))
    assert preset(options.preset, changes(options)) == preset("best", SMALL)
    assert options.datasets == ["blood"]
