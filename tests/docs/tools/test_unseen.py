"""The table of scores on images of another kind, from the records."""

import json
from pathlib import Path
from statistics import fmean

from docs.tools import unseen
from tests.helpers import ROOT

RECORDS = [json.loads(path.read_text()) for path in sorted((ROOT / "results/unseen").glob("*.json"))]
PAGE = (ROOT / "docs/how-to/outliers.md").read_text("utf-8")


def record(name: str, other: str, energy: float, error: float) -> str:
    auroc = {"energy": {other: energy}, unseen.SCORE: {other: error}}
    settings = {"model.fine_tune": "none"}
    return json.dumps(
        {
            "data": {"name": name},
            "settings": settings,
            "auroc": auroc,
            "flagged": {unseen.SCORE: {name: 0.01, other: error}},
        }
    )


def test_each_row_is_the_mean_over_the_seeds_of_training_data_and_other_data() -> None:
    folder = Path("results/unseen")
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(record("cats", "cars", 0.5, 0.9))
    (folder / "b.json").write_text(record("cats", "cars", 0.7, 0.9))
    (folder / "c.json").write_text(record("cars", "cats", 0.25, 1.0))
    rows = [
        [cell.strip().replace("\u00a0", " ") for cell in line.split("|")[1:-1]]
        for line in unseen.scores(Path()).splitlines()
    ]
    assert rows[2:] == [
        ["cats", "new images of cats", "2", "", "", "1.0 ± 0.0"],
        ["cats", "cars", "2", "60.0 ± 14.1", "90.0 ± 0.0", "90.0 ± 0.0"],
        ["cars", "new images of cars", "1", "", "", "1.0"],
        ["cars", "cats", "1", "25.0", "100.0", "100.0"],
    ]


def test_seeds_that_no_choice_has_seen_were_measured() -> None:
    assert RECORDS
    assert {each["settings"]["seed"] for each in RECORDS} <= {3, 4, 5, 6, 7}


def test_what_the_page_says_of_the_scores_is_true() -> None:
    assert (
        "worse than chance where the model was trained on Intel scenes, and for scenes where it was trained on" in PAGE
    )
    assert "On PBC it is far better, but behind the reconstruction error" in PAGE
    pairs = [(each, other) for each in RECORDS for other in each["auroc"]["energy"]]
    energies: dict[tuple[str, str], list[float]] = {}
    for each, other in pairs:
        energies.setdefault((each["data"]["name"], other), []).append(each["auroc"]["energy"][other])
    for (data, other), values in energies.items():
        if data == "pbc":
            assert fmean(values) > 0.8
        elif "intel" in (data, other):
            assert fmean(values) < 0.5
    for each, other in pairs:
        found = {score: values[other] for score, values in each["auroc"].items()}
        assert found[unseen.SCORE] > max(0.99, found["energy"])
        assert each["flagged"][unseen.SCORE][other] > 0.9
        assert each["flagged"][unseen.SCORE][each["data"]["name"]] < 0.05
