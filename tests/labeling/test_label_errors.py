import numpy as np
import pytest
import torch

import ebpl
import ebpl.labeling.label_errors as judges
from ebpl import recommendation
from ebpl.data.dataset import Images, ImageSet, from_arrays
from ebpl.encoders import EncoderInfo
from ebpl.labeling.label_errors import (
    FOLDS,
    LEAST,
    Labelled,
    cross_validated,
    deal,
    find_label_errors,
    label_errors,
)
from ebpl.runs import Run
from tests.helpers import blobs, quick
from tests.test_recommendation import striped_folder, use_small_encoder

CLASSES = ("a", "b", "c")


def clouds(count: int = 120, seed: int = 0) -> Labelled:
    """Images of noise with features in one cloud a class."""
    random, labels = np.random.default_rng(seed), np.arange(count) % 3
    rows = (np.eye(3)[labels] * 4 + random.normal(size=(count, 3))).astype(np.float32)
    pixels = random.integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)
    return Labelled(Images(pixels, labels), np.arange(count) + 1000, CLASSES, (rows,), "clouds", 0)


def with_labels(known: Labelled, labels: np.ndarray) -> Labelled:
    images = Images(known.images.pixels, labels, known.images.paths)
    return Labelled(images, known.positions, known.classes, known.rows, known.features, known.seed)


def test_exchanged_labels_come_first_with_the_true_class_as_the_suggestion() -> None:
    known = clouds()
    labels = known.images.labels.copy()
    wrong = [3, 31, 62, 90]
    labels[wrong] = (labels[wrong] + 1) % 3
    found = find_label_errors(with_labels(known, labels))
    first = found.errors[: len(wrong)]
    assert {error.index for error in first} == {1000 + i for i in wrong}
    for error in first:
        i = error.index - 1000
        assert (error.given, error.suggested) == (CLASSES[labels[i]], CLASSES[known.images.labels[i]])
        assert error.p_given < error.p_suggested
    assert found.labels == 120
    assert found.accuracy > 0.85
    assert len(found.errors) < 40


def test_no_image_is_judged_by_what_has_seen_its_label() -> None:
    known = clouds(60)
    rows = [torch.eye(60)]  # features by which each image can only be learned by heart
    found = cross_validated(rows, known.images.labels, 0)
    assert found == pytest.approx(np.full((60, 3), 1 / 3), abs=0.05)


def test_folds_have_the_same_number_of_each_class_or_one_more() -> None:
    labels = np.repeat([0, 1, 2], [23, 7, 2])
    part = deal(labels, np.random.RandomState(0))
    for c in range(3):
        counts = np.bincount(part[labels == c], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    assert (deal(labels, np.random.RandomState(1)) != part).any()


def test_copies_with_different_labels_come_first_exact_and_nearly_so() -> None:
    known = clouds()
    pixels = known.images.pixels.copy()
    pixels[11] = pixels[0]
    pixels[22] = np.clip(pixels[3].astype(int) + 2, 0, 255)
    pixels[33] = pixels[30]  # of the same class
    same = Labelled(Images(pixels, known.images.labels), known.positions, CLASSES, known.rows, "clouds", 0)
    found = find_label_errors(same).errors
    assert [(error.image, error.copy) for error in found if error.copy] == [
        (error.image, error.copy) for error in found[:4]
    ]
    assert {frozenset((error.image, error.copy)) for error in found[:4]} == {
        frozenset(("1000", "1011")),
        frozenset(("1003", "1022")),
    }
    assert found[0].copy == found[1].image


def test_flat_images_that_differ_are_no_copies() -> None:
    known = clouds()
    pixels = np.tile(np.arange(120, dtype=np.uint8)[:, None, None, None], (1, 16, 16, 1))
    flat = Labelled(Images(pixels, known.images.labels), known.positions, CLASSES, known.rows, "clouds", 0)
    assert not any(error.copy for error in find_label_errors(flat).errors)


def test_a_class_with_a_single_label_is_not_judged_and_does_not_disturb() -> None:
    known = clouds()
    labels = known.images.labels.copy()
    labels[labels == 2] = 0
    labels[5] = 2
    found = find_label_errors(with_labels(known, labels))
    assert found.labels == 119
    assert 1005 not in [error.index for error in found.errors]


@pytest.mark.parametrize("count", [2, LEAST - 1])
def test_too_few_labels_cannot_be_judged(count: int) -> None:
    known = clouds(count)
    found = find_label_errors(known)
    assert (found.errors, found.labels) == ((), 0)
    assert np.isnan(found.accuracy)


def wrongly_labelled() -> tuple[ImageSet, list[int]]:
    data = blobs(unlabeled=False)
    labels, wrong = data.train.labels.copy(), [4, 50, 101]
    labels[wrong] = (labels[wrong] + 1) % 3
    return from_arrays(data.train.pixels, labels, name="wrong"), wrong


def test_a_run_finds_the_wrong_ones_of_the_labels_that_it_was_trained_on() -> None:
    data, wrong = wrongly_labelled()
    run = ebpl.train(data, quick(pseudo_labels="none", validation_fraction=0.2), run="run")
    found = label_errors(run, data=data)
    assert {error.index for error in found.errors[:3]} == set(wrong)
    assert found.labels == len(data.train), "validation labels are judged too"
    assert "colours and textures" in found.features
    assert label_errors("run", data=data) == found


def test_an_encoder_judges_too_where_it_is_there_and_images_are_not_too_many_or_tiny(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_small_encoder(monkeypatch)
    monkeypatch.setattr(judges, "DEFAULT", recommendation.DEFAULT)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28, 3), np.uint8)
    assert [len(rows) for rows in judges.independent_rows(pixels)] == [6, 6]
    assert len(judges.independent_rows(pixels[:, :20])) == 1
    monkeypatch.setattr(judges, "MOST_ENCODED", 5)
    assert len(judges.independent_rows(pixels)) == 1
    assert len(judges.independent_rows(pixels[:5])) == 2
    monkeypatch.setattr(EncoderInfo, "path", None)
    assert len(judges.independent_rows(pixels[:5])) == 1


def test_labels_that_a_run_does_not_use_are_not_judged() -> None:
    data = blobs(unlabeled=False)
    run = ebpl.train(data, quick(pseudo_labels="none", labels_per_class=6), run="run")
    assert label_errors(run, data=data).labels == 18


def test_a_run_on_an_encoder_asks_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_encoder(monkeypatch)
    run = ebpl.train(striped_folder(labeled=24), preset="features", run="run")
    found = label_errors(run)
    assert found.labels == 24
    assert found.features == f"features of {run.settings.model.encoder}"
    assert found.learning_curve is None
    assert found.more_labels.startswith("What more labels would bring cannot be told from so few.")


def test_the_labels_are_those_of_now_so_what_was_corrected_is_not_listed_again() -> None:
    data, wrong = wrongly_labelled()
    np.savez("wrong.npz", train_images=data.train.pixels, train_labels=data.train.labels)
    run = ebpl.train("wrong.npz", quick(pseudo_labels="none"), run="run")
    assert {error.index for error in label_errors(run).errors[:3]} == set(wrong)
    np.savez("wrong.npz", train_images=data.train.pixels, train_labels=np.arange(len(data.train)) % 3)
    assert not {error.index for error in label_errors(run).errors} & set(wrong)


def test_a_run_whose_images_are_gone_says_so() -> None:
    data, _ = wrongly_labelled()
    run: Run = ebpl.train(data, quick(pseudo_labels="none"), run="run")
    with pytest.raises(ebpl.RunError, match="arrays"):
        label_errors(run)


def test_a_line_of_the_list_has_a_place_for_the_label() -> None:
    known = clouds()
    labels = known.images.labels.copy()
    labels[7] = 0
    error = find_label_errors(with_labels(known, labels)).errors[0]
    row = error.row(1)
    assert list(row) == ["rank", "image", "label", "given", "suggested", "p_given", "p_suggested", "copy"]
    assert (row["rank"], row["image"], row["label"], row["given"], row["suggested"]) == (1, "1007", "", "a", "b")
