"""A run is trained with everything switched on, and compared with its description."""

import csv
import json
import re
from pathlib import Path

import pytest

import ebpl
from docs.tools import run_files
from docs.tools.records import RECORD
from experiments.results_store import record_of
from tests.encoders.helpers import tiny
from tests.helpers import class_folders, quick

ON_FEATURES = {"training_reconstruction_errors", "reconstruction_error", "class_mix"}
"""Entries and columns of models on the features of an encoder."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ebpl.Run:
    path = tmp_path_factory.mktemp("runs") / "whole"
    settings = quick(
        epochs=1,
        curriculum__steps=1,
        curriculum__reject_outliers=0.9,
        curriculum__calibration_holdout=0.4,
        consistency__weight=1.0,
        runtime__tensorboard=True,
        optim__updates_per_epoch=2,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ebpl.calibration.MIN_HOLDOUT", 1)
        made = ebpl.train("digits", settings, run=path)
    ebpl.report(made)
    ebpl.export(made)
    return made


def columns(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(dict.fromkeys(re.sub(r"p\(.*\)", "p(CLASS)", name) for name in next(csv.reader(file))))


def test_every_file_of_a_run_is_described_and_every_described_one_is_there(run: ebpl.Run) -> None:
    found = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}
    found = {"tensorboard/" if name.startswith("tensorboard/") else name for name in found}
    found = {re.sub(r"epoch-\d+-\w+", "epoch-N-DIGEST", re.sub(r"-\d+\.csv", "-N.csv", name)) for name in found}
    assert found == set(run_files.FILES)


def test_every_column_and_entry_is_described(run: ebpl.Run) -> None:
    assert columns(run.path / "metrics.csv") == list(run_files.METRICS)
    assert columns(run.path / "pseudo_labels/step-1.csv") == list(run_files.PSEUDO_LABELS)
    assert set(json.loads((run.path / "test_metrics.json").read_text())) == set(run_files.RESULT) - ON_FEATURES
    assert set(record_of(run)) == set(RECORD)


def test_the_columns_of_predictions_and_suggestions_are_described(run: ebpl.Run) -> None:
    ebpl.predict(run, class_folders(Path("photos")), "labels.csv", decide="balanced", coverage=0.9)
    usual = [name for name in run_files.PREDICTIONS if name not in {*ON_FEATURES, "disagreement"}]
    assert columns(Path("labels.csv")) == usual
    [suggestion] = ebpl.suggest(run, n=1)
    assert list(suggestion.row(1)) == list(run_files.SUGGESTIONS)
    assert list(ebpl.label_errors(run).errors[0].row(1)) == list(run_files.LABEL_ERRORS)


def test_what_there_is_on_features_of_an_encoder_is_described() -> None:
    short = {"model.components": 2, "optim.epochs": 1, "curriculum.pseudo_labels": "none"}
    photos = class_folders(Path("photos"))
    encoder = tiny(20).info.name
    made, _ = ebpl.train(photos, preset="features", set=short, encoder=encoder, seeds=[0, 1], run="features")
    how = {"coverage": 0.8, "calibration": class_folders(Path("more"), labeled=5)}
    ebpl.predict("features", photos, "labels.csv", decide="balanced", **how)
    assert columns(Path("labels.csv")) == list(run_files.PREDICTIONS)
    assert "training_reconstruction_errors" in made.metrics()
    assert set(run_files.RESULT) > ON_FEATURES & set(made.metrics())
