from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl import api
from ebpl.data.benchmarks import BENCHMARKS
from ebpl.data.split import split_for
from ebpl.errors import UsageError
from experiments import open_set as experiment
from experiments.multi_run import records, shown
from experiments.open_set import KNOWN, LABELS, OpenSet, open_set
from tests.experiments.test_multi_run import SETTINGS, made

FEW = SETTINGS.changed({"data.labels_per_class": 4, "data.validation_fraction": 0.0})


def test_the_known_classes_of_cifar10_are_the_six_animals() -> None:
    vehicles = set(BENCHMARKS["cifar10"].classes) - set(KNOWN["cifar10"])
    assert vehicles == {"airplane", "automobile", "ship", "truck"}
    assert LABELS == 25


def test_unknown_classes_are_unlabelled_in_training_and_apart_in_the_test() -> None:
    data = ebpl.load("digits")
    images, unknown = open_set(data, ("3", "1"))
    assert images.classes == ("3", "1")
    known = np.isin(data.train.labels, [3, 1])
    assert (images.train.labels[~known] == -1).all()
    assert np.array_equal(np.array([3, 1])[images.train.labels[known]], data.train.labels[known])
    assert np.array_equal(images.train.pixels, data.train.pixels)
    assert data.test is not None
    assert images.test is not None
    belong = np.isin(data.test.labels, [3, 1])
    assert np.array_equal(images.test.pixels, data.test.pixels[belong])
    assert np.array_equal(unknown.pixels, data.test.pixels[~belong])
    parts = split_for(images, FEW)
    assert (len(parts.labeled), len(parts.validation)) == (8, 0)
    assert known[parts.labeled].all()
    assert len(parts.unlabeled) == len(data.train) - 8


def test_both_methods_are_measured_after_as_many_updates_and_all_seeds_are_trained_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = []
    resume = api.resume_runs

    def counted(runs, *more, **others):  # type: ignore[no-untyped-def]
        together.append(len(runs))
        return resume(runs, *more, **others)

    monkeypatch.setattr(api, "resume_runs", counted)
    monkeypatch.setattr(experiment, "LABELS", 4)
    work = made(OpenSet)
    work.settings = work.settings.changed(updates_per_epoch=2)
    assert work.run("digits", [0, 1])
    assert together == [6]
    first, second = records(Path("results"))
    assert (first["settings"]["seed"], second["settings"]["seed"]) == (0, 1)
    assert first["known"] == list(KNOWN["digits"])
    arms = first["arms"]
    assert list(arms) == ["EBPL", "EBPL, outliers rejected", "FixMatch"]
    for arm in arms.values():
        assert set(arm["auroc"]) == {"energy", "distance", "confidence"}
        assert all(0 <= value <= 1 for value in arm["auroc"].values())
    runs = {name: ebpl.Run(f"runs/open-set-digits-{name}-seed0").metrics() for name in ("EBPL", "FixMatch")}
    assert runs["EBPL"]["updates"] == runs["FixMatch"]["updates"]
    assert runs["EBPL"]["images"]["validation"] == 0
    assert arms["EBPL"]["metrics"] == runs["EBPL"]["metrics"]
    turned = {line[0]: line[1:] for line in shown(Path("results"), "open_set")}
    assert turned[""] == [f"digits, WRN-10-1, {arm}" for arm in arms]
    assert turned["n"] == ["2"] * 3
    mean = 50 * sum(each["arms"]["FixMatch"]["auroc"]["confidence"] for each in (first, second))
    assert float(turned["of the confidence %"][-1].split(" ")[0]) == pytest.approx(mean, abs=0.051)


def test_data_whose_known_classes_are_not_said_are_refused() -> None:
    with pytest.raises(UsageError, match="Use cifar10 or digits"):
        made(OpenSet).run("blood", [0])
