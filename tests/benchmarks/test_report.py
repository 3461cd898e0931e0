from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.record import load, save
from benchmarks.report import BEGIN, END, fill, markdown, summary
from ebpl.errors import DataError
from tests.benchmarks.records import record, row

ROOT = Path(__file__).parents[2]


def test_tables_show_medians_spread_and_reasons() -> None:
    text = markdown([record()])
    assert "| 16-4 | reference | 1 | 100 ±5% |  | 640 | 20 | 10% | 2.0 GiB |" in text
    assert "| 16-4 | ebpl | 1 | 20 ±5% | 5.00 | 3,200 | 100 | 50% | 1.0 GiB |" in text
    assert "| 16-4 | ebpl | 5 | out of memory |  |  |  |  |  |" in text
    assert "| batch size | 128 | 200 | out of memory |  |" in text
    assert "| 16-4 | prediction from host | 512 | 3,200 | 100 | 50% |" in text
    assert "GPU Z; 200 TFLOP/s in a bfloat16 matrix product; PyTorch 2.0" in text


def test_updates_stand_beside_their_floor_and_that_of_best_beside_a_prediction() -> None:
    made = record()
    made["rows"] += [row("ebpl", 30, varied="best", sgld_steps=5, operations=4_000_000_000_000)]
    text = markdown([made])
    assert "| 16-4 | K = 20 | 1 | 10 |  | 20 ±5% | 50% |" in text
    assert "| 16-4 | preset best, K = 5 | 1 | 20 | 40 | 30 ±5% |" in text  # 4 TFLOP at 200, and at 100 TFLOP/s


def test_a_record_without_scaling_has_no_table_of_it() -> None:
    short = record()
    short["rows"] = [row for row in short["rows"] if row["varied"] == "network"]
    assert "cost grows" not in markdown([short])


def test_only_what_stands_between_the_comments_is_replaced() -> None:
    filled = fill(f"before {BEGIN}old{END} after", [record()])
    assert filled.startswith(f"before {BEGIN}\n### GPU Z")
    assert filled.endswith(f"{END} after")
    assert "old" not in filled
    with pytest.raises(DataError, match="no <!-- benchmarks -->"):
        fill("nothing here", [])


def test_the_command_writes_tables_and_figure() -> None:
    save(record(), "benchmarks/records/one.json")
    Path("benchmarks/README.md").write_text(f"{BEGIN}{END}")
    report.main(Path())
    assert "GPU Z" in Path("benchmarks/README.md").read_text()
    assert Path("benchmarks/scaling.png").stat().st_size > 10_000


def test_the_readme_of_the_benchmarks_shows_what_the_records_hold() -> None:
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    assert text == fill(text, load(ROOT / "benchmarks/records")), "run: make benchmarks"


def test_the_summary_shows_the_speedups_of_gpus() -> None:
    made = summary(load(ROOT / "benchmarks/records"))
    assert "| WRN-28-10 | 1 | 63.1 | 3.9 |" in made
    assert "EPYC" not in made


def test_numbers_have_three_digits_that_count() -> None:
    assert [report._short(number) for number in (1234.5, 12.345, 0.012345)] == ["1234", "12.3", "0.0123"]
