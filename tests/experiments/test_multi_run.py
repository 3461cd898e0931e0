import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ebpl.config.presets import preset
from ebpl.errors import DataError
from ebpl.terminal import Progress, Silent
from experiments.__main__ import MULTI_RUN
from experiments.multi_run import MOST_COLUMNS, MultiRun, compact, experiment_of, records, shown
from tests.helpers import ROOT

SETTINGS = preset("quick", epochs=1, curriculum__steps=2, curriculum__epochs=1, sgld__steps=1)


@contextlib.contextmanager
def silent(labels: Sequence[str]) -> Iterator[list[Progress]]:
    yield [Silent() for _ in labels]


def made(kind: type[MultiRun]) -> MultiRun:
    return kind(SETTINGS, Path("results"), Path("runs"), silent, lambda _: None)


def test_every_experiment_is_a_file_of_its_name() -> None:
    assert [experiment_of(name).name for name in MULTI_RUN] == list(MULTI_RUN)


def test_a_table_is_turned_where_it_has_too_many_columns_to_be_read() -> None:
    few = [["data", "network", "arm", "n", "empty"], ["blood", "W", "kept", "3", ""]]
    assert compact(few) == [few[0][:4], few[1][:4]]
    heads = [f"measure {i}" for i in range(MOST_COLUMNS)]
    many = [[*few[0], *heads], [*few[1], *map(str, range(MOST_COLUMNS))], ["blood", "W", "gone", "2", "", *heads]]
    turned = compact(many)
    assert turned[0] == ["", "blood, W, kept", "blood, W, gone"]
    assert turned[1] == ["n", "3", "2"]
    assert turned[2:] == [[head, str(i), head] for i, head in enumerate(heads)]


def test_records_of_version_0_1_are_shown() -> None:
    heads, *lines = shown(ROOT / "results", "suggestions")
    assert heads == ["data", "network", "arm", "n", "accuracy %", "ECE %"]
    assert ["digits", "WRN-10-1", "suggested", "3", "97.8 ± 1.2", "2.3 ± 0.5"] in lines
    turned = {line[0]: line[1:] for line in shown(ROOT / "results", "outliers")}
    assert turned[""][:2] == ["blood, WRN-10-1, kept", "blood, WRN-10-1, rejected"]
    assert turned["outliers rejected %"][0] == ""


def test_without_records_there_is_only_a_head() -> None:
    assert shown(Path("nowhere"), "suggestions") == [["data", "network", "arm", "n", "accuracy %", "ECE %"]]


def test_a_damaged_record_is_named() -> None:
    Path("results/beyond").mkdir(parents=True)
    Path("results/beyond/x.json").write_text("[]")
    with pytest.raises(DataError, match=r"x\.json is not a record"):
        records(Path("results"))
