import subprocess
from pathlib import Path

import pytest

from ebpl import devices
from ebpl.config.presets import preset
from ebpl.devices import describe_environment, source_digest
from ebpl.errors import RunError
from experiments.commit import commit


def git(*arguments: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch):
    def commit_of(value: str) -> str | None:
        monkeypatch.setenv("EBPL_COMMIT", value)
        devices._commit.cache_clear()
        return describe_environment(preset("quick").runtime)["commit"]

    yield commit_of
    devices._commit.cache_clear()


def test_the_value_to_pass_is_commit_and_digest_and_says_whether_all_is_committed() -> None:
    git("init")
    Path("one.py").write_text("1")
    git("add", "one.py")
    git("commit", "-m", "x")
    clean, _, digest = commit(Path()).partition(":")
    assert len(clean) == 12
    assert digest == source_digest()
    Path("two.py").write_text("2")  # git describe --dirty would not see it
    assert commit(Path()) == f"{clean}-dirty:{digest}"


def test_without_git_there_is_no_commit_to_pass() -> None:
    with pytest.raises(RunError, match="is not a checkout"):
        commit(Path())


def test_a_record_says_dirty_where_the_files_are_not_those_of_the_commit(recorded) -> None:
    assert recorded(f"abc:{source_digest()}") == "abc"
    assert recorded("abc") == "abc-dirty"
    assert recorded("abc:0123456789abcdef") == "abc-dirty"
    assert recorded(f"abc-dirty:{source_digest()}") == "abc-dirty"


def test_the_digest_changes_with_any_source_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("src/ebpl/devices.py", "src/ebpl/training/losses.py", "experiments/grid.py"):
        path = Path("copy") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.setattr(devices, "__file__", str(Path("copy/src/ebpl/devices.py").resolve()))
    digests = [source_digest()]
    for name in ("src/ebpl/training/losses.py", "experiments/grid.py"):
        Path("copy", name).write_text("changed")
        digests.append(source_digest())
    Path("copy/src/ebpl/new.py").touch()
    assert len({*digests, source_digest()}) == 4
