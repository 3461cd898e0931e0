import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import measure, run
from benchmarks.__main__ import main
from benchmarks.record import Record
from benchmarks.run import benchmark
from tests.helpers import ROOT, environment

TINY = {"networks": ["10-1"], "sgld_steps": 1, "batch_size": 2, "image_size": 8, "rounds": 2}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK", 0.001)
    monkeypatch.setattr(run, "PREDICTED", {"cpu": 16})


def rows(record: Record, loop: str) -> list[dict]:
    return [row for row in record["rows"] if row["loop"] == loop]


def test_a_record_holds_both_loops_with_rates_from_their_times() -> None:
    record = benchmark("cpu", **TINY)
    (theirs,), (ours,) = rows(record, "reference"), rows(record, "ebpl")
    assert len(ours["times"]) == 2
    assert min(ours["times"]) <= ours["milliseconds"] <= max(ours["times"])
    ratios = [one / other for one, other in zip(theirs["times"], ours["times"], strict=True)]
    assert ours["speedup"] == pytest.approx(sum(ratios) / 2)
    assert theirs["speedup"] is None
    assert ours["images_per_second"] == pytest.approx(2 / (ours["milliseconds"] / 1000))
    assert ours["tflops"] == pytest.approx(ours["operations"] / ours["milliseconds"] / 1e9)
    assert ours["share"] == pytest.approx(ours["tflops"] / record["matrix_rate"]["tflops"])
    assert {"torch", "ebpl", "name", "gpu", "threads"} <= record["machine"].keys()
    assert len([row for row in record["rows"] if row["varied"] == "prediction"]) == 2
    json.dumps(record)


def test_a_loop_that_fails_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")

    monkeypatch.setattr(run, "Training", broken)
    record = benchmark("cpu", **TINY)
    (theirs,), (ours,) = rows(record, "reference"), rows(record, "ebpl")
    assert ours["failed"] == "CUDA out of memory. Tried to allocate 9 GiB."
    assert ours["milliseconds"] is ours["share"] is None
    assert theirs["failed"] is None
    assert theirs["milliseconds"] > 0

    monkeypatch.undo()
    monkeypatch.setattr(run, "Reference", broken)
    record = benchmark("cpu", **TINY | {"rounds": 1})
    assert rows(record, "ebpl")[0]["milliseconds"] > 0
    assert rows(record, "ebpl")[0]["speedup"] is None


def test_the_update_of_best_has_a_row_without_a_reference() -> None:
    record = benchmark("cpu", **TINY | {"best": ["10-1"], "rounds": 1})
    (ours,) = [row for row in record["rows"] if row["varied"] == "best"]
    (other,) = [row for row in rows(record, "ebpl") if row["varied"] == "network"]
    assert ours["loop"] == "ebpl"
    assert ours["speedup"] is None
    assert ours["milliseconds"] > 0
    assert (ours["sgld_steps"], other["sgld_steps"]) == (5, 1)
    assert len(rows(record, "reference")) == 1


def test_after_the_time_limit_nothing_new_begins() -> None:
    record = benchmark("cpu", time_limit=0, **TINY)
    assert {row["failed"] for row in record["rows"]} == {run.LATE}


def test_the_command_measures_shows_and_records(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--networks", "10-1", "--sgld-steps", "4", "--batch-size", "4", "--image-size", "8"]
    more = ["--rounds", "1", "--scaling", "--seeds", "1,3", "--device", "cpu", "--record", "records"]
    assert main([*small, *more]) == 0
    out, err = capsys.readouterr()
    assert "several seeds at once are measured on a GPU only" in err
    assert "WRN-10-1, K = 4, batch 4, 8 x 8, 10,000 images" in err
    for text in ("reference", "ebpl", "SGLD steps K", "prediction from host", "TFLOP/s in a float32 matrix product"):
        assert text in out
    (path,) = Path("records").iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["options"]["scaling"] == "10-1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--networks", "16x4"], "such as 28-10"),
        (["--networks", "11-1"], "must be 6n + 4"),
        (["--seeds", "1,x"], "'x' is not a whole number"),
        (["--rounds", "0"], "not positive"),
        (["--device", "tpu"], "runtime.device is 'tpu'"),
        (["--round", "3"], "Did you mean --rounds"),
    ],
)
def test_a_wrong_option_is_told_kindly(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(options) == 2
    assert message in capsys.readouterr().err


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "benchmarks", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert answer.returncode == 0
    assert "--scaling" in answer.stdout


def test_tables_and_figures_are_loaded_when_they_are_needed() -> None:
    code = "import sys, benchmarks.run, benchmarks.report; print({'rich', 'matplotlib'} & {*sys.modules})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert answer.stdout == "set()\n"
