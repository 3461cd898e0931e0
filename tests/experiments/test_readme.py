import json
import math
from pathlib import Path
from statistics import fmean

import pytest

from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.errors import DataError
from experiments import parts
from experiments.grid import PAPER_METHODS, PSEUDO_LABELS, UNSEEN_SEEDS, cells, found
from experiments.photos import LAST_BLOCK, PROBES, recorded
from experiments.readme import TABLES, between, comparison, fill, photographs
from experiments.results_store import Record, load
from experiments.table import Entries, measured
from tests.helpers import ROOT

RECORDS = load(ROOT / "results")


def record(seed: int, method: str, accuracy: float) -> Record:
    return {
        "data": {"name": "x", "fingerprint": "f"},
        "settings": Settings().changed(seed=seed, method=method, pseudo_labels="none").to_dict(),
        "environment": {"gpu": None, "threads": 2, "torch": "2.0"},
        "result": {"metrics": {"accuracy": accuracy, "f_score": 0.5, "ece": 0.1}, "seconds": 7.0},
    }


def test_what_was_not_measured_is_said_so() -> None:
    table = comparison(
        [record(0, "ebpl", 0.9), record(0, "curriculum-labeling", 0.8), record(1, "ebpl", 0.7)], "x", "none"
    )
    assert "| 0 | 80.0 | 50.0 | 10.0 | 90.0 | 50.0 | 10.0 |" in table
    assert "| 1 | not measured | not measured | not measured | 70.0 | 50.0 | 10.0 |" in table
    assert "2 CPU threads; PyTorch 2.0" in table


def test_the_time_of_runs_that_shared_a_gpu_is_said_to_be_shared() -> None:
    shared = record(1, "ebpl", 0.7)
    shared["environment"]["runs_together"] = 5
    table = comparison([record(0, "ebpl", 0.9), shared], "x", "none")
    assert "EBPL 7 to 7 s of training, EBPL 7 to 7 s of training with up to 5 runs together on one GPU" in table


def test_runs_with_other_settings_are_not_mixed_into_a_table() -> None:
    other = record(1, "ebpl", 0.7)
    other["settings"]["model.width"] = 8
    with pytest.raises(DataError, match=r"differ in model\.width, seed"):
        comparison([record(0, "ebpl", 0.9), other], "x", "none")
    with pytest.raises(DataError, match="may not mix"):
        comparison([record(0, "ebpl", 0.9), record(0, "ebpl", 0.8)], "x", "none")


def test_a_record_from_before_a_setting_existed_is_not_taken_for_another_experiment() -> None:
    older = record(1, "ebpl", 0.7)
    del older["settings"]["model.backbone"]
    assert "| 1 | not measured" in comparison([record(0, "ebpl", 0.9), older], "x", "none")


def test_a_method_that_is_not_the_papers_does_not_break_the_comparison() -> None:
    others = record(0, "ebpl-without-energy", 0.7)
    others["settings"]["optim.epochs"] = 3
    both = [record(0, "ebpl", 0.9), record(0, "curriculum-labeling", 0.8)]
    assert comparison([*both, others], "x", "none") == comparison(both, "x", "none")


def test_runs_that_recovered_are_counted_below_the_table() -> None:
    healed = record(0, "ebpl", 0.9)
    healed["result"]["healed_divergences"] = [{"epoch": 1}]
    assert "1 run recovered from divergence; 2 CPU threads" in comparison([healed], "x", "none")


def test_the_digits_are_those_of_the_preset_as_it_is_now() -> None:
    def of(**changes: object) -> Record:
        settings = preset("quick").changed(pseudo_labels="hard", **changes).to_dict()
        return {**record(0, "ebpl", 0.9), "data": {"name": "digits", "fingerprint": "f"}, "settings": settings}

    older = of(curriculum__selection="all")
    assert TABLES["digits"]([older]) == "Not measured yet."
    assert "| 0 | not measured" in TABLES["digits"]([older, of()])


def test_only_the_tables_are_replaced() -> None:
    text = "before <!-- results: digits -->old<!-- end: digits --> after"
    filled = fill(text, [])
    assert filled.startswith("before <!-- results: digits -->\n")
    assert filled.endswith("<!-- end: digits --> after")
    assert "old" not in filled


def test_the_readme_shows_what_the_records_hold() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- results: best -->" in text
    assert text == fill(text, RECORDS), "run: make readme"


def test_photographs_are_shown_beside_the_most_accurate_probe() -> None:
    def of(accuracy: float) -> dict[str, float]:
        return {"accuracy": accuracy, "ece": 0.05}

    for seed, accuracy in ((3, 0.6), (4, 0.8)):
        ways = {"logistic regression": of(0.5), "self-training": of(accuracy), "EBPL on features": of(0.9)}
        Path("photos").mkdir(exist_ok=True)
        for few in (5, 10):
            found = {"data": {"name": "cats"}, "labels_per_class": few, "methods": ways}
            Path(f"photos/cats-{few}-seed{seed}.json").write_text(json.dumps(found))
    (row,) = photographs(Path("photos")).splitlines()[2:]
    assert row.split(" | ")[1:] == [
        "2",
        "50.0 ± 0.0 / 5.0 ± 0.0",
        "70.0 ± 14.1 / 5.0 ± 0.0 (self-training)",
        "90.0 ± 0.0 / 5.0 ± 0.0",
        "not measured",
        "not measured |",
    ]
    for seed, way in ((3, "EBPL on features"), (4, LAST_BLOCK)):
        path = Path(f"photos/cats-10-seed{seed}.json")
        record = json.loads(path.read_text())
        record |= {"methods": {**record["methods"], LAST_BLOCK: of(0.8)}, "recommended": {"way": way}}
        path.write_text(json.dumps(record))
    (row,) = photographs(Path("photos")).splitlines()[2:]
    assert row.split(" | ")[5:] == ["80.0 ± 0.0 / 5.0 ± 0.0", "85.0 ± 7.1 / 5.0 ± 0.0 (last block in 1 of 2) |"]


def test_what_the_readme_says_of_photographs_is_so_in_the_records() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "the most accurate one is within two points everywhere, practically level with EBPL on" in text
    found = recorded(ROOT / "results/photos")
    for data in ("intel", "pacs", "pbc", "trashnet"):
        mean = {way: fmean(each["accuracy"] for each in found[data, 10, way]) for way in (*PROBES, "EBPL on features")}
        above = mean["EBPL on features"] - max(mean[way] for way in PROBES)
        assert -0.02 < above < 0 if data == "pacs" else 0 < above < 0.02


def test_what_pages_say_of_the_parts_of_best_is_so_in_the_records() -> None:
    made = parts.measured(cells("parts", None, UNSEEN_SEEDS, preset("best")), RECORDS)

    def changes(part: str, metric: str, *data: str) -> list[float]:
        """What adding a part changes in each training."""
        one, other = parts.PAIRS[part]
        each = [kinds for name, kinds in made.items() if not data or name in data]
        return [
            kinds[one][seed]["result"]["last"]["metrics"][metric]
            - kinds[other][seed]["result"]["last"]["metrics"][metric]
            for kinds in each
            for seed in kinds.get(one, {}).keys() & kinds.get(other, {}).keys()
        ]

    readme, page = ((ROOT / path).read_text() for path in ("README.md", "docs/explanation/improvements.md"))
    for words, part in (("With", "energies, with pseudo-labels"), ("without", "energies, without pseudo-labels")):
        lower = {metric: [change < 0 for change in changes(part, metric)] for metric in ("nll", "ece")}
        counted = f"in {sum(lower['nll'])} of {len(lower['nll'])} trainings and the ECE in {sum(lower['ece'])}"
        assert f"the negative log-likelihood {counted}" in page
        assert words != "With" or f"With pseudo-labels, energies lower the negative log-likelihood {counted}" in readme
        assert abs(fmean(changes(part, "accuracy"))) < 0.01
    assert min(fmean(changes("pseudo-labels, with energies", "accuracy", name)) for name in made) > 0
    assert min(changes("pseudo-labels, with energies", "ece", "fashion", "cifar10")) > 0
    assert abs(fmean(changes("energies, with pseudo-labels", "accuracy", "cifar10"))) < 0.001
    assert not changes("energies, with pseudo-labels", "ece", "svhn"), "the pages say that it was not measured"


def test_what_the_readme_says_of_the_baseline_is_so_in_the_records() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "at a higher accuracy, on Blood-MNIST over five seeds and on Fashion-MNIST and CIFAR-10 over three" in text
    assert "On SVHN the baseline was more accurate, and with pseudo-labels better calibrated too" in text
    chosen = cells("table1", ["blood", "fashion", "cifar10", "svhn"], UNSEEN_SEEDS, preset("standard"))
    for which in ("chosen", "last"):
        entries = measured(chosen, RECORDS, which)

        def better(metric: str, kind: str, data: str, entries: Entries = entries) -> str:
            """The method that is better in a metric."""
            own = {method: entries[metric, method, kind, data] for method in PAPER_METHODS}
            assert min(entry.seeds for entry in own.values()) >= (5 if data == "blood" else 3)
            return (min if metric == "ece" else max)(own, key=lambda method: own[method].mean or math.nan)

        for kind in PSEUDO_LABELS:
            for data in ("blood", "fashion", "cifar10"):
                assert better("accuracy", kind, data) == better("ece", kind, data) == "ebpl"
            assert better("accuracy", kind, "svhn") == "curriculum-labeling"
            assert better("ece", kind, "svhn") == ("ebpl" if kind == "none" else "curriculum-labeling")


def test_the_baselines_weights_chosen_by_validation_labels_are_those_before_pseudo_labels() -> None:
    chosen = cells("table1", ["blood", "fashion"], UNSEEN_SEEDS, preset("standard"), ["curriculum-labeling"])
    records = {(each.data, each.settings.seed, each.settings.curriculum.pseudo_labels): record
               for each, record in found(chosen, RECORDS)}  # fmt: skip
    for (data, seed, kind), stored in records.items():
        if kind != "none":
            assert stored["result"]["metrics"]["accuracy"] > stored["result"]["last"]["metrics"]["accuracy"]
            assert stored["result"]["metrics"] == records[data, seed, "hard"]["result"]["metrics"]


def test_every_table_is_made_of_the_records() -> None:
    for name, make in TABLES.items():
        made = make(RECORDS)
        assert made in ("", "Not measured yet.") or made.count("\n") > 2, name
    assert "runs together on one GPU" in TABLES["table1"](RECORDS)


def test_the_comment_to_fill_must_be_there() -> None:
    with pytest.raises(DataError, match=r"There is no a \.\.\. b"):
        between("nothing", "a", "b", "made")
