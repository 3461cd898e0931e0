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
from ebpl.config import Settings, fields
from ebpl.config.presets import PRESETS
from ebpl.encoders import DEFAULT, load_encoder
from ebpl.errors import DataError, RunError, UsageError
from ebpl.estimator import _NAMED, score
from ebpl.models.predictions import predict
from tests.encoders.helpers import small as small_encoder
from tests.encoders.helpers import tiny as tiny_encoder
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


def on_rows(settings: Mapping[str, object] = {}, **parameters: object) -> EBPLClassifier:
    """Both heads on rows of numbers, without pseudo-labels, in about a quarter of a second."""
    chosen = {"preset": "features", "epochs": 1, "pseudo_labels": "none", "image_shape": "row", **parameters}
    return EBPLClassifier(**chosen, settings={**SMALL, **settings})


@parametrize_with_checks(
    [tiny(image_shape="row", epochs=3, settings=FEW), on_rows()],
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


def test_the_class_mix_is_a_parameter_with_the_values_of_the_command(images: np.ndarray, labels: np.ndarray) -> None:
    known = labels[labels >= 0]
    plain = tiny(epochs=1).fit(images, labels)
    assert plain.class_mix_ == pytest.approx(np.bincount(known) / len(known))
    classes = len(plain.classes_)
    Path("mix.csv").write_text("".join(f"{name},{1 + 9 * (name == 0)}\n" for name in range(classes)))
    given = tiny(epochs=1, class_mix=Path("mix.csv")).fit(images, labels)
    assert given.class_mix_ == pytest.approx(np.array([10, *[1] * (classes - 1)]) / (9 + classes))
    assert given.settings_.data.class_mix == "mix.csv"
    before, after = plain.predict_proba(images), given.predict_proba(images)
    assert after[:, 0].mean() > before[:, 0].mean()
    assert tiny(epochs=1, class_mix="auto").fit(images, labels).class_mix_.sum() == pytest.approx(1)
    assert clone(given).class_mix == Path("mix.csv")


def test_every_setting_can_be_given_once(images: np.ndarray, labels: np.ndarray) -> None:
    options = {setting.field.name for setting in fields().values() if setting.is_option}
    parameters = set(inspect.signature(EBPLClassifier).parameters)
    assert parameters & options == {*_NAMED, "method", "device"}
    assert options - parameters == {"labels_per_class", "seed"}, "by y and by random_state"
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
        ({"settings": {"model.encoder": "mobilenet_v2"}}, "Give encoder to EBPLClassifier by name"),
        ({"encoder": "mobilnet_v2"}, "Did you mean mobilenet_v2"),
        ({"encoder": "mobilenet_v2", "image_shape": "row"}, 'takes images, and image_shape="row" says'),
        ({"fine_tune": "all", "image_shape": "row"}, 'takes images, and image_shape="row" says'),
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


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an encoder that takes no time."""
    monkeypatch.delenv("EBPL_CACHE", raising=False)
    return tiny_encoder(8).info.name


def encoded(encoder: str | None, **parameters: object) -> EBPLClassifier:
    """Trains on the features of an encoder in about a second."""
    few = {**SMALL, "curriculum.epochs": 2}
    return EBPLClassifier(**{"encoder": encoder, "epochs": 1, "settings": few, **parameters})


def test_with_an_encoder_it_is_the_training_of_the_command(
    encoder: str, images: np.ndarray, labels: np.ndarray
) -> None:
    data = dataclasses.replace(blobs(), test=None, augment="none")
    settings = {"epochs": 1, "encoder": encoder, "seed": 3}
    run = ebpl.train(data, preset="features", set={**SMALL, "curriculum.epochs": 2}, run="run", **settings)
    model, _ = run.load_model()
    mine = encoded(encoder, random_state=3).fit(images, labels)
    assert mine.settings_ == run.settings
    expected = predict(model, data.train.pixels)
    assert (mine.predict_proba(images) == expected.probabilities).all()
    assert (mine.energy(images) == expected.energies).all()


@pytest.mark.parametrize("shape", [(24, 24), (50, 20), (20, 50, 3), (32, 32, 3)])
def test_an_encoder_takes_images_of_any_size(encoder: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    truth = np.arange(60) % 2
    images = random.integers(0, 80, (60, *shape), dtype=np.uint8)
    images[truth == 1] += 120
    model = encoded(encoder).fit(images, np.where(np.arange(60) < 10, truth, -1))
    assert model.image_shape_ == (*shape, 1)[:3]
    assert model.score(images, truth) > 0.9


def test_an_encoder_that_learns_has_its_own_preset_where_that_of_features_is_named() -> None:
    for given in (None, "features", "fine-tuned"):
        chosen = EBPLClassifier(preset=given, fine_tune="all", random_state=0)._chosen_settings()
        assert (chosen.model.fine_tune, chosen.consistency) == ("all", ebpl.preset("fine-tuned").consistency)
    end = EBPLClassifier(fine_tune="end", random_state=0)._chosen_settings()
    assert end.optim == ebpl.preset("fine-tuned-end").optim


def test_a_fine_tuned_encoder_is_part_of_the_copies(images: np.ndarray, labels: np.ndarray) -> None:
    few = {"optim.updates_per_epoch": 1, "consistency.batch_size": 4, "curriculum.epochs": 1, "sgld.buffer_size": 64}
    how = {"encoder": small_encoder(size=32).info.name, "fine_tune": "last", "epochs": 1, "batch_size": 4}
    fitted = EBPLClassifier(settings={"model.components": 8, **few}, **how).fit(images, labels)
    assert fitted.settings_.consistency == ebpl.preset("fine-tuned", {"consistency.batch_size": 4}).consistency
    Path("mine.toml").unlink()
    copied = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own
    assert (copied.predict_proba(images) == fitted.predict_proba(images)).all()


def test_copies_of_one_with_an_encoder_predict_the_same(encoder: str, images: np.ndarray, labels: np.ndarray) -> None:
    fitted = encoded(encoder).fit(images, labels)
    dumped = pickle.dumps(fitted)
    assert b"torch" not in dumped
    for copied in (pickle.loads(dumped), copy.deepcopy(fitted)):  # noqa: S301 - our own
        assert (copied.predict_proba(images) == fitted.predict_proba(images)).all()
        assert (copied.energy(images) == fitted.energy(images)).all()
    assert clone(fitted).get_params() == fitted.get_params()
    tiny_encoder(9)  # another one in the same file
    with pytest.raises(RunError, match="another encoder"):
        pickle.loads(dumped).predict(images)  # noqa: S301 - our own


def test_an_encoder_comes_with_its_preset_unless_another_is_given(encoder: str) -> None:
    def chosen(**parameters: object) -> Settings:
        return EBPLClassifier(device="cpu", **parameters)._chosen_settings()

    features, quick = (ebpl.preset(name, device="cpu", encoder=encoder) for name in ("features", "quick"))
    assert chosen(encoder=encoder) == features
    assert chosen(encoder=encoder, preset="quick") == quick
    assert chosen() == ebpl.preset("quick", device="cpu")
    assert chosen(preset="features").model.encoder == DEFAULT


def test_every_preset_is_in_the_docstring() -> None:
    assert EBPLClassifier.__doc__ is not None
    (listed,) = [line for line in EBPLClassifier.__doc__.splitlines() if '"paper"' in line]
    assert [name for name in PRESETS if f'"{name}"' not in listed] == []


def rows_and_labels(count: int = 300, columns: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three classes, which are told apart by one direction in which numbers differ by a thousandth."""
    random = np.random.default_rng(seed)
    truth = np.arange(count) % 3
    rows = random.normal(size=(count, columns)) * 1e-4
    rows[:, 0] += np.array([-1e-3, 0, 1e-3])[truth]
    rows[:, 1] += np.array([0, 1e-3, 0])[truth]
    rows[0] += 1  # one that is far away, so that all others are nearly the same in 256 levels
    return rows + 1, truth


def test_rows_are_learned_from_in_all_their_digits() -> None:
    rows, truth = rows_and_labels()
    few = np.where(np.arange(len(truth)) < 30, truth, -1)
    model = on_rows().fit(rows, few)
    assert model.score(rows[30:], truth[30:]) > 0.95
    assert tiny(image_shape="row").fit(rows, few).score(rows[30:], truth[30:]) < 0.6, "in 256 levels it cannot be told"


def test_both_heads_of_rows_start_from_logistic_regression() -> None:
    rows, truth = rows_and_labels()
    model = on_rows(learning_rate=0.0).fit(rows, np.where(np.arange(len(truth)) < 30, truth, -1))
    assert (model.settings_.model.encoder, model.settings_.model.backbone) == (None, "rows")
    assert model.score(rows[30:], truth[30:]) > 0.95


def test_floats_without_an_image_shape_are_features_and_bytes_are_images(labels: np.ndarray) -> None:
    random = np.random.default_rng(0)
    floats = random.normal(size=(len(labels), 36))
    model = on_rows(image_shape=None).fit(floats, labels)
    assert (model.image_shape_, model.settings_.model.backbone) == ((1, 36, 1), "rows")
    assert (model.predict_proba(floats) == on_rows().fit(floats, labels).predict_proba(floats)).all()
    assert on_rows(image_shape=None)._rows(floats.astype(np.uint8), reset=True).shape == (len(labels), 36)
    whole = on_rows(image_shape=None)
    whole._rows(np.abs(floats * 10).astype(np.uint8), reset=True)
    assert (whole.image_shape_, whole.scale_ is None) == ((6, 6, 1), False)


def test_copies_of_one_on_rows_predict_the_same(labels: np.ndarray) -> None:
    rows = np.random.default_rng(0).normal(size=(len(labels), 7))
    fitted = on_rows({"curriculum.epochs": 2}, pseudo_labels="soft").fit(rows, labels)
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own
    assert (again.predict_proba(rows) == fitted.predict_proba(rows)).all()
    assert (again.energy(rows) == fitted.energy(rows)).all()


def test_the_run_of_rows_takes_no_images_and_is_not_exported(labels: np.ndarray) -> None:
    rows = np.random.default_rng(0).normal(size=(len(labels), 7))
    on_rows(run="kept").fit(rows, labels)
    with pytest.raises(DataError, match="takes no images"):
        ebpl.predict("kept", np.full((2, 5, 7, 1), 3, np.uint8))
    with pytest.raises(UsageError, match="takes rows of numbers"):
        ebpl.export("kept")


def test_rows_that_do_not_fit_into_32_bits_are_an_error(labels: np.ndarray) -> None:
    with pytest.raises(DataError, match="too large for 32 bits"):
        on_rows().fit(np.full((len(labels), 4), 1e300), labels)


def test_rows_of_an_encoders_features_give_what_the_encoder_gives(
    encoder: str, images: np.ndarray, labels: np.ndarray
) -> None:
    features = load_encoder(encoder).encode(images[..., None])
    rows = encoded(None, preset="features", image_shape="row").fit(features, labels)
    whole = encoded(encoder).fit(images, labels)
    assert (rows.predict_proba(features) == whole.predict_proba(images)).all()
    assert (rows.energy(features) == whole.energy(images)).all()


def test_prediction_sets_hold_the_true_class_as_often_as_promised() -> None:
    random, names = np.random.default_rng(0), np.array(["bright", "dark"])
    labels = np.arange(340) % 2
    images = random.normal(0, 1, (340, 8, 8)) + 0.12 * (1 - labels)[:, None, None]
    y = np.where(np.arange(340) < 40, names[labels], "")
    model = tiny(epochs=8).fit(images[:60], y[:60])
    calibration = (images[60:160], np.where(np.arange(100) < 80, names[labels[60:160]], ""))
    new, truth = images[160:], labels[160:]
    for how in ({}, {"by_class": True, "method": "random-aps"}, {"semi_supervised": True}):
        sets = model.predict_set(new, calibration, coverage=0.8, **how)
        assert sets.shape == (180, 2)
        assert sets[np.arange(180), truth].mean() == pytest.approx(0.8, abs=0.12)
    with pytest.raises(DataError, match="needs at least 9 labels"):
        model.predict_set(new, (images[:4], names[labels[:4]]))
    with pytest.raises(DataError, match="classes the model does not know: blue"):
        model.predict_set(new, (images[:4], ["blue", "dark", "dark", "dark"]))
    only = (images[60:160], np.where(labels[60:160] == 1, "dark", ""))
    with pytest.warns(UserWarning, match="always in the set is bright"):
        assert model.predict_set(new, only, by_class=True)[:, 0].all()
