from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.errors import DataError, UsageError
from tests.helpers import blobs, quick


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ebpl.Run:
    return ebpl.train(blobs(), quick(pseudo_labels="none"), run=tmp_path_factory.mktemp("s") / "run")


def test_only_unlabelled_images_are_suggested_with_what_the_model_says_of_them(run: ebpl.Run) -> None:
    data = blobs()
    found = ebpl.suggest(run, 12, data=data, outliers=True)
    assert len(found) == 12
    index = np.array([suggestion.index for suggestion in found])
    assert not data.train.labeled[index].any()
    model, _ = run.load_model()
    predictions = ebpl.predict(model, data.train.pixels[index])
    assert [s.label for s in found] == [data.classes[i] for i in predictions.labels]
    np.testing.assert_allclose([s.confidence for s in found], predictions.confidences, rtol=1e-4)
    np.testing.assert_allclose([s.energy for s in found], predictions.energies, rtol=1e-3, atol=1e-3)
    assert all(s.second_confidence <= s.confidence for s in found)


def test_images_that_do_not_belong_are_left_out_unless_asked_for(run: ebpl.Run) -> None:
    everything = ebpl.suggest(run, 10_000, data=blobs(), outliers=True)
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
