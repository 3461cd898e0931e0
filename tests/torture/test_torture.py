"""The attacks themselves work: a few of each find nothing, and find what is wrong where something is."""

from pathlib import Path

import pytest

from tests.torture import damage as damaging
from tests.torture.damage import damage
from tests.torture.report import Findings, Outcome, command


def test_a_few_damaged_files_are_refused_or_harmless(tmp_path: Path) -> None:
    found = damage(12, tmp_path, seed=1)
    assert found.counts.total() == 12
    assert found.wrong == []


def test_another_answer_without_a_word_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damaging, "_answer", lambda verb, outcome: object())
    assert any("another answer" in problem for problem in damage(12, tmp_path, seed=1).wrong)


def test_an_exception_that_escapes_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.torture.report.main", lambda words: 1 / 0)
    outcome = command(["train"])
    assert "ZeroDivisionError" in outcome.trace


def test_findings_are_counted_and_shown() -> None:
    found = Findings("kills")
    found.add("killed")
    found.add("killed", "traceback")
    assert str(found).splitlines()[0] == "kills: 2 attacks, 1 found something wrong"
    assert Outcome(0, "", "").trace == ""
