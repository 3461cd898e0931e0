import json
from pathlib import Path

import pytest

from ebpl.errors import UsageError
from experiments.multi_run import records
from experiments.suggestions import SUGGESTED, Suggestions
from tests.experiments.test_multi_run import SETTINGS, made


def test_suggestions_are_compared_with_as_many_random_images() -> None:
    assert made(Suggestions).run("digits", [1])
    record = json.loads(Path("results/beyond/suggestions-digits-wrn-10-1-seed1.json").read_text())
    arms = record["arms"]
    assert sum(arms["suggested"]["added"]) == sum(arms["random"]["added"]) == record["added"] == SUGGESTED
    assert all(0 < arm["metrics"]["accuracy"] < 1 for arm in arms.values())


def test_a_stopped_experiment_continues() -> None:
    work = made(Suggestions)
    work.deadline = 0.0
    assert not work.run("digits", [0])
    assert records(Path("results")) == []
    assert made(Suggestions).run("digits", [0])
    assert len(records(Path("results"))) == 1


def test_runs_of_other_settings_are_not_taken_for_ones_own() -> None:
    work = made(Suggestions)
    work.deadline = 0.0
    assert not work.run("digits", [0])
    work.settings = SETTINGS.changed(epochs=2)
    with pytest.raises(UsageError, match="suggestions-digits-before-seed0 was trained with other settings"):
        work.run("digits", [0])
