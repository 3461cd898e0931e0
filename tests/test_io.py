import json
import math
import resource
import signal
from pathlib import Path

import pytest

from ebpl.errors import WriteError
from ebpl.io import write_json, write_text


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
