import csv
import io
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from ebpl import io as writing
from ebpl.cli import main
from ebpl.errors import UsageError, WriteError
from ebpl.io import (
    RUN_FILES,
    Row,
    check_output,
    check_table_name,
    is_number,
    is_text,
    is_whole,
    rows_into,
    write_json,
    write_text,
    wrong_entry,
)
from tests.helpers import class_folders, quick


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    path = folder / "file.txt"
    write_text(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # the kernel itself refuses more than 1000 bytes
    try:
        with pytest.raises(WriteError, match=r"file.txt: File too large. .*unharmed"):
            write_text(path, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert [p.name for p in folder.iterdir()] == ["file.txt"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file, not a folder")
    with pytest.raises(WriteError, match="Could not write"):
        write_text(tmp_path / "a" / "b.txt", "text")


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [math.nan, math.inf, 1.5], "y": (1, None)})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [None, None, 1.5], "y": [1, None]}


def rows(count: int = 25) -> list[Row]:
    """Predictions for so many images, every fifth of which cannot be read, the first among them."""
    made: list[Row] = []
    for i in range(count):
        row: Row = {"image": f"ü {i}.png", "label": None, "confidence": None, "energy": None, "outlier": None}
        row |= {"p(a)": None, "p(<b>)": None, "problem": "the file is empty"}
        if i % 5:
            row |= {"label": "a" if i % 2 else None, "confidence": i / 26, "energy": -i * 1.25, "outlier": i % 3 == 0}
            row |= {"p(a)": i / 26, "p(<b>)": 1 - i / 26, "problem": None}
        made.append(row)
    return made


def write_all(target: str, made: Iterable[Row]) -> None:
    with rows_into(target) as write:
        for row in made:
            write(row)


def test_a_csv_has_nothing_where_there_is_nothing() -> None:
    write_all("a.csv", rows())
    with Path("a.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == list(rows()[0])
    assert read[0] == dict.fromkeys(read[0], "") | {"image": "ü 0.png", "problem": "the file is empty"}
    assert read[3]["outlier"] == "yes"
    assert read[4]["outlier"] == "no"
    assert read[4]["energy"] == "-5"
    assert read[4]["confidence"] == f"{4 / 26:.6f}"


def test_parquet_holds_the_same_with_types(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr(writing, "CELLS", 40)  # so that there are several row groups
    write_all("a.parquet", rows())
    file = parquet.ParquetFile("a.parquet")
    assert file.metadata.num_row_groups == 5
    assert {name: str(kind) for name, kind in zip(file.schema_arrow.names, file.schema_arrow.types, strict=True)} == {
        "image": "string", "label": "string", "confidence": "float", "energy": "float", "outlier": "bool",
        "p(a)": "float", "p(<b>)": "float", "problem": "string",
    }  # fmt: skip
    for read, row in zip(file.read().to_pylist(), rows(), strict=True):
        assert read == {
            name: pytest.approx(value) if isinstance(value, float) else value for name, value in row.items()
        }
    write_all("a.csv", rows())
    with Path("a.csv").open(newline="", encoding="utf-8") as text:
        assert next(csv.reader(text)) == file.schema_arrow.names


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_file_is_whole_or_not_there(name: str) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(ZeroDivisionError):
        write_all(name, (row if row["image"] != "ü 7.png" else {"image": 1 / 0} for row in rows()))
    assert not list(Path().iterdir())
    Path("file").touch()
    with pytest.raises(WriteError):
        write_all(f"file/{name}", rows())


def test_without_pyarrow_it_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    import ebpl

    class_folders(Path("photos"))
    ebpl.train("photos", quick(epochs=1, pseudo_labels="none"), run="run")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("ebpl.inference.predict.predict_files", lambda *_: pytest.fail("there was work"))
    assert main(["predict", "run", "photos", "--output", "a.parquet"]) == UsageError.exit_code
    assert "pip install 'ebpl[parquet]'" in capsys.readouterr().err
    assert not Path("a.parquet").exists()


def test_predictions_in_parquet_are_those_in_csv() -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    import ebpl

    class_folders(Path("photos"))
    (Path("photos") / "unlabeled" / "empty.png").touch()
    ebpl.train("photos", quick(epochs=1, pseudo_labels="none"), run="run", skip_unreadable=True)
    for name in ("a.parquet", "a.csv"):
        assert main(["predict", "run", "photos", "--output", name, "--abstain-below", "0.5"]) == 0
    with Path("a.csv").open(newline="") as file:
        expected = list(csv.DictReader(file))
    for read, row in zip(parquet.read_table("a.parquet").to_pylist(), expected, strict=True):
        for name, text in row.items():
            if isinstance(read[name], float):
                assert read[name] == pytest.approx(float(text), rel=1e-5, abs=1e-6)
            else:
                assert {None: "", True: "yes", False: "no"}.get(read[name], read[name]) == text


def test_numbers_and_texts_are_what_they_are_called() -> None:
    assert [is_whole(value) for value in (1, 0, True, 1.0, "1", None)] == [True, *[False] * 5]
    assert [is_number(value) for value in (1, -0.5, True, float("nan"), float("inf"), "1")] == [
        True,
        True,
        *[False] * 4,
    ]
    assert [is_text(value) for value in ("", "é 🐈", "half of it: \ud83d", b"a", None)] == [True, True, *[False] * 3]
    assert wrong_entry({}, {"a": is_text}, {}) == "it has no a"
    assert wrong_entry([], {}, {}) == "it is no object with names and values"
    assert wrong_entry({"a": "x", "b": 1, "c": 2}, {"a": is_text}, {"b": is_whole}) is None
    assert wrong_entry({"a": "x" * 100}, {}, {"a": is_whole}) == "a is '" + "x" * 39 + " ..."


def test_an_output_is_refused_before_any_work_where_it_would_destroy_something() -> None:
    check_output("-", force=False)
    check_output("new/deep/a.csv", force=False)
    Path("mine.csv").write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.csv exists already.*--force"):
        check_output("mine.csv", force=False)
    check_output("mine.csv", force=True)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("link").symlink_to("mine.csv")
    Path("nowhere").symlink_to("gone")
    for name, what in {
        "folder": "a folder",
        "new/": "a folder",
        "": "a folder",
        "pipe": "a device or a pipe",
        "link": "a link",
        "nowhere": "a link",
        "/dev/null": "a device or a pipe",
        "a\0b": "cannot be the name",
        "x" * 300: "cannot be the name",
    }.items():
        with pytest.raises(UsageError, match=what):
            check_output(name, force=True)
    with pytest.raises(WriteError, match="not a folder"):
        check_output("mine.csv/a.csv", force=False)


def test_no_output_replaces_a_file_of_the_run() -> None:
    run = Path("runs/a")
    (run / "checkpoints").mkdir(parents=True)
    for name in (*sorted(RUN_FILES - {"checkpoints"}), "checkpoints/a.csv", "seed-1/settings.toml"):
        with pytest.raises(UsageError, match="belongs to the run"):
            check_output(f"runs/../{run / name}", force=True, inside=run)
    check_output(str(run / "predictions.csv"), force=False, inside=run)
    check_output("runs/b/settings.csv", force=False, inside=run)


def test_every_file_that_a_training_writes_is_protected() -> None:
    from docs.tools.run_files import FILES

    by_others = {"report.html", "model.onnx", "model_card.md"}
    assert {name.partition("/")[0] for name in FILES} - by_others == RUN_FILES - {"seeds.json"}


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd()|' /C calc'!A0", "'=cmd()|' /C calc'!A0"),
        ("+a", "'+a"),
        ("-a.png", "'-a.png"),
        ("@SUM(1)", "'@SUM(1)"),
        ("'=a", "''=a"),
        ("-1.5", "-1.5"),
        ("a\r=b.png", r"a\r=b.png"),
        ("clear \x1b[2J", r"clear \x1b[2J"),
        ("ü – 猫.png", "ü – 猫.png"),
    ],
)
def test_a_name_in_a_sheet_is_no_formula_and_stays_on_its_line(name: str, cell: str, capfd) -> None:
    row = {"image": name, "label": name, "energy": -2.5, f"p({name})": 0.5}
    for target in ("a.csv", "-"):
        with rows_into(target) as write:
            write(row)
    text = Path("a.csv").read_text(encoding="utf-8")
    assert capfd.readouterr().out == text
    (read,) = csv.DictReader(io.StringIO(text))
    assert (read["image"], read["label"], read["energy"]) == (cell, cell, "-2.5")
    assert len(text.splitlines()) == 2


def test_what_is_streamed_is_on_the_disk_before_its_name_is(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (done.append("dir" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"), sync(handle)),
    )
    monkeypatch.setattr(Path, "replace", lambda path, other: (done.append("rename"), replace(path, other)))
    write_all("a.csv", rows())
    write_text(Path("b.txt"), "text")
    assert done == ["file", "rename", "dir"] * 2


@pytest.mark.parametrize("name", ["-", "labels", "a.csv", "A.CSV", "a.txt", "dir.x/labels", "a.parquet", "a.pq"])
def test_a_table_may_have_a_name_of_what_it_is(name: str) -> None:
    check_table_name(name)


@pytest.mark.parametrize("name", ["a.xlsx", "a.tsv", "a.json", "a.csv.gz"])
def test_a_table_may_not_have_the_name_of_another_format(name: str) -> None:
    with pytest.raises(UsageError, match=rf"not written as {Path(name).suffix}\. .*\.csv.* or \.parquet"):
        check_table_name(name)
    with pytest.raises(UsageError, match=r"not written as \.parquet\. .*\.csv \(spreadsheets open it\)\.$"):
        check_table_name("a.parquet", parquet=False)
