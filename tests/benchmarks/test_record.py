from pathlib import Path

import pytest

from benchmarks.record import check_place, describe_machine, load, path_for, save
from ebpl.config.presets import preset
from ebpl.errors import DataError, UsageError, WriteError


def record(name: str, date: str, gpu: str | None = None) -> dict:
    return {"machine": {"name": name, "gpu": gpu}, "date": date, "rows": []}


def test_a_record_is_named_after_its_machine_and_time() -> None:
    made = record("NVIDIA H200 (SXM)", "2030-01-02T03:04:05Z")
    assert path_for(made, None) is None
    assert path_for(made, "mine.json") == Path("mine.json")
    assert path_for(made, "mine") == Path("mine/nvidia-h200-sxm-2030-01-02-0304.json")
    Path("benchmarks/records").mkdir(parents=True)
    assert save(made) == Path("benchmarks/records/nvidia-h200-sxm-2030-01-02-0304.json")


def test_the_newest_record_of_each_machine_counts_with_gpus_first() -> None:
    old, new = record("b", "2030-01-01T00:00:00Z"), record("b", "2030-02-01T00:00:00Z")
    gpu = record("z", "2029-01-01T00:00:00Z", gpu="z")
    for i, each in enumerate((new, old, gpu)):
        save(each, f"records/{i}.json")
    assert load(Path("records")) == [gpu, new]


def test_what_is_not_a_record_is_named() -> None:
    for text in ("{", "[]", '{"machine": {}}'):
        Path("odd.json").write_text(text)
        with pytest.raises(DataError, match=r"odd\.json is not a record"):
            load(Path())


def test_the_machine_is_described() -> None:
    described = describe_machine(preset("standard", device="cpu").runtime)
    assert described["name"]
    assert described["gpu"] is None
    assert described["cores"] >= 1


def test_a_place_that_cannot_be_written_to_is_refused_before_measuring() -> None:
    Path("there.json").write_text("{}")
    with pytest.raises(UsageError, match="overwrites nothing"):
        check_place("there.json")
    with pytest.raises(WriteError, match=r"there\.json"):
        check_place("there.json/below")
    check_place("new/one.json")
    check_place(None)
    assert list(Path("new").iterdir()) == []
