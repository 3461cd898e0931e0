import json
from pathlib import Path

import numpy as np
import pytest

from ebpl.data.dataset import ImageSet
from experiments import label_errors
from experiments.label_errors import KINDS, confusions, exchanged, found, judged_plainly, main, relabelled, some
from tests.helpers import blobs
from tests.test_recommendation import striped_folder, use_small_encoder


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_errors, "COUNTS", (20,))
    monkeypatch.setattr(label_errors, "FEW_COUNTS", (20,))
    monkeypatch.setattr(label_errors, "BENCHMARKS", ("blobs",))
    monkeypatch.setattr(label_errors, "load", lambda name, **_: blobs(300, unlabeled=False))


@pytest.mark.parametrize("kind", KINDS)
def test_exactly_five_in_a_hundred_labels_are_exchanged_each_for_another_class(kind: str) -> None:
    labels, confused = np.arange(200) % 4, np.array([1, 0, 3, 2])
    wrong, at = exchanged(labels, kind, confused, seed=0)
    assert len(at) == 10
    assert set(np.flatnonzero(wrong != labels)) == set(at)
    if kind == "confusable":
        assert (wrong[at] == confused[labels[at]]).all()
    assert (exchanged(labels, kind, confused, seed=1)[1] != at).any()


def test_no_class_is_confused_with_itself() -> None:
    known = judged_plainly(blobs(unlabeled=False), 0)
    assert (confusions(known) != np.arange(3)).all()


def test_what_is_found_is_counted_in_the_first_tenth_of_the_list() -> None:
    data: ImageSet = some(blobs(300, unlabeled=False), 40, 0)
    labels, wrong = exchanged(data.train.labels, "random", np.zeros(3, np.int64), 0)
    measured = found(judged_plainly(relabelled(data, labels), 0), wrong)
    assert (measured["labels"], measured["exchanged"], measured["first"]) == (120, 6, measured["first"])
    assert measured["first"] <= 12
    assert measured["found"] == 6, "blobs are easy"


def test_a_record_is_written_for_each_dataset_and_seed_and_kept() -> None:
    assert main(["--seeds", "0", "--results", "here"]) == 0
    path = Path("here/blobs-plain-seed0.json")
    rows = json.loads(path.read_text())["rows"]
    assert [row["kind"] for row in rows] == list(KINDS)
    assert {row["features"] for row in rows} == {"plain"}
    path.write_text("mine")
    assert main(["--seeds", "0", "--results", "here"]) == 0
    assert path.read_text() == "mine"


def test_photographs_are_judged_by_an_encoder_and_their_curves_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from ebpl.config.presets import PRESETS

    use_small_encoder(monkeypatch)
    encoder = PRESETS["features"]["model.encoder"]
    monkeypatch.setattr(label_errors, "ENCODER", encoder)
    monkeypatch.setattr(label_errors, "CURVES", (2, 16))
    monkeypatch.setattr(label_errors, "MORE", 4)
    folder = striped_folder(labeled=90, unlabeled=0)
    judged = list(label_errors.of_photographs(folder, 0))
    assert [row["kind"] for row in judged] == list(KINDS)
    assert judged[0]["labels"] == 60
    (row,) = label_errors.curves(folder, 0)
    assert (row["labels_per_class"], row["labels"], row["more"]) == (16, 32, 4)
    assert len(row["interval"]) == 2
