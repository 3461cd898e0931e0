"""Data that was made imbalanced, and what the class mix is worth on it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ebpl.data.dataset import Images, ImageSet
from ebpl.errors import DataError
from experiments import imbalance
from tests.helpers import blobs, quick


def whole(count: int = 630) -> ImageSet:
    return blobs(count, unlabeled=False)


@pytest.mark.parametrize("kind", imbalance.LABELS)
def test_unlabelled_images_have_the_mix_and_labels_are_of_their_kind(kind: str) -> None:
    data = whole()
    case = imbalance.imbalanced(data, 10, kind, 3)
    train = case.images.train
    np.testing.assert_array_equal(np.bincount(train.labels[train.labeled], minlength=3), case.labels)
    assert sorted(case.mix)[2] / sorted(case.mix)[0] == pytest.approx(10, rel=0.2)
    assert len(np.unique(train.short_digests())) == len(train), "no image twice"
    order = np.argsort(-case.mix)
    counts = case.labels[order].tolist()
    if kind == "balanced":
        assert counts == [10, 10, 10]
    elif kind == "random":
        assert counts == sorted(counts, reverse=True)
    else:
        assert counts[2] / counts[0] == pytest.approx(imbalance.TAIL_HEAVY, rel=0.2)
    again = imbalance.imbalanced(data, 10, kind, 3)
    np.testing.assert_array_equal(again.images.train.labels, train.labels)
    assert case.images.labels_per_class is None


def test_too_few_images_are_an_error() -> None:
    with pytest.raises(DataError, match="too few images for a ratio of 1:5000"):
        imbalance.imbalanced(whole(300), 5000, "balanced", 0)


def test_test_images_count_as_their_class_does() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    probabilities = np.eye(2)[np.zeros(100, int)]
    test = Images(np.zeros((100, 1, 1, 1), np.uint8), labels)
    found = imbalance.measured(probabilities, test, np.array([0.2, 0.8]), 0)
    assert found["accuracy"] == pytest.approx(0.2, abs=0.02)
    assert found["images"] == imbalance.TESTED


def test_the_calibration_error_of_chance_falls_with_the_number_of_images_not_of_draws() -> None:
    random = np.random.default_rng(0)

    def of(images: int) -> float:
        confidences = random.uniform(0.5, 1, images)
        labels = (random.random(images) >= confidences).astype(np.int64)
        test = Images(np.zeros((images, 1, 1, 1), np.uint8), labels)
        mix = np.bincount(labels) / images
        found = imbalance.measured(np.stack([confidences, 1 - confidences], 1), test, mix, 0)
        assert found["ece"] == pytest.approx(found["ece_by_chance"], rel=0.7), "this model is calibrated"
        return found["ece_by_chance"]

    assert of(6400) < 0.02 < 0.05 < of(100)


def test_a_large_benchmark_is_cut_to_the_same_images_every_time() -> None:
    data = whole()
    data = replace(data, test=data.train.take(np.arange(90)))
    cut, again = (imbalance.at_most(data, 100) for _ in range(2))
    assert cut.test is not None
    assert (len(cut.train), len(cut.test)) == (100, 50)
    assert cut.fingerprint() == again.fingerprint() != data.fingerprint()
    assert imbalance.at_most(data, None) is data


def test_equal_classes_have_balanced_labels() -> None:
    assert list(imbalance.cases([1, 10], imbalance.LABELS)) == [
        (1, "balanced"),
        (10, "balanced"),
        (10, "random"),
        (10, "tail-heavy"),
    ]


def test_a_record_holds_what_was_trained_with_every_mix_and_is_made_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, settings = replace(whole(), name="cats"), quick(epochs=2, pseudo_labels="none")
    monkeypatch.setattr(imbalance, "_data", lambda _: iter([(data, settings)]))
    arguments = ["--seeds", "3", "--ratios", "10", "--labels", "balanced", "--results", "found"]
    assert imbalance.main(arguments) == 0
    record = json.loads(Path("found/cats-quick-10-balanced-seed3.json").read_text())
    assert set(record["trained"]) == {"labels", "estimated", "known"}
    assert record["trained"]["known"]["distance"] == pytest.approx(0, abs=1e-4)
    assert record["trained"]["labels"]["distance"] > 0.2
    assert record["trained"]["known"]["shares"] == pytest.approx(record["mix"], abs=1e-4)
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert imbalance.main(arguments) == 0
    assert capsys.readouterr().out == ""


def test_benchmarks_are_learned_from_pixels_with_a_preset() -> None:
    options = type(
        "Options", (), {"datasets": ["digits"], "folders": [], "preset": "quick", "tune": True, "at_most": None}
    )()
    ((images, settings),) = imbalance._data(options)
    assert images.test is not None
    assert settings.data.validation_fraction == 0
    assert len(images.train) + len(images.test) == 1200
