import re
import shlex
from pathlib import Path
from statistics import fmean

from docs.tools import results
from docs.tools.results import _reported
from ebpl.cli.options import changes
from ebpl.config.presets import PRESETS, preset
from ebpl.io import write_json
from experiments.__main__ import build_parser
from experiments.ablation import SMALL
from experiments.grid import UNSEEN_SEEDS, cells, found
from experiments.output import tables
from experiments.results_store import load

ROOT = Path(__file__).parents[3]


def test_the_tables_hold_what_the_repository_shows_elsewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    whole = tables(_reported(ROOT), load(ROOT / "results"))["table1.md"]
    assert results.table(ROOT, "best") in readme
    assert results.stopping_points(ROOT) in whole


def test_the_table_of_digits_has_five_seeds_and_says_what_it_ran_on() -> None:
    lines = results.table(ROOT, "digits").splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:7]] == ["0", "1", "2", "3", "4"]
    assert "1 CPU thread;" in lines[-1]


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


def test_what_the_page_says_of_stopping_points_is_so_in_the_records() -> None:
    """In percentage points, as its table shows them."""
    page = (ROOT / "docs/explanation/results.md").read_text(encoding="utf-8")
    assert "soft pseudo-labels the last weights are close to the chosen ones" in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in results.stopping_points(ROOT).splitlines()]
    assert rows[0][4] == "best validation accuracy"
    assert [rows[0][6], rows[0][-1]] == ["end of step 1", "end of step 4"]
    for data, method, kind, _, *numbers in rows[2:]:
        chosen, _, first, *_, last = ([float(number) for number in cell.split(" / ")] for cell in numbers)
        lost = chosen[0] - last[0]
        if method == "baseline":
            assert lost > 5 if data in ("blood", "fashion") else lost < 1.3
        else:
            assert lost < (1 if kind == "soft" else 2.3)
            if data in ("blood", "fashion"):
                assert first[1] < last[1]
                assert first[0] >= last[0] - 0.25
            elif data == "svhn":
                assert first[0] < last[0] - 2
            elif kind == "soft":
                assert first[0] < last[0]
                assert first[1] > last[1]


def test_what_pages_say_of_pseudo_labels_and_calibration_is_so_in_the_records() -> None:
    calibration = (ROOT / "docs/explanation/calibration.md").read_text(encoding="utf-8")
    assert "on SVHN it is soft ones that raise it" in calibration
    assert "soft ones lower the ECE on Blood-MNIST and Fashion-MNIST instead" in calibration
    presets = (ROOT / "docs/how-to/presets.md").read_text(encoding="utf-8")
    assert "with them on Blood-MNIST, Fashion-MNIST and CIFAR-10, but not on SVHN" in presets
    data = ("blood", "fashion", "cifar10", "svhn")
    trained = found(cells("table1", data, UNSEEN_SEEDS, preset("standard"), ["ebpl"]), load(ROOT / "results"))
    runs = {(cell.data, cell.settings.seed, cell.settings.curriculum.pseudo_labels): record["result"]
            for cell, record in trained}  # fmt: skip

    def ece(name: str, kind: str, last: bool) -> float:
        """Over the seeds that were trained with pseudo-labels."""
        own = [result for (each, seed, of), result in runs.items()
               if (each, of) == (name, kind) and (name, seed, "soft") in runs]  # fmt: skip
        return fmean((result["last"] if last else result)["metrics"]["ece"] for result in own)

    for name in data:
        none, hard, soft = (ece(name, kind, last=True) for kind in ("none", "hard", "soft"))
        assert soft > none > hard if name == "svhn" else hard > max(none, soft)
        none, hard, soft = (ece(name, kind, last=False) for kind in ("none", "hard", "soft"))
        assert soft > hard if name == "svhn" else soft < hard
        assert name not in ("blood", "fashion") or soft < min(none, hard)
