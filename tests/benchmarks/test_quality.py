from pathlib import Path

from benchmarks.quality import comparison, fill
from ebpl.config.presets import preset
from experiments.results_store import Record

ROOT = Path(__file__).parents[2]


def record(seed: int, accuracy: float, width: int = 4) -> Record:
    return {
        "data": {"name": "x", "fingerprint": "f"},
        "settings": preset("standard", seed=seed, pseudo_labels="none", width=width).to_dict(),
        "result": {"metrics": {"accuracy": accuracy, "f_score": 0.5, "ece": 0.1}},
    }


def test_both_folders_stand_below_each_other_with_their_spread() -> None:
    table = comparison([record(0, 0.8)], [record(1, 0.7), record(0, 0.9), record(0, 0.1, width=2)]).splitlines()
    assert table[2] == "| x | none | before | 0 | 80.0 | 50.0 | 10.0 |"
    assert table[3] == "| x | none | now | 0 | 90.0 | 50.0 | 10.0 |"
    assert table[4] == "| x | none | now | 1 | 70.0 | 50.0 | 10.0 |"
    assert table[5] == "| x | none | now | mean ± std | 80.0 ± 14.1 | 50.0 ± 0.0 | 10.0 ± 0.0 |"
    assert len(table) == 6  # another network is another experiment


def test_a_run_that_recovered_is_marked() -> None:
    healed = record(1, 0.7)
    healed["result"]["healed_divergences"] = [{"epoch": 1}]
    assert "| x | none | now | 1 (recovered) | 70.0 |" in comparison([record(0, 0.8)], [healed])


def test_the_page_shows_what_the_records_hold() -> None:
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    assert text == fill(text, ROOT), "run: make benchmarks"
