"""The comparison with probes on the features of an encoder, on pieces of two photographs."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ebpl.errors import UsageError
from ebpl.recommendation import Recommendation
from experiments import photos
from tests.encoders.helpers import crops, small


def folder(part: str = "photos", per_class: int = 24) -> Path:
    """Pieces of a palace and of a flower in class folders; a third of them are for testing."""
    for number, pixels in enumerate(crops(2 * per_class)):
        place = Path(part, "test" if number % 6 < 2 else "train", ("palace", "flower")[number % 2])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return Path(part)


def test_every_way_is_measured_on_the_same_test_images_and_a_record_is_not_made_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    encoder = small().info.name
    arguments = [str(folder()), "--labels", "5", "--seeds", "3", "--encoder", encoder, "--results", "found"]
    assert photos.main(arguments) == 0
    (path,) = Path("found").glob("*.json")
    record = json.loads(path.read_text())
    ways = record["methods"]
    assert set(ways) == {*photos.PROBES, "EBPL on features"}
    assert {way["images"] for way in ways.values()} == {16}
    assert ways["logistic regression"]["accuracy"] > 0.8, "a palace is no flower"
    assert ways["EBPL on features"]["accuracy"] > 0.8
    assert record["settings"]["data.labels_per_class"] == record["labels_per_class"] == 5
    before = path.stat().st_mtime_ns
    capsys.readouterr()
    assert photos.main(arguments) == 0
    assert (path.stat().st_mtime_ns, capsys.readouterr().out) == (before, "")


def test_ways_that_a_record_lacks_are_added_to_it_with_their_settings() -> None:
    chosen = ["--labels", "5", "--seeds", "3", "--encoder", small(size=32).info.name, "--results", "found"]
    short = {"model.components": 8, "optim.updates_per_epoch": 1, "optim.batch_size": 4, "curriculum.epochs": 1}
    arguments = [
        str(folder()),
        *chosen,
        "--set",
        "optim.epochs=1",
        *(f"{name}={value}" for name, value in short.items()),
    ]
    for method in ("features", "fine-tuned"):
        assert photos.main([*arguments, "--methods", method]) == 0
    (path,) = Path("found").glob("*.json")
    record = json.loads(path.read_text())
    assert list(record["methods"]) == list(record["trained"]) == ["EBPL on features", "EBPL fine-tuned"]
    assert record["trained"]["EBPL fine-tuned"]["settings"]["model.fine_tune"] == "all"
    assert record["trained"]["EBPL fine-tuned"]["settings"]["model.components"] == 8


def test_the_way_that_is_recommended_is_trained_and_counted_once_more_under_that_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = small(size=32).info.name
    chosen = ["--labels", "5", "--seeds", "3", "--encoder", encoder, "--results", "found"]
    short = ["--set", "optim.epochs=1", "curriculum.epochs=1", "optim.updates_per_epoch=1", "model.components=8"]
    arguments = [str(folder()), *chosen, *short, "--methods", "recommended"]
    assert photos.main(arguments) == UsageError.exit_code, "it is not the encoder that is recommended"
    assert "leave out --encoder" in capsys.readouterr().err
    monkeypatch.setattr(photos, "DEFAULT", encoder)
    ways = iter(["features", "fine-tuned-end", "best"])
    monkeypatch.setattr(photos, "recommend", lambda *_: Recommendation(next(ways), encoder, 32, "", 10, 0.9, 0.5))
    for seeds in ("3", "3-4"):  # the first is not asked for again
        assert photos.main([*arguments, "--seeds", seeds]) == 0
    records = [json.loads(path.read_text()) for path in sorted(Path("found").glob("*.json"))]
    assert [list(record["methods"]) for record in records] == [[photos.ON_FEATURES], [photos.LAST_BLOCK]]
    assert [record["recommended"]["way"] for record in records] == [photos.ON_FEATURES, photos.LAST_BLOCK]
    found = photos.recorded(Path("found"))
    for each, way in zip(found["photos", 5, photos.RECOMMENDED], (photos.ON_FEATURES, photos.LAST_BLOCK), strict=True):
        assert each == found["photos", 5, way][0]
    assert photos.advised_ways(Path("found")) == {("photos", 5): [photos.ON_FEATURES, photos.LAST_BLOCK]}
    assert photos.main([*arguments, "--seeds", "5"]) == UsageError.exit_code, "best is not among the ways"


def test_an_unlabelled_image_cannot_be_hidden_or_measured(capsys: pytest.CaptureFixture[str]) -> None:
    place = folder()
    (place / "train" / "unlabeled").mkdir()
    Image.fromarray(crops(1)[0]).save(place / "train" / "unlabeled" / "x.png")
    assert photos.main([str(place), "--encoder", small().info.name, "--results", "found"]) != 0
    assert "every image must have a label" in capsys.readouterr().err


def test_features_are_centred_on_the_training_images_and_of_one_length() -> None:
    random = np.random.default_rng(0)
    train, test = (5 + random.normal(size=(count, 7)).astype(np.float32) for count in (50, 9))
    first, second = photos.normalised(train, test)
    for rows in (first, second):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), photos.LENGTH)
    assert np.linalg.norm(first.mean(0)) < 0.2 * photos.LENGTH, "before, all pointed in one direction"


def test_label_spreading_says_nothing_of_images_that_no_label_reaches() -> None:
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(20, 3)), 100 + random.normal(size=(20, 3))])
    labels = np.where(np.arange(40) < 4, np.arange(40) % 2, -1)
    found = photos.label_spreading(rows, labels, rows)
    assert (found[20:] == 0.5).all()
    assert (np.abs(found[:20] - 0.5) > 0.01).any()


def test_probes_learn_from_square_roots_where_those_suit_the_labels_better() -> None:
    random = np.random.default_rng(0)
    truth = np.arange(90) % 3
    even = np.eye(3, 12)[truth] + 0.3 * np.abs(random.normal(size=(90, 12)))
    uneven = even + 20 * random.random((90, 12)) ** 4 * (np.arange(12) >= 9)
    for rows, better in ((even, False), (uneven, True)):
        train, test = rows[:60].astype(np.float32), rows[60:].astype(np.float32)
        first, second, root = photos.suited(train, test, np.where(np.arange(60) < 30, truth[:60], -1))
        expected = photos.normalised(np.sqrt(train), np.sqrt(test)) if better else photos.normalised(train, test)
        assert root == better
        np.testing.assert_allclose(first, expected[0])
        np.testing.assert_allclose(second, expected[1])
