"""The whole way from cells to tables and figures, on digits, small enough for a newcomer's check."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ebpl import api
from ebpl.config.presets import preset
from ebpl.runs import Run
from ebpl.terminal import Progress, Silent
from experiments import reproduce
from experiments.grid import Cell, cells
from experiments.output import write
from experiments.overview import overview
from experiments.reproduce import Reproduction
from experiments.results_store import load

SETTINGS = preset("quick", epochs=2, curriculum__steps=2, curriculum__epochs=1, sgld__steps=2)


@contextlib.contextmanager
def silent(labels: Sequence[str]) -> Iterator[list[Progress]]:
    yield [Silent() for _ in labels]


def made(chosen: list[Cell], folder: str = ".", **more: object) -> Reproduction:
    said: list[str] = []
    work = Reproduction(chosen, Path(folder) / "results", Path(folder) / "runs", silent, said.append)
    for name, value in more.items():
        setattr(work, name, value)
    return work


def results(folder: str = ".") -> dict[str, dict[str, Any]]:
    """The records without times of the clock."""
    records = {}
    for path in Path(folder, "results").glob("*.json"):
        record = json.loads(path.read_text())
        del record["result"]["seconds"], record["environment"]["started"]
        records[path.name] = record
    return records


def test_from_cells_to_tables_and_figures() -> None:
    chosen = cells("table1", ["digits"], [0, 1], SETTINGS)
    work = made(chosen)
    assert work.run()
    assert work.missing() == []
    records = load(Path("results"))
    assert len(records) == 12
    assert all(line[5] == "" for line in overview(chosen, records)[1:])
    names = {path.name for path in write(Path("out"), "table1", chosen, records, SETTINGS)}
    tables = {f"table1{part}" for part in (".md", "-chosen.csv", "-chosen.tex", "-last.csv", "-last.tex")}
    kinds = ("reliability", "pseudo-labels", "samples", "misclassified", "first-selection")
    assert names == tables | {f"table1-{kind}-digits.{ending}" for kind in kinds for ending in ("png", "svg")}
    assert all((Path("out") / name).stat().st_size > 100 for name in names)
    page = Path("out/table1.md").read_text()
    assert "n = 2" in page
    assert "not measured" not in page
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*.csv")}
    assert made(chosen).run()  # nothing is done twice
    assert before == {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*.csv")}


@pytest.mark.parametrize(
    ("device", "groups"), [("cuda", [3, 1, 3, 3, 2]), pytest.param("cpu", [1] * 12, marks=pytest.mark.slow)]
)
def test_on_a_gpu_trainings_of_both_methods_share_it_as_many_as_are_wanted(
    device: str, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    train = api.resume_runs

    def counted(runs: Sequence[Run], *more: Any) -> dict[Path, Exception]:
        seen.append(len(runs))
        return train(runs, *more)

    monkeypatch.setattr(reproduce, "choose_device", lambda _: torch.device(device))
    monkeypatch.setattr(api, "resume_runs", counted)
    assert made(cells("table1", ["digits"], [0, 1], SETTINGS), at_once=3).run()
    assert seen == groups
    assert len(load(Path("results"))) == 12


def test_what_was_interrupted_ends_with_the_records_it_would_have_had() -> None:
    chosen = cells("table1", ["digits"], [0], SETTINGS.changed(runtime__checkpoint_seconds=0.0))
    assert made(chosen, "whole").run()

    class Stop(Silent):
        def epoch(self, line: str) -> None:
            if "step 1" in line:
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def stopping(labels: Sequence[str]) -> Iterator[list[Progress]]:
        yield [Stop() for _ in labels]

    with pytest.raises(KeyboardInterrupt):
        made(chosen, "cut", bars=stopping).run()
    assert 0 < len(results("cut")) < 6
    assert not made(chosen, "cut", deadline=time.monotonic()).run()  # no time: nothing happens
    assert made(chosen, "cut").run()
    assert results("cut") == results("whole")


def test_records_from_elsewhere_are_continued() -> None:
    chosen = cells("table1", ["digits"], [0], SETTINGS.changed(method="curriculum-labeling"))
    chosen = [cell for cell in chosen if cell.settings.method == "curriculum-labeling"]
    assert made(chosen, "here").run()
    kept = list(Path("here/results").glob("*none*.json"))
    Path("there/results").mkdir(parents=True)
    shutil.copy2(kept[0], "there/results")
    assert made(chosen, "there").run()
    assert results("there").keys() == results("here").keys()


def test_records_that_were_lost_are_made_again_from_runs_that_are_finished() -> None:
    chosen = [cell for cell in cells("table1", ["digits"], [0], SETTINGS) if cell == cell.trunk][:1]
    assert made(chosen).run()
    before = results()
    shutil.rmtree("results")
    assert made(chosen).run()
    assert results() == before


def test_a_dataset_that_is_not_there_leaves_the_others_alone() -> None:
    small = SETTINGS.changed(method="curriculum-labeling", epochs=1)
    chosen = [Cell("nowhere", small.changed(pseudo_labels="none")), Cell("digits", small.changed(pseudo_labels="none"))]
    work = made(chosen)
    assert work.run()
    assert list(work.failures) == chosen[:1]
    assert work.missing() == chosen[:1]


def test_records_do_without_what_single_images_are_drawn_from_if_they_are_to_be_small() -> None:
    chosen = [cell for cell in cells("table1", ["digits"], [0], SETTINGS) if cell == cell.trunk][:1]
    for folder, detailed in (("whole", chosen), ("small", [])):
        assert made(chosen, folder, detailed=detailed).run()
    (whole,), (small,) = (results(folder).values() for folder in ("whole", "small"))
    assert "details" in whole
    assert {name: part for name, part in whole.items() if name != "details"} == small
