"""Prediction sets with few labels, on pieces of two photographs and on given probabilities."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from ebpl.calibration.conformal import METHODS, calibrate
from ebpl.config.presets import preset
from experiments import coverage
from tests.helpers import blobs, quick


def given(count: int = 300, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.full(classes, 0.5), count)
    return probabilities, np.array([random.choice(classes, p=row) for row in probabilities])


def test_every_way_is_measured_on_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "DRAWS", 3)
    probabilities, labels = given()
    found = coverage.measured(probabilities, labels, 5)
    assert {*METHODS, "lac, semi-supervised", "random-aps, semi-supervised"} <= set(found)
    assert set(found["lac"]) == {"20", "50", "100"}
    assert all(len(rows["coverage"]) == 3 for rows in found["lac"].values())
    order = np.random.default_rng([5, 20, 1]).permutation(300)
    sets = calibrate(probabilities[order[:20]], labels[order[:20]], 0.9)
    inside = sets.contains(probabilities[order[20:]])
    expected = inside[np.arange(280), labels[order[20:]]].mean()
    assert found["lac"]["20"]["coverage"][1] == pytest.approx(expected, abs=1e-5)
    assert found["lac"]["20"]["size"][1] == pytest.approx(inside.sum(1).mean(), abs=1e-4)


def test_sets_of_mapie_are_taken_where_it_is_installed_and_left_out_where_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fake:
        def __init__(self, estimator: object, level: float, **how: object) -> None:
            self.estimator, self.how = estimator, how
            assert level == coverage.COVERAGE

        def conformalize(self, X: np.ndarray, y: np.ndarray) -> "Fake":
            if self.how["conformity_score"] == "raps":
                raise ValueError("too few")
            assert (self.estimator.predict_proba(X) == X).all()
            assert (self.estimator.predict(X) == X.argmax(1)).all()
            return self

        def predict_set(self, X: np.ndarray) -> tuple[None, np.ndarray]:
            return None, (X > 0.1)[:, :, None]

    package, module = types.ModuleType("mapie"), types.ModuleType("mapie.classification")
    module.SplitConformalClassifier = Fake
    package.__spec__ = types.SimpleNamespace(name="mapie")
    monkeypatch.setitem(sys.modules, "mapie", package)
    monkeypatch.setitem(sys.modules, "mapie.classification", module)
    monkeypatch.setattr(coverage, "DRAWS", 1)
    probabilities, labels = given()
    found = coverage.measured(probabilities, labels, 0)
    assert "MAPIE raps" not in found
    order = np.random.default_rng([0, 50, 0]).permutation(300)
    expected = (probabilities[order[50:]] > 0.1).sum(1).mean()
    assert found["MAPIE lac"]["50"]["size"] == [pytest.approx(expected, abs=1e-4)]


def test_a_record_is_made_once_and_probabilities_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coverage, "DRAWS", 1)
    monkeypatch.setattr(coverage, "LABELS", (10,))
    monkeypatch.setattr(coverage, "datasets", lambda _: iter([(blobs(), quick(epochs=1, pseudo_labels="none"))]))
    arguments = ["--seeds", "3", "--results", "found", "--predictions", "kept"]
    assert coverage.main(arguments) == 0
    record = json.loads(Path("found/blobs-seed3.json").read_text())
    assert record["test_images"] == 30
    assert record["settings"]["seed"] == 3
    assert capsys.readouterr().out == f"blobs-seed3 {100 * record['accuracy']:.1f}\n"
    assert coverage.main(arguments) == 0
    assert capsys.readouterr().out == ""
    Path("found/blobs-seed3.json").unlink()
    test = blobs().test
    assert test is not None
    np.save("kept/blobs-seed3.npy", np.eye(3)[test.labels])
    assert coverage.main(arguments) == 0
    assert json.loads(Path("found/blobs-seed3.json").read_text())["accuracy"] == 1


def test_digits_come_first_and_learn_from_ten_labels_a_class() -> None:
    images, settings = next(coverage.datasets([]))
    assert images.name == "digits"
    assert settings == preset("quick", labels_per_class=10, validation_fraction=0.0)
