"""The table of class mixes, from the records."""

import json
from pathlib import Path

from docs.tools import imbalance


def write(seed: int, accuracy: float) -> None:
    measured = {"accuracy": accuracy, "balanced_accuracy": 0.5, "ece": 0.04, "ece_by_chance": 0.03, "nll": 1.0}
    record = {
        "data": {"name": "cats"},
        "preset": "features",
        "ratio": 10,
        "labels": "balanced",
        "mix": [0.75, 0.25],
        "trained": {"labels": {"metrics": measured, "distance": 0.25}, "known": {"metrics": measured, "distance": 0.0}},
    }
    Path("results/imbalance").mkdir(parents=True, exist_ok=True)
    Path(f"results/imbalance/cats-{seed}.json").write_text(json.dumps(record))


def test_seeds_are_averaged_for_each_class_mix() -> None:
    write(3, 0.6)
    write(4, 0.8)
    table = imbalance.comparison(Path())
    rows = [[cell.strip().replace("\u00a0", " ") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert rows == [
        [
            "cats",
            "features",
            "1:10",
            "75",
            "balanced",
            "labels",
            "2",
            "70.0 ± 14.1",
            "50.0 ± 0.0",
            "4.0 ± 0.0",
            "3.0 ± 0.0",
            "25.0 ± 0.0",
        ],
        [
            "cats",
            "features",
            "1:10",
            "75",
            "balanced",
            "known",
            "2",
            "70.0 ± 14.1",
            "50.0 ± 0.0",
            "4.0 ± 0.0",
            "3.0 ± 0.0",
            "0.0 ± 0.0",
        ],
    ]
