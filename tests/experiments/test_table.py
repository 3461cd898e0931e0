import csv
import io

import pytest

from ebpl.config.presets import preset
from ebpl.errors import UsageError
from experiments.grid import Cell, cells
from experiments.results_store import Record
from experiments.table import (
    NOT_MEASURED,
    PAPER_METRICS,
    Entries,
    Entry,
    against_the_paper,
    as_csv,
    distances,
    latex,
    markdown,
    measured,
    paper,
    rows,
    summary,
    title_of,
)

SETTINGS = preset("quick")


def record(cell: Cell, accuracy: float, ece: float) -> Record:
    metrics = {"accuracy": accuracy, "f_score": 0.5, "ece": ece}
    result = {"metrics": metrics, "last": {"metrics": {**metrics, "ece": ece / 2}}}
    return {"data": {"name": cell.data, "fingerprint": "x"}, "settings": cell.settings.to_dict(), "result": result}


CELLS = cells("table1", ["blood", "svhn"], [0, 1, 2], SETTINGS)
SOFT = [cell for cell in CELLS if (cell.data, cell.settings.curriculum.pseudo_labels) == ("blood", "soft")]
RECORDS = [record(cell, 0.6 + 0.1 * i, 0.4 - 0.1 * i) for i, cell in enumerate(SOFT)]


def test_the_papers_table_is_whole() -> None:
    assert len(paper()) == 3 * 2 * 3 * 7
    assert paper()["ece", "ebpl", "soft", "blood"] == Entry(9.846, 3.043, 5)


def test_ours_are_means_over_seeds() -> None:
    entries = measured(CELLS, RECORDS)
    ours = entries["accuracy", SOFT[0].settings.method, "soft", "blood"]
    assert ours.mean is not None
    assert (round(ours.mean, 6), round(ours.deviation, 3), ours.seeds) == (70.0, 10.0, 3)
    last = measured(CELLS, RECORDS, "last")["ece", SOFT[0].settings.method, "soft", "blood"]
    assert round(last.mean or 0, 6) == 15.0


def test_the_best_stands_out_and_the_missing_is_said_so() -> None:
    text = markdown(rows(["blood", "svhn"], measured(CELLS, RECORDS)))
    lines = {tuple(line.split(" | ")[:3]): line for line in text.splitlines()}
    best = lines["| accuracy %", "baseline" if SOFT[-1].settings.method != "ebpl" else "EBPL", "soft"]
    assert "**100.0 ± 10.0**, n = 3 (" in best
    assert "not measured (" in lines["| accuracy %", "EBPL", "none"]
    assert text.count("**") == 2 * 3 + 2  # one for each metric, and the two F-scores are equal


def test_latex_and_csv_hold_the_same() -> None:
    entries = measured(CELLS, RECORDS)
    assert r"\textbf{100.0 $\pm$ 10.0}" in latex(rows(["blood"], entries, (r"\textbf{", "}")))
    table = list(csv.DictReader(io.StringIO(as_csv(["blood"], entries))))
    assert len(table) == 3 * 2 * 3
    found = {(row["metric"], row["method"], row["pseudo_labels"]): row for row in table}
    assert float(found["accuracy", "ebpl", "soft"]["paper_mean"]) == 80.93
    assert found["accuracy", "ebpl", "none"]["mean"] == ""


def test_the_distance_is_ours_minus_the_papers() -> None:
    lines = distances(["blood", "organa-sample"], {("ece", "ebpl", "soft", "blood"): Entry(7.0, 1.0, 3)})
    found = {tuple(line[:3]): line[3:] for line in lines}
    assert found["ECE %", "EBPL", "soft"] == ["-2.8", "not in the paper"]
    assert found["ECE %", "EBPL", "none"] == ["not measured", "not in the paper"]


BASELINE = "80.0 ± 0.0 / 79.0 ± 0.0 / 9.0 ± 0.0"
AHEAD = (BASELINE, "**81.0 ± 0.0 / 80.0 ± 0.0 / 8.0 ± 0.0**")


def test_the_summary_marks_where_ebpl_is_better_in_all_three() -> None:
    def entries(method: str, kind: str, values: tuple[float, float, float], seeds: int = 3) -> Entries:
        return {
            (metric, method, kind, "blood"): Entry(value, 0.0, seeds)
            for metric, value in zip(("accuracy", "f_score", "ece"), values, strict=True)
        }

    better = entries("curriculum-labeling", "soft", (80, 79, 9)) | entries("ebpl", "soft", (81, 80, 8))
    worse = entries("curriculum-labeling", "hard", (80, 79, 9)) | entries("ebpl", "hard", (81, 80, 10))
    lines = summary(["blood", "svhn"], better | worse, entries("ebpl", "soft", (1, 2, 3)))
    found = {tuple(line[:2]): line[2:] for line in lines}
    assert found["blood", "soft"][:4] == ["3", *AHEAD, "1.0 ± 0.0 / 2.0 ± 0.0 / 3.0 ± 0.0"]
    assert found["blood", "hard"][:3] == ["3", BASELINE, "81.0 ± 0.0 / 80.0 ± 0.0 / 10.0 ± 0.0"]
    assert found["blood", "none"][:4] == ["0", *["not measured"] * 3]
    assert found["blood", "soft"][4].startswith("78.5 ± 1.4 / 75.0 ± 1.5")
    assert ("svhn", "none") not in found
    assert found["svhn", "soft"][:4] == ["0", *["not measured"] * 3]


def test_nothing_is_best_below_three_seeds() -> None:
    few = [record for record in RECORDS if record["settings"]["seed"] < 2]
    assert "**" not in markdown(rows(["blood", "svhn"], measured(CELLS, few)))
    key = ("ece", "ebpl", "soft", "blood")
    others = {("ece", "ebpl", "none", "blood"): Entry(9.0, 1.0, 3)}
    table = rows(["blood"], {key: Entry(7.0, 1.0, 2), **others})
    assert "**" not in markdown(table)  # nor is the second best
    assert "**9.0 ± 1.0**" in markdown(rows(["blood"], others))
    triple = {(metric, method, "soft", "blood"): value for metric in PAPER_METRICS for method, value in (
        ("ebpl", Entry(9.0 - 2 * (metric == "ece"), 0.0, 2)), ("curriculum-labeling", Entry(8.0, 0.0, 3)))}  # fmt: skip
    assert "**" not in markdown(summary(["blood"], triple, {}))
    counts = {line[1]: line[2] for line in summary(["blood"], triple, {})}
    assert counts == {"pseudo-labels": "n", "none": "0", "hard": "0", "soft": "baseline 3, EBPL 2"}


def test_a_run_that_recovered_is_told_wherever_it_counts() -> None:
    healed = [{**each, "result": {**each["result"], "healed_divergences": [{"epoch": 2}]}} for each in RECORDS[:1]]
    entries, last = (measured(CELLS, [*healed, *RECORDS[1:]], which) for which in ("chosen", "last"))
    method = "EBPL" if SOFT[0].settings.method == "ebpl" else "baseline"
    lines = {tuple(line[:3]): line[3] for line in rows(["blood"], entries)}
    assert ", n = 3, 1 recovered (" in lines["accuracy %", method, "soft"]
    found = {tuple(line[:2]): line[2] for line in summary(["blood"], entries, last)}
    assert found["blood", "soft"] == "3, 1 recovered"
    soft = {key: value for key, value in last.items() if key[1] == SOFT[0].settings.method}
    own = {(metric, "ebpl", kind, data): value for (metric, _, kind, data), value in soft.items()}
    assert against_the_paper(["blood"], own)[1][1] == "3, 1 recovered"
    table = list(csv.DictReader(io.StringIO(as_csv(["blood"], entries))))
    assert {row["recovered"] for row in table if row["pseudo_labels"] == "soft"} == {"0", "1"}


def test_a_metric_that_some_records_lack_is_a_dash() -> None:
    entries = measured(CELLS, RECORDS)
    method = SOFT[0].settings.method
    assert str(entries["nll", method, "soft", "blood"]) == "–"
    assert title_of("nll") == "negative log-likelihood"
    lines = rows(["blood"], entries, metrics=["accuracy", "nll"])
    assert ["negative log-likelihood", "EBPL", "soft", "–, n = 3"] in lines
    whole = [{**each, "result": {"metrics": {"accuracy": 0.5, "nll": 0.25}}} for each in RECORDS]
    assert str(measured(CELLS, whole)["nll", method, "soft", "blood"]) == "0.250 ± 0.000"
    mixed = measured(CELLS, [*whole[:1], *RECORDS[1:]])
    assert str(mixed["nll", method, "soft", "blood"]) == "–"
    cell = next(
        row for row in csv.DictReader(io.StringIO(as_csv(["blood"], entries, metrics=["nll"]))) if row["seeds"] == "3"
    )
    assert (cell["mean"], cell["std"]) == ("", "")
    with pytest.raises(UsageError, match="Did you mean nll"):
        title_of("nnll")


def test_the_papers_best_may_come_from_any_of_its_forms_but_from_its_ebpl_alone() -> None:
    heads, line = against_the_paper(["cifar10"], {})
    assert dict(zip(heads, line, strict=True)) == {
        "data": "cifar10",
        "n": "0",
        **dict.fromkeys(map(title_of, PAPER_METRICS), NOT_MEASURED),
        "paper's best accuracy %": "53.9",  # hard
        "paper's best F-score %": "53.0",  # soft
        "paper's best ECE %": "15.2",  # none
    }
    own = {(metric, "ebpl", "soft", "cifar10"): Entry(60.0, 1.0, 3) for metric in PAPER_METRICS}
    assert against_the_paper(["cifar10"], own)[1][1:5] == ["3", *["60.0 ± 1.0"] * 3]
    assert against_the_paper(["digits"], {})[1] == ["digits", "0", *[NOT_MEASURED] * 3, *["not in the paper"] * 3]
