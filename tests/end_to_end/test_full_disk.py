"""Training on a disk that really runs full: a small file system of its own, where this machine allows one."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import QUICK, ebpl


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting a small file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_stops_with_a_message_and_the_run_goes_on_when_there_is_room(small_disk: Path) -> None:
    run, filler = small_disk / "run", small_disk / "filler"
    filler.write_bytes(b"x" * 11_000_000)
    options = [*QUICK, "--set", "runtime.checkpoint_seconds=0", "--pseudo-labels", "none"]
    full = ebpl("train", "digits", *options, "--run", run)
    assert full.returncode == 6
    assert "No space left on device" in full.stderr
    assert f"ebpl resume {run}" in full.stderr
    assert "Traceback" not in full.stderr
    filler.unlink()
    done = ebpl("resume", run)
    assert done.returncode == 0, done.stderr
    assert (run / "test_metrics.json").is_file()
