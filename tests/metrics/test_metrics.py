import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss, roc_auc_score

import ebpl
from ebpl.calibration import apply_temperature
from ebpl.metrics import (
    METRICS,
    Metric,
    as_number,
    by_bin,
    confidence_direction,
    in_words,
    measure,
    register_metric,
    spread,
)
from ebpl.reporting.sections import measures
from ebpl.runs import Run
from ebpl.runs.reader import TEST_METRICS, WEIGHTS
from ebpl.terminal import measures_table, seeds_table
from tests.helpers import blobs
from tests.metrics.test_calibration import adaptive_ece_by_hand, ece_by_the_papers_formula, random_predictions


def test_images_without_a_label_are_left_out() -> None:
    probabilities, labels = random_predictions(0, 50, 4, 2.0)
    hidden = np.where(np.arange(50) < 20, -1, labels)
    assert measure(probabilities, hidden) == measure(probabilities[20:], labels[20:])
    assert measure(probabilities, hidden)["images"] == 30
    assert sum(row["images"] for row in by_bin(probabilities, hidden)) == 30


def test_every_measure_has_a_name_and_words() -> None:
    measured = measure(*random_predictions(1, 30, 3, 1.0))
    assert measured.keys() == METRICS.keys()
    assert all(in_words(name, value) for name, value in measured.items())


def test_the_direction_of_a_wrong_confidence_is_said() -> None:
    assert in_words("overconfidence", 0.123, "over") == "+12.3 % (over)"
    assert in_words("overconfidence", -0.05, "under") == "-5.0 % (under)"
    assert in_words("overconfidence", 0.123) == "+12.3 %"


def test_a_wrong_confidence_is_called_so_only_where_chance_does_not_explain_it() -> None:
    few = [{"above": 0.6, "up_to": 0.8, "images": 20, "confidence": 0.7, "accuracy": 0.6}]
    many = [{**few[0], "images": 2000}]
    assert [confidence_direction(gap, few) for gap in (0.1, -0.1, 0.3)] == ["neither", "neither", "over"]
    assert [confidence_direction(gap, many) for gap in (0.1, -0.1, 0.01)] == ["over", "under", "neither"]
    empty = {"above": 0.0, "up_to": 0.6, "images": 0, "confidence": None, "accuracy": None}
    assert confidence_direction(0.1, [*many, empty]) == "over"
    assert confidence_direction(None, many) is None
    assert confidence_direction(0.1, []) is None
    assert confidence_direction(0.1, None) is None


def test_the_terminal_and_the_report_agree_on_the_direction() -> None:
    random = np.random.default_rng(3)
    for count, shift in ((25, 0.0), (25, 0.3), (4000, 0.3), (4000, -0.3)):
        probabilities = random.dirichlet(np.ones(3), count)
        shifted = apply_temperature(probabilities, 1 + shift)
        labels = np.array([random.choice(3, p=row) for row in shifted])
        bins, metrics = by_bin(probabilities, labels), measure(probabilities, labels)
        word = measures(probabilities, labels, "test images")["direction"].removesuffix("-confident")
        word = "within chance" if word == "neither" else word
        assert f"({word})" in str(printed(measures_table("title", {"ebpl": metrics}, bins={"ebpl": bins})))


def test_balanced_accuracy_and_auroc_count_only_classes_that_occur() -> None:
    probabilities, labels = random_predictions(5, 200, 4, 1.5)
    labels = np.where(labels == 3, 0, labels)  # class 3 does not occur
    found = measure(probabilities, labels)
    recalls = [(probabilities.argmax(1) == c)[labels == c].mean() for c in range(3)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in range(3)]
    assert found["auroc"] == pytest.approx(np.mean(areas))
    tied = np.round(probabilities, 1)
    assert measure(tied, labels)["auroc"] == pytest.approx(
        np.mean([roc_auc_score(labels == c, tied[:, c]) for c in range(3)])
    )
    assert np.isnan(measure(probabilities, np.zeros(200, int))["auroc"])


def test_every_metric_is_what_its_name_says() -> None:
    probabilities, labels = random_predictions(4, 300, 4, 1.5)
    answers, said = probabilities.argmax(1), probabilities.max(1)
    of_classes = []
    for c in range(4):
        two = np.stack([probabilities[:, c], np.full(300, -1.0)], 1)  # the first answer is always the one given
        of_classes.append(ece_by_the_papers_formula(two, np.where(labels == c, 0, 1), 15))
    order = np.argsort(-said)
    wrong = (answers != labels)[order]
    expected = {
        "images": 300,
        "accuracy": accuracy_score(labels, answers),
        "balanced_accuracy": balanced_accuracy_score(labels, answers),
        "f_score": f1_score(labels, answers, average="macro"),
        "auroc": roc_auc_score(labels, probabilities, multi_class="ovr", average="macro"),
        "ece": ece_by_the_papers_formula(probabilities, labels, 15),
        "ece_10_bins": ece_by_the_papers_formula(probabilities, labels, 10),
        "adaptive_ece": adaptive_ece_by_hand(probabilities, labels, 15),
        "classwise_ece": np.mean(of_classes),
        "overconfidence": said.mean() - accuracy_score(labels, answers),
        "nll": log_loss(labels, probabilities),
        "brier": np.mean(
            [np.sum((row - np.eye(4)[label]) ** 2) for row, label in zip(probabilities, labels, strict=True)]
        ),
        "aurc": np.mean([wrong[:k].mean() for k in range(1, 301)]),
    }
    measured = measure(probabilities, labels)
    assert measured.keys() == expected.keys()
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, abs=1e-9), name
        assert value != 0, "a metric that is always zero would pass"


def test_units_and_directions_are_those_of_each_metric() -> None:
    assert as_number("accuracy", 0.912, 0.004) == ("accuracy %", ["91.2", "0.4"])
    assert as_number("nll", 0.3456) == ("negative log-likelihood", ["0.346"])
    assert as_number("images", 300.0) == ("labelled images", ["300"])
    assert [in_words(name, 0.25) for name in ("ece", "brier", "images")] == ["25.0 %", "0.250", "0"]
    better = {name for name, metric in METRICS.items() if metric.lower_is_better}
    assert better == {"ece", "ece_10_bins", "adaptive_ece", "classwise_ece", "nll", "brier", "aurc"}


def test_the_spread_is_that_of_a_sample_and_leaves_out_what_one_result_lacks() -> None:
    values = [0.5, 0.75, 0.6]
    results: list[dict[str, float | None]] = [
        {"accuracy": value, "ece": value if value > 0.5 else None} for value in values
    ]
    assert spread(results) == {"accuracy": pytest.approx((np.mean(values), np.std(values, ddof=1)))}
    assert spread([{"accuracy": 0.5}]) == {"accuracy": (0.5, 0.0)}


TOY = Metric(
    "answer_entropy",
    "mean entropy of the answers",
    lambda probabilities, _: float(entropy(probabilities, axis=1).mean()),
    percent=False,
    lower_is_better=True,
)


@pytest.fixture
def old(trained: Run) -> Run:
    """A run that was written before the metric was known."""
    return Run(shutil.copytree(trained.path, "old"))


@pytest.fixture
def _toy(old: Run) -> Iterator[None]:
    register_metric(TOY)
    yield
    del METRICS[TOY.name]


def printed(table: Any) -> list[list[str]]:
    """The cells of a table, row by row."""
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    return [[cell.strip() for cell in line.split("│")] for line in text.getvalue().splitlines()]


@pytest.mark.usefixtures("_toy")
def test_a_metric_that_is_registered_is_computed_stored_and_shown_everywhere() -> None:
    data = blobs()
    run = ebpl.train(data, ebpl.preset("quick", epochs=1, pseudo_labels="none"), run="new")
    assert data.test is not None
    rows = ebpl.predict(run, data.test.pixels)
    probabilities = np.array([[row[f"p({name})"] for name in data.classes] for row in rows], float)
    expected = float(-(probabilities * np.log(probabilities)).sum(1).mean())
    assert expected > 0
    assert ebpl.evaluate(run, data)[TOY.name] == pytest.approx(expected, rel=1e-4)
    assert run.metrics()["metrics"][TOY.name] == pytest.approx(expected, rel=1e-4)
    assert run.metrics()["last"]["metrics"][TOY.name] == pytest.approx(expected, rel=1e-4)
    shown = f"{expected:.3f}"
    assert ["", TOY.title, shown, ""] in printed(measures_table("title", {"ebpl": run.metrics()["metrics"]}))
    seeds = printed(seeds_table("title", {0: run.metrics()["metrics"]}))
    assert any(TOY.title in row[0] and shown in row[0] for row in seeds)
    page = ebpl.report(run, data=data).read_text()
    assert TOY.title in page
    assert shown in page


@pytest.mark.usefixtures("_toy")
def test_a_run_from_before_a_metric_lacks_it_and_shows_a_dash(old: Run) -> None:
    measured = old.metrics()["metrics"]
    assert measured[TOY.name] is None
    assert measured["accuracy"] is not None
    assert ["", TOY.title, "–", ""] in printed(measures_table("title", {"ebpl": measured}))
    assert not any(TOY.title in row[0] for row in printed(seeds_table("title", {0: measured})))
    (old.path / WEIGHTS).unlink()  # so that the page can only tell what was stored
    page = ebpl.report(old).read_text()
    assert TOY.title in page
    assert page.partition(TOY.title)[2].partition("</tr>")[0].count("–") == 1


def test_a_metric_that_nobody_knows_is_no_damage(old: Run) -> None:
    path = old.path / TEST_METRICS
    stored = json.loads(path.read_text())
    stored["metrics"]["of_tomorrow"] = "a riddle"
    path.write_text(json.dumps(stored))
    measured = Run(old.path).metrics()["metrics"]
    assert measured.keys() == METRICS.keys()
    assert len(printed(seeds_table("title", {0: measured}))) > len(METRICS)
    assert Path(ebpl.report(old, data=blobs())).is_file()
