from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.data.split import split_for
from ebpl.errors import UsageError
from experiments import multi_run, outliers
from experiments.multi_run import records, summary
from experiments.outliers import Outliers, contaminated
from tests.experiments.test_multi_run import SETTINGS, made
from tests.helpers import random_images

RECORD = Path("results/beyond/outliers-digits-wrn-10-1-seed0.json")


def foreign() -> ebpl.ImageSet:
    return ebpl.from_arrays(random_images(300, 12, 10, 3), np.arange(300) % 2, name="foreign")


def noise() -> ebpl.ImageSet:
    images, labels = random_images(50, 9, 9, 3), np.arange(50) % 2
    return ebpl.from_arrays(images, labels, test_images=images, test_labels=labels, name="noise")


def test_outliers_are_so_many_of_the_unlabelled_images_and_never_labelled() -> None:
    data = ebpl.load("digits")
    images, outlier = contaminated(data, foreign(), 0.2, seed=3)
    parts = split_for(images, SETTINGS)
    assert outlier[parts.unlabeled].mean() == pytest.approx(0.2, abs=0.02)
    assert not outlier[parts.labeled].any()
    assert not outlier[parts.validation].any()
    assert np.array_equal(images.train.pixels[~outlier], data.train.pixels[~outlier])
    assert not (images.train.pixels[outlier] == data.train.pixels[outlier]).all((1, 2, 3)).any()


def test_outliers_are_measured_with_and_without_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    load = multi_run.load
    monkeypatch.setitem(outliers.UNSEEN, "digits", ("noise",))
    others = {"fashion": foreign(), "noise": noise()}
    monkeypatch.setattr(multi_run, "load", lambda name, **more: others.get(name) or load(name, **more))
    assert made(Outliers).run("digits", [0])
    (record,) = records(Path("results"))
    kept, rejected = record["arms"]["kept"], record["arms"]["rejected"]
    assert 0 <= kept["auroc"] <= 1
    assert kept["auroc_distance"] > 0.9  # noise is far from digits, even for one epoch's features
    assert kept["unseen"]["noise"]["energy"] > 0.5
    half, everything = (step["images"] for step in kept["pseudo_labels"])
    assert 0 <= half - everything // 2 <= 10  # half of each class, rounded up
    assert kept["pseudo_labels"][-1]["strangers"] == pytest.approx(0.2 * everything, abs=10)
    assert rejected["pseudo_labels"][-1]["images"] < everything
    step = rejected["pseudo_labels"][0]
    assert 0 < step["rejected_strangers"] <= 1
    assert kept["pseudo_labels"][0]["rejected_strangers"] == 0
    heads, *lines = summary([record], Outliers.columns)
    assert [line[:4] for line in lines] == [["digits", "WRN-10-1", arm, "1"] for arm in ("kept", "rejected")]
    shares = [line[heads.index("outliers rejected %")] for line in lines]
    assert shares[0] == ""
    assert float(shares[1]) > 0
    assert lines[0][heads.index("AUROC of the energy %")] == f"{100 * kept['auroc']:.1f}"
    before = RECORD.read_text()
    assert made(Outliers).run("digits", [0])  # nothing is done twice
    assert RECORD.read_text() == before


def test_a_dataset_without_another_to_take_outliers_from_is_refused() -> None:
    with pytest.raises(UsageError, match="Use blood or digits"):
        made(Outliers).run("svhn", [0])
