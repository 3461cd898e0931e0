import copy
import csv
import dataclasses
import inspect
import pickle
import tempfile
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

import ebpl
from ebpl import EBPLClassifier
from ebpl.config import fields
from ebpl.errors import DataError, RunError, UsageError
from ebpl.estimator import _NAMED, score
from ebpl.models.predictions import predict
from tests.helpers import blobs

SMALL = {"sgld.steps": 1, "sgld.buffer_size": 128}
STEPS = {"curriculum.steps": 3, "curriculum.epochs": 1}
FEW = {"sgld.chains": 8, "optim.updates_per_epoch": 15}
MINUS_ONE = "labels of -1 and 1 are two classes there; here -1 means unlabelled, as in scikit-learn's own sklearn.semi_\
supervised, which this check leaves out by name"


def tiny(settings: Mapping[str, object] = {}, **parameters: object) -> EBPLClassifier:
    """Trains in about a quarter of a second."""
    chosen = {"preset": "quick", "batch_size": 32, "epochs": 2, "pseudo_labels": "none", **parameters}
    return EBPLClassifier(**chosen, settings={**SMALL, **settings})


@parametrize_with_checks(
    [tiny(image_shape="row", epochs=3, settings=FEW)],
    expected_failed_checks=lambda _: {"check_classifiers_classes": MINUS_ONE},
)
def test_scikit_learn_finds_nothing_wrong_with_it(estimator: EBPLClassifier, check) -> None:
    check(estimator)


def test_the_one_check_that_fails_holds_for_it_as_for_scikit_learns_semi_supervised_classifiers() -> None:
    check_classifiers_classes("SelfTrainingClassifier", tiny(image_shape="row", settings=FEW))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return blobs().train.pixels[..., 0]


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return blobs().train.labels


@pytest.fixture(scope="module")
def fitted(images: np.ndarray, labels: np.ndarray) -> EBPLClassifier:
    names = np.array(["bird", "cat", "dog", None], dtype=object)
    return tiny(STEPS, pseudo_labels="hard").fit(images, names[labels])


def test_it_is_the_training_of_the_command(images: np.ndarray, labels: np.ndarray) -> None:
    settings = {"batch_size": 32, "epochs": 2, "pseudo_labels": "none", "seed": 3}
    data = dataclasses.replace(blobs(), test=None, augment="none")
    model, _ = ebpl.train(data, preset="quick", set=SMALL, run="run", **settings).load_model()
    mine = tiny(random_state=3).fit(images, labels)
    expected = predict(model, data.train.pixels)
    assert (mine.predict_proba(images) == expected.probabilities).all()
    assert (mine.energy(images) == expected.energies).all()
    assert (mine.predict(images) == expected.labels).all()


def test_images_in_any_form_are_the_same_images(images: np.ndarray, fitted: EBPLClassifier) -> None:
    expected = fitted.predict_proba(images)
    rows = images.reshape(len(images), -1)
    for same in (images[..., None], rows, rows.tolist(), images.astype(np.float32), np.asfortranarray(images)):
        assert (fitted.predict_proba(same) == expected).all()
    assert fitted.n_features_in_ == 64
    assert fitted.image_shape_ == (8, 8, 1)


def test_the_scale_of_floats_does_not_matter(images: np.ndarray, labels: np.ndarray) -> None:
    stretched = images.astype(float) - images.min()
    probabilities = [
        tiny().fit(x, labels).predict_proba(x) for x in (stretched, stretched / stretched.max(), stretched * 100 - 7)
    ]
    assert (probabilities[0] == probabilities[1]).all()
    assert (probabilities[0] == probabilities[2]).all()


def test_colour_images_and_rows_of_them(labels: np.ndarray) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (len(labels), 4, 6, 3), dtype=np.uint8)
    by_images = tiny().fit(colour, labels)
    by_rows = tiny(image_shape=(4, 6, 3)).fit(colour.reshape(len(colour), -1), labels)
    assert (by_images.predict_proba(colour) == by_rows.predict_proba(colour)).all()
    with pytest.raises(DataError, match="6 x 4 x 3, but 4 x 6 x 3 is wanted"):
        by_images.predict(colour.transpose(0, 2, 1, 3))


def test_images_are_shifted_unless_they_are_small(labels: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    for side, kind in ((12, "none"), (16, "shift")):
        tiny(epochs=1, settings={"optim.updates_per_epoch": 1}, verbose=True).fit(
            np.zeros((len(labels), side, side)), labels
        )
        assert f"augmentation {kind}" in capsys.readouterr().err


def test_given_labels_never_change_and_the_others_are_predicted(
    images: np.ndarray, labels: np.ndarray, fitted: EBPLClassifier
) -> None:
    given = labels >= 0
    assert fitted.classes_.tolist() == ["bird", "cat", "dog"]
    assert (fitted.transduction_[given] == fitted.classes_[labels[given]]).all()
    assert (fitted.transduction_[~given] == fitted.predict(images[~given])).all()
    assert set(fitted.predict(images)) <= set(fitted.classes_)


def test_it_tells_the_step_in_which_an_image_was_first_labelled(images: np.ndarray, labels: np.ndarray) -> None:
    model = tiny(STEPS, pseudo_labels="hard", run="kept").fit(images, labels)
    assert ((model.labeled_iter_ == 0) == (labels >= 0)).all()
    seen: set[int] = set()
    for step in (1, 2, 3):
        with Path(f"kept/pseudo_labels/step-{step}.csv").open(newline="") as file:
            now = {int(row["image"]) for row in csv.DictReader(file)}
        assert set(np.flatnonzero(model.labeled_iter_ == step)) == now - seen
        seen |= now
    alone = tiny().fit(images, labels)
    assert ((alone.labeled_iter_ == -1) == (labels < 0)).all()


def test_copies_of_a_fitted_one_predict_the_same(images: np.ndarray, fitted: EBPLClassifier) -> None:
    expected = fitted.predict_proba(images), fitted.energy(images)
    joblib.dump(fitted, "model.joblib")
    copies = {
        "pickle": pickle.loads(pickle.dumps(fitted)),  # noqa: S301 - our own
        "deepcopy": copy.deepcopy(fitted),
        "joblib": joblib.load("model.joblib"),
        "joblib, mapped": joblib.load("model.joblib", mmap_mode="r"),
    }
    for name, copied in copies.items():
        assert (copied.predict_proba(images) == expected[0]).all(), name
        assert (copied.energy(images) == expected[1]).all(), name
    with pytest.raises(NotFittedError):
        clone(fitted).predict(images)


def test_a_pickle_holds_no_tensors(fitted: EBPLClassifier) -> None:
    assert b"torch" not in pickle.dumps(fitted)


def test_a_grid_is_searched_through_a_pipeline_scoring_only_labelled_images(
    images: np.ndarray, labels: np.ndarray
) -> None:
    rows = images.reshape(len(images), -1).astype(float)
    pipeline = make_pipeline(StandardScaler(), tiny())
    search = GridSearchCV(pipeline, {"ebplclassifier__epochs": [1, 2]}, cv=2, error_score="raise").fit(rows, labels)
    best = search.best_estimator_
    given = labels >= 0
    right = (best.predict(rows) == labels)[given].mean()
    assert best.score(rows, labels) == pytest.approx(right)
    assert best.score(rows[given], labels[given]) == pytest.approx(right)
    weights = np.where(best.predict(rows) == labels, 1.0, 0.0)
    if weights[given].any():
        assert best[-1].score(best[:-1].transform(rows), labels, sample_weight=weights) == 1


def test_nothing_is_left_behind_but_what_was_asked_for(
    images: np.ndarray, labels: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    tiny(epochs=1).fit(images, labels)
    assert list(Path("temporary").iterdir()) == []
    assert [path.name for path in Path().iterdir()] == ["temporary"]
    kept = tiny(epochs=1, run="kept").fit(images, labels)
    assert ebpl.Run("kept").finished
    with pytest.raises(RunError, match="never overwrites"):
        kept.fit(images, labels)


def test_a_random_state_draws_a_seed_and_a_number_is_one(images: np.ndarray, labels: np.ndarray) -> None:
    def seed(state: object) -> int:
        return tiny(epochs=1, random_state=state).fit(images, labels).settings_.seed

    assert seed(5) == seed(np.int64(5)) == 5
    assert seed(np.random.RandomState(1)) == seed(np.random.RandomState(1)) != seed(np.random.RandomState(2))


def test_every_setting_can_be_given_once(images: np.ndarray, labels: np.ndarray) -> None:
    options = {setting.field.name for setting in fields().values() if setting.is_option}
    parameters = set(inspect.signature(EBPLClassifier).parameters)
    assert parameters & options == {*_NAMED, "method", "device"}
    assert options - parameters == {"labels_per_class", "seed"}, "given by y and by random_state"
    matrix = {"model.precision_matrix": "full"}
    model = tiny(matrix, epochs=1, method="curriculum-labeling").fit(images, labels)
    assert (model.settings_.method, model.settings_.model.precision_matrix) == ("curriculum-labeling", "full")
    assert model.settings_.model.depth == ebpl.preset("quick").model.depth


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"settings": {"epochs": 3}}, "Give epochs to EBPLClassifier by name"),
        ({"settings": {"seed": 3}}, "Give random_state to EBPLClassifier by name"),
        ({"settings": {"optim.epochs": 3}}, "Give epochs to EBPLClassifier by name"),
        ({"settings": {"model.precison_matrix": "full"}}, r"Did you mean model\.precision_matrix"),
        ({"preset": "fast"}, "no preset 'fast'"),
        ({"method": "ebp"}, "Did you mean ebpl"),
        ({"random_state": -1}, "seed is -1"),
        ({"image_shape": "square"}, "image_shape is 'square'"),
    ],
)
def test_wrong_parameters_are_told_when_fitting(
    images: np.ndarray, labels: np.ndarray, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(**parameters).fit(images.reshape(len(images), -1), labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, None), "requires y to be passed"),
        (lambda x, y: (x, y[:-1]), "inconsistent numbers of samples"),
        (lambda x, y: (x, np.full(len(x), -1)), "no image has a label"),
        (lambda x, y: (x, np.where(y == 0, 0, -1)), r"one class \(0\).*-1 means unlabelled"),
        (lambda x, y: (x, y + 0.5), "Unknown label type"),
        (lambda x, y: (x.transpose(1, 2, 0)[None], y), "C of 1 or 3"),
        (lambda x, y: (x.reshape(len(x), -1)[:, :60], y), "no square images"),
        (lambda x, y: (x.astype(complex), y), "Complex data not supported"),
        (lambda x, y: (np.full(x.shape, np.nan), y), "contains NaN"),
    ],
)
def test_wrong_data_is_a_value_error_that_says_what_is_wrong(
    images: np.ndarray, labels: np.ndarray, change, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tiny().fit(*change(images, labels))


def test_nothing_can_be_scored_without_labels(images: np.ndarray, fitted: EBPLClassifier) -> None:
    with pytest.raises(DataError, match="No image has a label"):
        fitted.score(images, np.full(len(images), -1))


def test_the_validation_images_are_set_apart_when_asked(images: np.ndarray) -> None:
    truth = np.arange(len(images)) % 3
    model = tiny(validation_fraction=0.2, run="kept").fit(images, truth)
    assert ebpl.Run("kept").metrics()["chosen"]["by"] == "validation accuracy"
    assert (model.transduction_ == truth).all()


def test_floats_up_to_one_asked_of_a_model_of_bytes_are_warned_about(images: np.ndarray, labels: np.ndarray) -> None:
    whole = (images / images.max() * 255).round().astype(np.uint8)
    model = tiny().fit(whole, labels)
    with pytest.warns(UserWarning, match="from 0 to 255, and these are from 0 to 1"):
        model.predict(whole[:3] / 255)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(whole[:3])
        model.predict(whole[:3].astype(float))


def test_the_documented_scorer_leaves_unlabelled_images_out(images: np.ndarray, labels: np.ndarray) -> None:
    model = tiny().fit(images, labels)
    known = labels != -1
    assert (~known).any()
    predicted = model.predict(images[known])
    assert score(model, images, labels) == pytest.approx(model.score(images, labels))
    balanced = partial(score, metric="balanced_accuracy")
    assert balanced(model, images, labels) == pytest.approx(balanced_accuracy_score(labels[known], predicted))
    found = cross_val_score(tiny(), images, labels, scoring=balanced, cv=2)
    assert ((found >= 0) & (found <= 1)).all()
    with pytest.raises(DataError, match="No image has a label"):
        score(model, images, np.full(len(labels), -1))
