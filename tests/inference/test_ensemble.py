import csv
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.cli import main
from ebpl.errors import DataError, RunError
from ebpl.inference.ensemble import Ensemble, disagreement, members_of
from ebpl.models.predictions import predict
from ebpl.runs import Run
from tests.helpers import blobs, class_folders, quick, random_images

SHORT = {"epochs": 2, "pseudo_labels": "none"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    class_folders(folder / "photos" / "train")
    class_folders(folder / "photos" / "test", labeled=12, unlabeled=0)
    ebpl.train(folder / "photos", quick(**SHORT), seeds=[0, 1, 2], run=folder / "three")
    return folder


@pytest.fixture
def three(trained: Path) -> Path:
    shutil.copytree(trained / "photos", "photos")
    return Path(shutil.copytree(trained / "three", "three"))


def test_probabilities_are_the_mean_of_those_of_the_seeds(three: Path) -> None:
    pixels = random_images(7, 8, 8, 1)
    model = Ensemble(members_of(three))
    alone = [predict(run.load_model()[0], pixels) for run in model.runs]
    found = model.predict(pixels)
    assert len(model.runs) == 3
    assert found.probabilities == pytest.approx(np.mean([each.probabilities for each in alone], axis=0))
    assert found.energies == pytest.approx(np.mean([each.energies for each in alone], axis=0))
    assert found.disagreement == pytest.approx(disagreement(np.stack([each.probabilities for each in alone])))
    single = Ensemble(members_of(three / "seed-1")).predict(pixels)
    assert (single.probabilities == alone[1].probabilities).all()
    assert single.disagreement is None


def test_disagreement_is_none_where_all_say_the_same_and_most_where_each_is_sure_of_another_class() -> None:
    same = np.tile(np.array([[0.7, 0.2, 0.1], [1, 0, 0]]), (4, 1, 1))
    assert disagreement(same) == pytest.approx([0, 0])
    assert disagreement(np.eye(3)[:, None]) == pytest.approx([np.log(3)])
    some = np.array([[[0.9, 0.1]], [[0.6, 0.4]]])

    def entropy(p: float) -> float:
        return float(-p * np.log(p) - (1 - p) * np.log(1 - p))

    assert disagreement(some) == pytest.approx([entropy(0.75) - (entropy(0.9) + entropy(0.6)) / 2])


def test_an_outlier_is_one_for_most_seeds(three: Path) -> None:
    pixels = random_images(40, 8, 8, 1)
    model = Ensemble(members_of(three), outlier_quantile=0.5)
    votes = [Ensemble([run], outlier_quantile=0.5).predict(pixels).outliers for run in model.runs]
    found = model.predict(pixels).outliers
    assert found is not None
    assert found.tolist() == [sum(each) >= 2 for each in np.transpose(votes)]


def test_a_folder_of_seeds_is_predicted_together(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "three", "photos", "--output", "a.csv", "--label-outliers"]) == 0
    with Path("a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:5] == ["image", "label", "confidence", "disagreement", "energy"]
    assert all(float(row["disagreement"]) >= 0 for row in rows)
    told = capsys.readouterr().err
    assert (
        "how many are right was not measured: a run records only its own predictions, not those of an ensemble" in told
    )
    assert "To measure it: ebpl evaluate three LABELLED_IMAGES" in told
    python = ebpl.predict("three", "photos", label_outliers=True)
    assert [row["label"] for row in python] == [row["label"] for row in rows]
    means = [ebpl.predict(f"three/seed-{seed}", "photos") for seed in (0, 1, 2)]
    assert python[0]["p(cats)"] == pytest.approx(np.mean([each[0]["p(cats)"] for each in means]))
    balanced = ebpl.predict("three", "photos", decide="balanced", label_outliers=True)
    assert {row["decision"] for row in balanced} <= {"cats", "dogs"}


def test_seeds_that_are_not_finished_are_left_out_and_named(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    (three / "seed-1" / "test_metrics.json").unlink()
    with caplog.at_level(logging.WARNING, "ebpl"):
        assert [run.settings.seed for run in members_of(three)] == [0, 2]
    assert "left out: seed 1" in caplog.text
    for seed in (0, 2):
        (three / f"seed-{seed}" / "test_metrics.json").unlink()
    with pytest.raises(RunError, match=r"No seed in three is finished\. Continue with: ebpl resume three"):
        members_of(three)


def test_runs_of_other_classes_do_not_answer_together(three: Path) -> None:
    other = ebpl.train(blobs(), quick(**SHORT), run="other")
    with pytest.raises(RunError, match="different classes or image sizes"):
        Ensemble([Run(three / "seed-0"), other])


def test_the_ensemble_is_evaluated_beside_its_seeds(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ebpl.evaluate("three", coverage=0.8)
    test = ebpl.load("photos", image_size=8).test
    assert test is not None
    answers = Ensemble(members_of(three)).predict(test.pixels)
    expected = ebpl.measure(answers.probabilities, test.labels)
    assert found["ensemble"]["metrics"] == pytest.approx(expected)
    assert found["ensemble"]["prediction_sets"]["images"] == 24
    assert main(["evaluate", "three", "--coverage", "0.8", "--json", "a.json"]) == 0
    told = capsys.readouterr().out
    assert "ensemble" in told
    assert "Prediction sets for a coverage of 80 % (lac)" in told
    stored = json.loads(Path("a.json").read_text())["ensemble"]
    assert stored["metrics"]["accuracy"] == expected["accuracy"]


def test_a_single_finished_seed_is_no_ensemble(three: Path) -> None:
    for seed in (1, 2):
        shutil.rmtree(three / f"seed-{seed}")
    assert "ensemble" not in ebpl.evaluate("three")
    assert "disagreement" not in ebpl.predict("three", "photos")[0]


def test_promises_of_seeds_are_made_from_test_images_that_none_has_learned_from(three: Path) -> None:
    rows = ebpl.predict("three", "photos", coverage=0.8)
    assert all(set(row["set"]) <= {"cats", "dogs"} for row in rows)
    plain = ebpl.train(class_folders(Path("plain")), quick(**SHORT), seeds=[0, 1], run="plain-seeds")
    with pytest.raises(DataError, match=r"no test or validation images to make promises from.*--calibration"):
        ebpl.predict(plain[0].path.parent, "plain", coverage=0.8)
