from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebpl
from ebpl.errors import DataError, UsageError
from ebpl.labeling import choose, uncertainty
from ebpl.models.predictions import predict
from tests.helpers import blobs, class_folders, quick, write_png


def posteriors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(4), count)


def test_the_doubt_is_largest_between_two_equal_classes_and_none_where_one_is_certain() -> None:
    assert uncertainty(np.array([[0.5, 0.5, 0], [0, 1, 0], [0.4, 0.3, 0.3]])) == pytest.approx([1, 0, 0.9])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 3))
def test_so_many_different_images_are_chosen_most_uncertain_first(images: int, count: int, seed: int) -> None:
    probabilities = posteriors(images, seed)
    features = np.random.default_rng(seed).normal(size=(images, 5)).astype(np.float32)
    chosen = choose(probabilities, features, count, seed)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, images)
    assert (np.diff(uncertainty(probabilities)[chosen]) <= 0).all()


def test_only_allowed_images_are_chosen() -> None:
    allowed = np.arange(30) % 3 == 0
    chosen = choose(posteriors(30), np.eye(30, 6, dtype=np.float32), 20, allowed=allowed)
    assert len(chosen) == 10
    assert allowed[chosen].all()


def test_images_that_are_all_alike_are_no_trouble() -> None:
    assert len(choose(posteriors(40), np.zeros((40, 3), np.float32), 5)) == 5


def test_one_kind_of_doubt_is_not_labelled_over_and_over() -> None:
    # thirty images of one kind the model is most unsure of, and five other kinds a little less
    kinds = np.repeat(np.arange(6), [30, 5, 5, 5, 5, 5])
    doubt = np.where(kinds == 0, 0.5, 0.55)
    probabilities = np.column_stack([doubt, 1 - doubt])
    features = 10 * np.eye(6, dtype=np.float32)[kinds] + np.random.default_rng(0).normal(0, 0.1, (55, 6)).astype("f4")
    assert set(kinds[choose(probabilities, features, 6)]) == set(range(6))
    by_doubt_alone = np.argsort(-uncertainty(probabilities), kind="stable")[:6]
    assert set(kinds[by_doubt_alone]) == {0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ebpl.Run:
    return ebpl.train(blobs(), quick(pseudo_labels="none"), run=tmp_path_factory.mktemp("s") / "run")


def test_only_unlabelled_images_are_suggested_with_what_the_model_says_of_them(run: ebpl.Run) -> None:
    data = blobs()
    found = ebpl.suggest(run, 12, data=data, with_outliers=True)
    assert len(found) == 12
    index = np.array([suggestion.index for suggestion in found])
    assert not data.train.labeled[index].any()
    model, _ = run.load_model()
    predictions = predict(model, data.train.pixels[index])
    assert [s.guess for s in found] == [data.classes[i] for i in predictions.labels]
    np.testing.assert_allclose([s.confidence for s in found], predictions.confidences, rtol=1e-4)
    np.testing.assert_allclose([s.energy for s in found], predictions.energies, rtol=1e-3, atol=1e-3)
    assert all(s.second_confidence <= s.confidence for s in found)


def test_images_that_do_not_belong_are_left_out_unless_asked_for(run: ebpl.Run) -> None:
    everything = ebpl.suggest(run, 10_000, data=blobs(), with_outliers=True)
    usual = ebpl.suggest(run, 10_000, data=blobs(), outlier_quantile=0.5)
    assert 0 < len(usual) < len(everything) == int((~blobs().train.labeled).sum())
    assert max(s.energy for s in usual) < max(s.energy for s in everything)


def test_the_same_run_gives_the_same_suggestions(run: ebpl.Run) -> None:
    assert ebpl.suggest(run, 7, data=blobs()) == ebpl.suggest(run, 7, data=blobs())


def test_what_cannot_be_done_is_said(run: ebpl.Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        ebpl.suggest(run, 0, data=blobs())
    labelled = blobs(unlabeled=False)
    other = ebpl.train(
        labelled, quick(pseudo_labels="none", epochs=1, method="curriculum-labeling"), run=tmp_path / "r"
    )
    with pytest.raises(DataError, match="no unlabelled images"):
        ebpl.suggest(other, data=labelled)


def test_the_pool_is_the_folder_as_it_is_now(caplog: pytest.LogCaptureFixture) -> None:
    class_folders(Path("photos"), unlabeled=6)
    run = ebpl.train("photos", quick(pseudo_labels="none", epochs=1), run="run")
    assert len(ebpl.suggest(run, with_outliers=True)) == 6
    assert "have changed" not in caplog.text
    write_png(Path("photos/unlabeled/large.png"), size=(40, 70), mode="RGB")  # neither gray nor of the model's size
    Path("photos/unlabeled/0.png").unlink()
    Path("photos/cats/0.png").rename("photos/unlabeled/again.png")
    write_png(Path("photos/birds/0.png"))  # a class that the model does not know
    found = ebpl.suggest(run, with_outliers=True)
    assert {each.image for each in found} == {
        f"unlabeled/{name}.png" for name in ("1", "2", "3", "4", "5", "large", "again")
    }
    assert (
        "The images or labels of photos have changed since training. Its 7 current unlabelled images are used."
        in caplog.text
    )
    expected = {row["image"]: row["confidence"] for row in ebpl.predict(run, "photos/unlabeled")}
    assert {f"photos/{each.image}": each.confidence for each in found} == pytest.approx(expected, abs=1e-5)


def test_a_damaged_file_in_the_pool_is_an_error_or_left_out() -> None:
    class_folders(Path("photos"), unlabeled=3)
    run = ebpl.train("photos", quick(pseudo_labels="none", epochs=1), run="run")
    Path("photos/unlabeled/empty.png").touch()
    with pytest.raises(DataError, match=r"(?s)empty\.png.*--skip-unreadable"):
        ebpl.suggest(run)
    assert len(ebpl.suggest(run, skip_unreadable=True, with_outliers=True)) == 3


def test_images_of_another_size_are_no_pool_for_the_model(run: ebpl.Run) -> None:
    images = np.zeros((4, 9, 8), np.uint8)
    with pytest.raises(DataError, match=r"are 8 x 9 pixels .* now, the model was trained on 8 x 8"):
        ebpl.suggest(run, data=ebpl.from_arrays(images, [0, 1, -1, -1]))


def test_the_limit_of_outliers_is_a_share(run: ebpl.Run) -> None:
    with pytest.raises(UsageError, match="outlier_quantile is 99, but must be a number from 0 to 1"):
        ebpl.suggest(run, data=blobs(), outlier_quantile=99)
