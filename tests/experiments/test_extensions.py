"""A method and a metric that are registered from outside go all the way into the tables, and away again."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from torch.nn import functional as F

from ebpl import methods
from ebpl.config.presets import preset
from ebpl.methods import Method, register
from ebpl.metrics import METRICS, Metric, register_metric
from ebpl.models import HybridModel
from ebpl.training.losses import CrossEntropy, Loss, Outputs, Views
from experiments.__main__ import main
from experiments.figures import FIGURES
from experiments.grid import PAPER_METHODS, Cell, cells, found
from experiments.output import write
from experiments.readme import TABLES
from experiments.results_store import Record, load
from tests.experiments.test_main import TINY

COMMAND = ("table1", "--datasets", "digits", "--seeds", "0", *TINY)


class SmoothedCrossEntropy(CrossEntropy):
    """Cross-entropy with label smoothing."""

    def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
        assert views.targets is not None
        value = F.cross_entropy(outputs[0].scores, views.targets, label_smoothing=0.1)
        return Loss(value, {"cross_entropy": value})


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A toy method and a toy metric, for as long as a test."""
    with monkeypatch.context() as patch:
        patch.setattr(methods, "_registered", {})
        patch.setitem(METRICS, "error_rate", METRICS["accuracy"])
        register("smoothed", Method("smoothed", "label smoothing", lambda settings: [SmoothedCrossEntropy()]))
        register_metric(
            Metric(
                "error_rate", "errors", lambda p, labels: float((p.argmax(1) != labels).mean()), lower_is_better=True
            )
        )
        yield


def page_of(*arguments: str) -> str:
    assert main([*COMMAND, *arguments]) == 0
    return Path("reproduced/table1.md").read_text()


def test_both_are_gone_after_a_test() -> None:
    assert "smoothed" not in methods.method_names()
    assert "error_rate" not in METRICS


def test_a_new_method_and_a_new_metric_come_into_table_1(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--methods", "curriculum-labeling"]) == 0  # records from before the metric
    assert "error_rate" not in load(Path("results"))[0]["result"]["metrics"]
    request.getfixturevalue("extended")
    capsys.readouterr()
    page = page_of("--methods", "smoothed", "--metrics", "accuracy,error_rate")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    chosen = {tuple(line[:3]): line[3] for line in lines[:20]}
    assert chosen["errors %", "baseline", "soft"] == "–, n = 1"
    assert chosen["errors %", "EBPL", "soft"] == "not measured"
    right, wrong = (chosen[metric, "smoothed", "soft"].split(",")[0] for metric in ("accuracy %", "errors %"))
    assert float(right) + float(wrong) == pytest.approx(100, abs=0.11)
    assert "| accuracy % | smoothed | soft | not in the paper |" in page
    with Path("reproduced/table1-last.csv").open() as file:
        numbers = {(row["metric"], row["method"], row["pseudo_labels"]): row for row in csv.DictReader(file)}
    assert numbers["error_rate", "smoothed", "hard"]["seeds"] == "1"
    assert numbers["error_rate", "curriculum-labeling", "hard"]["mean"] == ""
    assert Path("reproduced/table1-reliability-digits.png").stat().st_size > 10_000
    assert "smoothed" in capsys.readouterr().out
    # its records are enough to be shown, without being asked for
    assert page_of("--plots-only").count("| smoothed |") == 2 * 9 + 9 + 2
    assert all(record["result"]["metrics"]["error_rate"] is not None for record in smoothed())


def smoothed() -> list[Record]:
    return [record for record in load(Path("results")) if record["settings"]["method"] == "smoothed"]


def test_records_of_a_method_that_is_not_registered_are_not_in_the_way(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("extended")
    made = cells("table1", ["digits"], [0], preset("quick"), ["smoothed"])
    records = [fake(cell) for cell in made]
    methods._registered.clear()
    assert found(cells("table1", ["digits"], [0], preset("quick")), records) == []
    paths = write(Path("out"), "table1", cells("table1", ["digits"], [0], preset("quick")), records, preset("quick"))
    assert "smoothed" not in paths[0].read_text()


def fake(cell: Cell) -> Record:
    bins = [{"above": 0.0, "up_to": 1.0, "images": 10, "accuracy": 0.5, "confidence": 0.6}]
    result = {
        "metrics": {"accuracy": 0.5, "f_score": 0.5, "ece": 0.1},
        "last": {"metrics": {"accuracy": 0.5, "f_score": 0.5, "ece": 0.1}},
        "reliability": bins,
        "pseudo_labels": [{"step": 1, "images": 5, "accuracy": 0.5}],
        "seconds": 1.0,
    }
    environment = {"gpu": None, "threads": 1, "torch": "2", "commit": "abc"}
    settings = cell.settings.to_dict()
    return {"data": {"name": cell.data}, "settings": settings, "environment": environment, "result": result}


@pytest.mark.usefixtures("extended")
def test_every_figure_and_table_takes_a_third_method() -> None:
    for experiment in ("table1", "labels"):
        made = cells(experiment, ["digits"], [0, 1], preset("quick"), [*PAPER_METHODS, "smoothed"])
        written = write(Path("out"), experiment, made, [fake(cell) for cell in made], preset("quick"))
        figures = {path.name for path in written if path.suffix == ".png"}
        without_images = {"table1": ("reliability", "pseudo-labels"), "labels": ("labels",)}[experiment]
        assert figures == {f"{experiment}-{name}-digits.png" for name in without_images}
        assert set(without_images) <= FIGURES[experiment].keys()
    standard = cells("table1", ["blood"], range(5), preset("standard"), [*PAPER_METHODS, "smoothed"])
    shown = TABLES["table1"]([fake(cell) for cell in standard])
    assert "| EBPL, no validation labels | smoothed | paper's baseline |" in shown
    assert "smoothed 1 to 1 s of training" in shown


@pytest.mark.usefixtures("extended")
def test_a_method_without_pseudo_labels_has_one_form() -> None:
    register("supervised", Method("supervised", "labels only", lambda _: [CrossEntropy()], pseudo_labels=False))
    made = cells("table1", ["digits"], [0], preset("quick"), ["supervised"])
    assert [cell.settings.curriculum.pseudo_labels for cell in made] == ["none"]
    (path, *_) = write(Path("out"), "table1", made, [fake(cell) for cell in made], preset("quick"))
    assert path.read_text().count("| supervised |") == 9
