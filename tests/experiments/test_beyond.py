import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.config.presets import preset
from ebpl.data.split import split_for
from ebpl.errors import UsageError
from ebpl.terminal import Progress, Silent
from experiments import beyond
from experiments.beyond import MOST_COLUMNS, Beyond, compact, mixed, records, summary
from tests.helpers import random_images

SETTINGS = preset("quick", epochs=1, curriculum__steps=2, curriculum__epochs=1, sgld__steps=1, guard_every=5)


@contextlib.contextmanager
def silent(labels: Sequence[str]) -> Iterator[list[Progress]]:
    yield [Silent() for _ in labels]


def strangers() -> ebpl.ImageSet:
    return ebpl.from_arrays(random_images(300, 12, 10, 3), np.arange(300) % 2, name="strangers")


def noise() -> ebpl.ImageSet:
    images, labels = random_images(50, 9, 9, 3), np.arange(50) % 2
    return ebpl.from_arrays(images, labels, test_images=images, test_labels=labels, name="noise")


def made() -> Beyond:
    return Beyond(SETTINGS, Path("results"), Path("runs"), silent, lambda _: None, None)


def test_strangers_are_so_many_of_the_unlabelled_images_and_never_labelled() -> None:
    data = ebpl.load("digits")
    images, strange = mixed(data, strangers(), 0.2, seed=3)
    parts = split_for(images, SETTINGS)
    assert strange[parts.unlabeled].mean() == pytest.approx(0.2, abs=0.02)
    assert not strange[parts.labeled].any()
    assert not strange[parts.validation].any()
    assert np.array_equal(images.train.pixels[~strange], data.train.pixels[~strange])
    assert not (images.train.pixels[strange] == data.train.pixels[strange]).all((1, 2, 3)).any()


def test_outliers_are_measured_with_and_without_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    load = beyond.load
    monkeypatch.setitem(beyond.UNSEEN, "digits", ("noise",))
    others = {"fashion": strangers(), "noise": noise()}
    monkeypatch.setattr(beyond, "load", lambda name, **more: others.get(name) or load(name, **more))
    assert made().outliers("digits", [0])
    (record,) = records(Path("results"))
    kept, rejected = record["arms"]["kept"], record["arms"]["rejected"]
    assert 0 <= kept["auroc"] <= 1
    assert kept["auroc_distance"] > 0.9  # noise is far from digits, even for one epoch's features
    assert kept["unseen"]["noise"]["energy"] > 0.5
    half, everything = (step["images"] for step in kept["pseudo_labels"])
    assert half == everything // 2
    assert kept["pseudo_labels"][-1]["strangers"] == pytest.approx(0.2 * everything, abs=10)
    assert rejected["pseudo_labels"][-1]["images"] < everything
    step = rejected["pseudo_labels"][0]
    assert 0 < step["rejected_strangers"] <= 1
    assert kept["pseudo_labels"][0]["rejected_strangers"] == 0
    heads, *lines = summary([record])
    expected = [["outliers", "digits", "WRN-10-1", arm, "1"] for arm in ("kept", "rejected")]
    assert [line[:5] for line in lines] == expected
    assert (lines[0][heads.index("strangers left out %")], lines[1][heads.index("strangers left out %")] != "") == (
        "",
        True,
    )
    assert lines[0][heads.index("AUROC of the energy %")] == f"{100 * kept['auroc']:.1f}"
    before = Path("results/beyond/outliers-digits-wrn-10-1-seed0.json").read_text()
    assert made().outliers("digits", [0])  # nothing is done twice
    assert Path("results/beyond/outliers-digits-wrn-10-1-seed0.json").read_text() == before


def test_suggestions_are_compared_with_as_many_random_images() -> None:
    assert made().suggestions("digits", [1])
    record = json.loads(Path("results/beyond/suggestions-digits-wrn-10-1-seed1.json").read_text())
    arms = record["arms"]
    assert sum(arms["suggested"]["added"]) == sum(arms["random"]["added"]) == record["added"] == beyond.SUGGESTED
    assert all(0 < arm["metrics"]["accuracy"] < 1 for arm in arms.values())


def test_a_stopped_experiment_goes_on() -> None:
    work = made()
    work.deadline = 0.0
    assert not work.suggestions("digits", [0])
    assert records(Path("results")) == []
    assert made().suggestions("digits", [0])
    assert len(records(Path("results"))) == 1


def test_a_table_is_turned_where_it_has_too_many_columns_to_be_read() -> None:
    few = [["experiment", "data", "network", "arm", "n", "empty"], ["x", "blood", "W", "kept", "3", ""]]
    assert compact(few) == [few[0][:5], few[1][:5]]
    heads = [f"measure {i}" for i in range(MOST_COLUMNS)]
    many = [[*few[0], *heads], [*few[1], *map(str, range(MOST_COLUMNS))], ["x", "blood", "W", "gone", "2", "", *heads]]
    turned = compact(many)
    assert turned[0] == ["", "blood, W, kept", "blood, W, gone"]
    assert turned[1] == ["n", "3", "2"]
    assert turned[2:] == [[head, str(i), head] for i, head in enumerate(heads)]


def test_runs_of_other_settings_are_not_taken_for_ones_own() -> None:
    work = made()
    work.deadline = 0.0
    assert not work.suggestions("digits", [0])
    work.settings = SETTINGS.changed(epochs=2)
    with pytest.raises(UsageError, match="suggestions-digits-before-seed0 was trained with other settings"):
        work.suggestions("digits", [0])
