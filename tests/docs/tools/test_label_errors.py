"""The tables of wrong labels and of learning curves, from the records."""

import json
from pathlib import Path
from typing import Any

from docs.tools import label_errors
from tests.docs.tools.test_coverage import cells
from tests.helpers import ROOT


def write(name: str, *rows: dict[str, Any]) -> None:
    Path("results/label_errors").mkdir(parents=True, exist_ok=True)
    record = {"data": {"name": name.partition("-")[0]}, "rows": rows}
    Path(f"results/label_errors/{name}.json").write_text(json.dumps(record))


def judged(found: int, kind: str, features: str = "plain", **more: int) -> dict[str, Any]:
    return {"kind": kind, "features": features, "exchanged": 40, "found": found, **more}


def test_shares_that_were_found_are_means_over_seeds() -> None:
    for seed, found in ((3, 20), (4, 30)):
        both = [judged(found, kind, labels_per_class=100) for kind in ("random", "confusable")]
        write(f"blood-plain-seed{seed}", *both)
    write("trash-net-seed3", judged(40, "random", "lite"), judged(10, "confusable", "lite"))
    assert cells(label_errors.found(Path())) == [
        ["blood", "colours and textures", "100", "2", "62.5 ± 17.7", "62.5 ± 17.7"],
        ["trash", "lite", "all", "1", "100.0", "25.0"],
    ]


def test_a_gain_counts_where_it_is_in_its_interval() -> None:
    row = {"labels": 60, "predicted": 0.04, "interval": [0.0, 0.05]}
    write("cats-curve-seed3", {**row, "gain": 0.03})
    write("cats-curve-seed4", {**row, "gain": 0.07})
    assert cells(label_errors.gains(Path())) == [["cats", "60", "4.0 ± 0.0", "5.0 ± 2.8", "5.0", "1 of 2"]]


def test_the_records_have_blood_fashion_and_photographs() -> None:
    names = {row[0] for row in cells(label_errors.found(ROOT))}
    assert names >= {"blood", "fashion", "trashnet"}
    assert {row[0] for row in cells(label_errors.gains(ROOT))} >= {"trashnet", "intel"}
