import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ebpl.errors import UsageError
from experiments import cluster
from experiments.cluster import families, reproduce_on, run_family
from experiments.grid import Cell, cells
from tests.experiments.test_reproduce import SETTINGS, made, results

BASELINE = [
    cell for cell in cells("table1", ["digits"], [0, 1], SETTINGS) if cell.settings.method == "curriculum-labeling"
]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (make test-ray)")


def test_cells_that_share_their_initial_training_are_one_task() -> None:
    assert [len(family) for family in families(BASELINE)] == [3, 3]
    assert all(len({cell.settings.seed for cell in family}) == 1 for family in families(BASELINE))


def test_a_task_returns_the_records_of_its_cells() -> None:
    records, failures = run_family(families(BASELINE)[0], None, "runs")
    assert len(records) == 3
    assert failures == {}
    unknown = Cell("nowhere", SETTINGS.changed(pseudo_labels="none"))
    assert list(run_family([unknown], None, "runs")[1]) == [unknown]


def test_a_task_trains_its_cells_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    made_with: list[int] = []
    monkeypatch.setattr(cluster.Reproduction, "run", lambda work: made_with.append(work.at_once))
    run_family(families(BASELINE)[0], None, "runs")
    assert made_with == [3]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"ebpl\[cluster\]"):
        cluster.reproduce_on("local", made(BASELINE))


@needs_ray
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_two_workers_end_with_the_records_of_one_process_even_if_one_is_killed() -> None:
    assert made(BASELINE, "alone").run()
    work = made(BASELINE, "spread", runs=Path("spread/runs").resolve())
    killed: list[int] = []

    def kill_a_worker() -> None:
        for _ in range(600):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    command = entry.read_bytes().replace(b"\0", b" ")
                except OSError:
                    continue
                if command.startswith(b"ray::run_family"):
                    time.sleep(1.0)
                    os.kill(int(entry.parent.name), signal.SIGKILL)
                    killed.append(int(entry.parent.name))
                    return
            time.sleep(0.1)

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    assert reproduce_on("local", work)
    killer.join()
    assert killed
    assert results("spread").keys() == results("alone").keys()
    for name, record in results("spread").items():
        assert record["result"] == results("alone")[name]["result"], name  # type: ignore[index]
