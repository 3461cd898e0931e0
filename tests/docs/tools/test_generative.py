"""The tables about the preset `generative`, and what its page says of them."""

import re
from collections.abc import Callable
from statistics import fmean, stdev

import pytest

from docs.tools import generative
from docs.tools.hooks import ROOT
from ebpl.config.presets import preset
from experiments.results_store import Record, load, modern_record, name_of, without_details

PAGE = (ROOT / "docs/explanation/energy-penalty.md").read_text("utf-8")
RUNS = generative.samples(ROOT)


def lines(table: str) -> dict[str, list[str]]:
    """The cells of each line behind its first one."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows}


def means(measure: Callable[[Record], float]) -> dict[str, float]:
    return {data: fmean(map(measure, runs)) for data, runs in RUNS.items()}


def test_all_that_was_measured_of_samples_is_of_the_preset_and_of_a_run_with_a_record() -> None:
    there = sorted((ROOT / "results/samples").glob("*.json"))
    assert sum(map(len, RUNS.values())) == len(there) == 8
    assert {data: [each["run"]["settings"]["seed"] for each in runs] for data, runs in RUNS.items()} == {
        "blood": [3, 4, 5, 6, 7],
        "svhn": [3, 4, 5],
    }
    records = {name_of(record): record for record in load(ROOT / "results")}
    for each in (each for runs in RUNS.values() for each in runs):
        record = modern_record(each["run"])
        assert without_details(records[name_of(record)])["result"] == record["result"]


def test_what_was_measured_of_another_preset_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generative, "preset", lambda *_, **more: preset("best", **more))
    assert generative.samples.__wrapped__(ROOT) == {}


def test_the_table_of_the_classifier_holds_the_last_weights_of_the_records() -> None:
    table = generative.classifier(ROOT).replace("\N{NO-BREAK SPACE}", " ")
    for data, runs in RUNS.items():
        last = [each["run"]["result"]["last"]["metrics"] for each in runs]
        accuracy, ece = ([100 * each[name] for each in last] for name in ("accuracy", "ece"))
        nll = [each["nll"] for each in last]
        shown = [f"{fmean(values):.1f} ± {stdev(values):.1f}" for values in (accuracy, ece)]
        row = next(line for line in table.splitlines() if line.startswith(f"| {data} | `generative` |"))
        assert row.split(" | ")[3:6:2] == shown
        assert f"{fmean(nll):.3f} ± {stdev(nll):.3f}" in row
    assert "| blood | `best` | 3-7 |" in table
    assert "| blood | `standard` | 3-7 |" in table


def test_the_table_of_the_energy_model_holds_what_was_measured() -> None:
    table = lines(generative.energy_model(ROOT).replace("\N{NO-BREAK SPACE}", " "))
    assert table["measure"] == ["blood", "svhn"]
    blood = RUNS["blood"]
    gaps = [100 * each["energy"]["gap_in_training"] / each["energy"]["images"][1] for each in blood]
    assert table["energy gap in training, % of the spread"][0] == f"{fmean(gaps):.1f} ± {stdev(gaps):.1f}"
    noise = blood[0]["frechet"]["uniform_noise"]
    assert table["– of uniform noise"][0] == f"{noise:.1f}"  # the same for every run
    assert table["AUROC % of the energy on svhn"][1] == ""
    energies = [100 * each["unseen"]["cifar10"]["energy"] for each in RUNS["svhn"]]
    assert table["AUROC % of the energy on cifar10"][1] == f"{fmean(energies):.1f} ± {stdev(energies):.1f}"


def test_goals_are_said_to_be_reached_or_missed_by_the_records() -> None:
    table = {goal: cells for goal, cells in lines(generative.goals(ROOT)).items() if not set(goal) <= {"-"}}
    verdicts = {goal.split(" at ")[0]: [cell.split(":")[0] for cell in cells] for goal, cells in table.items()}
    assert verdicts == {
        "goal": ["blood", "svhn"],
        "Fréchet distance": ["reached", "reached"],
        "energy gap": ["missed", "missed"],
        "accuracy": ["reached", "no goal"],
        "ECE": ["reached", "no goal"],
        "AUROC of the energy": ["reached", "no goal"],
    }
    gaps = [generative.gap(each) for each in RUNS["blood"]]
    (shown,) = (cells[0] for goal, cells in table.items() if goal.startswith("energy gap"))
    assert shown == f"missed: {fmean(gaps):.1f} ({min(gaps):.1f} to {max(gaps):.1f})"


def test_what_the_page_says_of_gaps_is_so() -> None:
    gaps, after = means(generative.gap), means(generative.gap_to_test_images)
    assert generative.MOST_GAP < gaps["blood"] < 1.5 * generative.MOST_GAP  # by a little
    assert gaps["svhn"] > 3 * generative.MOST_GAP
    assert all(
        generative.gap(each) > 0 > generative.gap_to_test_images(each) for runs in RUNS.values() for each in runs
    )
    assert all(-after[data] > gaps[data] for data in gaps)


def test_what_the_page_says_of_distances_is_so() -> None:
    frechet = {data: runs[0]["frechet"] for data, runs in RUNS.items()}
    shares = {data: 100 * each["fitted_gaussian"] / each["uniform_noise"] for data, each in frechet.items()}
    assert shares["blood"] < generative.MOST_DISTANCE < shares["svhn"]
    assert all(each["frechet"]["training_images"] > each["frechet"]["samples"] for each in RUNS["svhn"])
    for each in (each for runs in RUNS.values() for each in runs):
        nearest = each["nearest_training_image"]
        assert nearest["samples"][0] >= nearest["test_images"][0]
        assert nearest["samples"][2] >= nearest["test_images"][2]


def test_what_the_page_says_of_outliers_is_so() -> None:
    for each in RUNS["blood"]:
        assert all(scores["energy"] > scores["confidence"] + 0.05 for scores in each["unseen"].values())
    for each in RUNS["svhn"]:
        assert {other for other, scores in each["unseen"].items() if scores["energy"] > scores["confidence"]} == {
            "fashion"
        }


def test_what_the_page_says_of_the_classifier_is_so() -> None:
    def of(data: str, name: str) -> list[float]:
        return [entry.mean or 0 for entry in generative._classifier(ROOT, data, name, "soft")[1] if entry]

    (blood, best_blood), (svhn, best_svhn) = ([of(data, name) for name in ("generative", "best")] for data in RUNS)
    assert 0.5 < best_blood[0] - blood[0] < 1.5
    assert 0 < blood[2] - best_blood[2] < 1
    assert svhn[0] < best_svhn[0] - 1
    assert svhn[2] > best_svhn[2]


def test_the_page_shows_samples_of_the_first_run_on_each_dataset() -> None:
    shown = re.findall(r"\]\(\.\./\.\./(results/samples/(\w+)-wrn-16-4-seed(\d)\.png)\)", PAGE)
    assert {(data, int(seed)) for _, data, seed in shown} == {
        (data, runs[0]["run"]["settings"]["seed"]) for data, runs in RUNS.items()
    }
    for path, _, _ in shown:
        assert (ROOT / path).stat().st_size < 600_000
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "results/samples").glob("*.png")} == {
        path for path, _, _ in shown
    }
