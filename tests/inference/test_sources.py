from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.errors import DataError, RunError, UsageError
from ebpl.inference.sources import batches, calibration_images, items_of, label_counts, model_of, read_item
from ebpl.models.predictions import predict
from ebpl.runs import Run
from tests.helpers import blobs, class_folders, quick, random_images, write_png

SHORT = {"epochs": 1, "pseudo_labels": "none", "method": "curriculum-labeling"}


def found(run: Run, given: object = None) -> tuple[int, str, list[str]]:
    images, which, notes = calibration_images([run], run.load_model()[1], given)
    return int(images.labeled.sum()), which, notes


def test_images_of_every_kind_are_given_one_by_one_with_a_name() -> None:
    class_folders(Path("photos"))
    Path("photos/notes.txt").touch()
    skipped = Counter[str]()
    items, where = items_of(["photos", "photos/cats/0.png"], (1, 8, 8), skipped)
    names = [str(each) for each in items]
    assert (len(names), names[-1]) == (15, "photos/cats/0.png")
    assert where == "photos or photos/cats/0.png"
    assert skipped == {".txt": 1}
    items, where = items_of(random_images(2, 8, 8), (1, 8, 8), skipped)
    assert [(name, pixels.shape) for name, pixels in items] == [("0", (8, 8, 1)), ("1", (8, 8, 1))]
    assert where == "an array of shape (2, 8, 8)"
    with pytest.raises(UsageError, match="cannot be given as int"):
        items_of([3], (1, 8, 8), skipped)


def test_batches_are_full_but_for_the_last() -> None:
    assert [len(batch) for batch in batches(iter([Path("a")] * 7), 3)] == [3, 3, 1]


def test_an_image_is_read_or_the_reason_is_told() -> None:
    read = read_item(write_png(Path("a.png"), (16, 8)), (8, 8), True)
    assert not isinstance(read, str)
    assert (read[0].shape, read[1]) == ((8, 8, 1), False)
    assert read_item(Path("gone.png"), (8, 8), True) == "No such file or directory"


def test_promises_are_made_from_test_images_then_from_validation_images_then_not_at_all() -> None:
    class_folders(Path("a/train"), labeled=8)
    class_folders(Path("a/test"), labeled=3, unlabeled=0)
    run = ebpl.train("a", quick(**SHORT), run="tested")
    assert found(run)[:2] == (6, "the run's 6 test images, which are no longer a fair test of this")
    write_png(Path("a/test/cats/0.png"), value=77)
    with pytest.raises(RunError, match=r"have changed since .* --calibration"):
        found(run)
    class_folders(Path("b/train"))
    class_folders(Path("b/val"), labeled=2, unlabeled=0)
    run = ebpl.train("b", quick(**SHORT), run="validated")
    assert found(run) == (4, "the run's 4 validation images, which chose the weights", [])
    run = ebpl.train("a/train", quick(**SHORT, validation_fraction=0.25), run="split")
    assert found(run)[:2] == (4, "the run's 4 validation images, which chose the weights")
    with pytest.raises(DataError, match=r"no test or validation images .* with --calibration"):
        found(ebpl.train("a/train", quick(**SHORT), run="plain"))


def test_labelled_images_may_be_given_and_it_is_told_if_they_were_trained_on() -> None:
    run = ebpl.train(class_folders(Path("photos")), quick(**SHORT), run="run")
    class_folders(Path("new"), labeled=5, unlabeled=0)
    for number, path in enumerate(sorted(Path("new").rglob("*.png"))):
        write_png(path, value=number + 33)
    assert found(run, "new") == (10, "10 labelled images of new", [])
    Path("new/cats/empty.png").touch()
    count, _, notes = found(run, "new")
    assert count == 10
    assert "empty.png" in notes[0]
    count, which, notes = found(run, "photos")
    assert (count, which) == (8, "8 labelled images of photos")
    assert "training" in notes[0]
    images: ImageSet = from_arrays(random_images(6, 8, 8), np.arange(6) % 2, classes=["cats", "dogs"], name="mine")
    assert found(run, images)[:2] == (6, "6 labelled images of mine")
    with pytest.raises(DataError, match="classes the model does not know"):
        found(run, from_arrays(random_images(6, 8, 8), np.arange(6) % 2, classes=["cats", "cows"]))


def test_a_run_of_arrays_asks_for_labelled_images() -> None:
    with pytest.raises(RunError, match=r"trained on arrays.*--calibration"):
        found(ebpl.train(blobs(), quick(**SHORT), run="run"))


def test_a_model_answers_for_another_class_mix_with_the_same_energies() -> None:
    run, pixels = ebpl.train(blobs(), quick(epochs=2, pseudo_labels="none"), run="run"), random_images(6, 8, 8)
    Path("mix.csv").write_text("0,8\n1,1\n2,1\n")
    plain = predict(run.load_model()[0], pixels)
    for wanted, shares in (("mix.csv", [0.8, 0.1, 0.1]), ("balanced", [1 / 3] * 3), ("labels", [1 / 3] * 3)):
        found = predict(model_of(run, wanted)[0], pixels)
        expected = plain.probabilities * shares
        np.testing.assert_allclose(found.probabilities, expected / expected.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(found.energies, plain.energies)
    assert not model_of(run)[0].log_mix.any()
    with pytest.raises(UsageError, match="is estimated in training"):
        model_of(run, "auto")
    with pytest.raises(UsageError, match="must be auto, labels, balanced, or an existing CSV"):
        model_of(run, "gone.csv")


def test_a_run_without_its_label_counts_cannot_answer_for_another_class_mix() -> None:
    run = ebpl.train(blobs(), quick(**SHORT), run="run")
    np.testing.assert_array_equal(label_counts(run, ["0", "1", "2"]), [5, 5, 5])
    with pytest.raises(RunError, match="does not hold how many labels each class had"):
        label_counts(run, ["0", "other"])
    (run.path / "test_metrics.json").unlink()
    with pytest.raises(RunError, match="ebpl resume run"):
        model_of(Run(run.path), "balanced")
