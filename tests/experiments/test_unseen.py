"""Scores on images of another kind, on pieces of two photographs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ebpl.data.sklearn_input import packed
from ebpl.models import Architecture
from experiments import unseen
from tests.encoders.helpers import photographs, small

OF_MODELS = {"confidence", "energy", "reconstruction error"}
OF_FEATURES = {"Mahalanobis distance", "relative Mahalanobis distance", "nearest neighbours"}


def folder(photograph: int) -> Path:
    """Pieces of one photograph: above its middle, and below it."""
    random, pixels = np.random.default_rng(photograph), photographs()[photograph]
    for number in range(60):
        row, column = 160 * (number % 2) + random.integers(0, 100), random.integers(0, 560)
        part, kind = "test" if number % 6 < 2 else "train", ("above", "below")[number % 2]
        place = Path(f"photograph{photograph}", part, kind)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[row : row + 64, column : column + 64]).save(place / f"{number}.png")
    return Path(f"photograph{photograph}")


def test_a_palace_is_unseen_for_a_model_of_flowers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(folder(0)), str(folder(1)), "--seeds", "3", "--encoder", small().info.name, "--results", "found"]
    assert unseen.main(arguments) == 0
    records = [json.loads(path.read_text()) for path in sorted(Path("found").glob("*.json"))]
    assert [each["data"]["name"] for each in records] == ["photograph0", "photograph1"]
    for each, other in zip(records, ("photograph1", "photograph0"), strict=True):
        assert set(each["auroc"]) == OF_MODELS | OF_FEATURES
        assert all(list(values) == [other] for values in each["auroc"].values())
        assert each["auroc"]["reconstruction error"][other] > 0.9
        assert set(each["flagged"]["reconstruction error"]) == {"photograph0", "photograph1"}
    capsys.readouterr()
    assert unseen.main(arguments) == 0  # no record is made twice
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_fine_tuned_encoder_is_measured_on_some_of_the_pixels() -> None:
    folders, encoder = [str(folder(0)), str(folder(1))], small(size=32).info.name
    more = ["--fine-tune", "end", "--at-most", "8", "--seeds", "3", "--encoder", encoder, "--results", "found"]
    assert unseen.main([*folders, *more]) == 0
    (path,) = Path("found").glob("photograph0-*")
    assert path.stem.endswith("-fine-tuned-end-seed3")
    record = json.loads(path.read_text())
    assert record["settings"]["model.fine_tune"] == "end"
    assert set(record["auroc"]) == OF_MODELS
    assert record["flagged"]["energy"]["photograph1"] * 7 == pytest.approx(
        round(record["flagged"]["energy"]["photograph1"] * 7)
    )


def test_one_folder_is_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert unseen.main(["photos"]) == 2
    assert "at least two folders" in capsys.readouterr().err


def test_scores_are_high_for_rows_of_another_kind() -> None:
    random = np.random.default_rng(0)
    centers, labels = 4 * random.normal(size=(3, 6)), np.arange(90) % 3
    own = (centers[labels] + random.normal(size=(90, 6))) @ random.normal(size=(6, 30))
    rows = own + 0.1 * random.normal(size=own.shape)
    others = torch.from_numpy(random.normal(size=(40, 30))).float()
    model = Architecture("rows", (1, 5, 30), 3, "diagonal", {"components": 6}).build()
    model.initialise(torch.Generator().manual_seed(0))
    train = model.features.prepare(packed(rows))
    model.features.fit(train)
    found = unseen.scores(model, train, np.where(np.arange(90) < 30, labels, -1))
    assert set(found) == OF_FEATURES
    assert unseen.auroc(found["nearest neighbours"](train), found["nearest neighbours"](others)) > 0.95


def test_the_auroc_is_how_often_the_other_kind_has_the_higher_score() -> None:
    assert unseen.auroc(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 1
    assert unseen.auroc(np.array([0.0, 2.0]), np.array([1.0, 3.0])) == 0.75
