import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import LedoitWolf

from ebpl.data.sklearn_input import packed
from ebpl.models import Architecture, HybridModel
from ebpl.models.outliers import (
    FOLDS,
    OutlierLimit,
    belonging,
    cross_validated_distances,
    fit_detector,
    outlier_limit,
)
from ebpl.models.predictions import Predictions, predict
from tests.helpers import architecture


def classes(count: int, dimension: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes of a common, uneven spread."""
    random, shape = np.random.default_rng(seed), np.random.default_rng(9)
    labels = np.arange(count) % 3
    spread, middle = shape.normal(size=(dimension, dimension)), shape.normal(size=(3, dimension)) * 6
    return (middle[labels] + random.normal(size=(count, dimension)) @ spread).astype(np.float32), labels


def test_the_distance_is_mahalanobis_to_the_nearest_class() -> None:
    features, labels = classes(40)
    means = np.stack([features[labels == c].astype(float).mean(0) for c in range(3)])
    precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(features - means[labels]).covariance_)
    others, _ = classes(20, seed=1)
    expected = cdist(others, means, "mahalanobis", VI=precision).min(1) ** 2
    np.testing.assert_allclose(fit_detector(features, labels).distances(others), expected, rtol=1e-5)


def test_labels_of_any_numbers_will_do() -> None:
    features, labels = classes(30)
    renamed = np.array([7, 2, 100])[labels]
    np.testing.assert_allclose(
        fit_detector(features, labels).distances(features), fit_detector(features, renamed).distances(features)
    )


def test_what_belongs_is_told_from_what_does_not() -> None:
    features, labels = classes(60)
    more, _ = classes(300, seed=2)
    strange = np.random.default_rng(3).normal(size=(100, 5)) * 60
    own, known = cross_validated_distances(features, labels), fit_detector(features, labels)
    kept = belonging(known.distances(np.concatenate([more, strange])), own, 0.99)
    assert kept[:300].mean() > 0.9
    assert kept[300:].mean() < 0.1


def test_a_labelled_image_is_judged_by_the_others_alone() -> None:
    features, labels = classes(12)
    found = cross_validated_distances(features, labels)
    for i in range(12):
        rest = np.arange(12) != i
        alone = fit_detector(features[rest], labels[rest]).distances(features[i : i + 1])
        np.testing.assert_allclose(found[i], alone[0], rtol=1e-6)
    assert (found > fit_detector(features, labels).distances(features)).all()


def test_many_labelled_images_are_judged_in_groups() -> None:
    features, labels = classes(4 * FOLDS)
    found = cross_validated_distances(features, labels)
    assert found.shape == (4 * FOLDS,)
    assert (found > 0).all()
    assert np.array_equal(found, cross_validated_distances(features, labels))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_with_one_label_a_class_hardly_anything_is_rejected(count: int) -> None:
    features, labels = classes(count)
    own = cross_validated_distances(features, labels)
    near = features + 0.01
    assert belonging(fit_detector(features, labels).distances(near), own, 0.99).all()


def test_more_features_than_images_and_features_that_never_change_are_no_problem() -> None:
    features, labels = classes(12, dimension=50)
    features[:, 7] = 1.0
    assert np.isfinite(fit_detector(features, labels).distances(features)).all()
    assert np.isfinite(cross_validated_distances(features, labels)).all()


def test_an_image_belongs_that_is_no_further_away_than_this_share_of_the_labelled_ones() -> None:
    labelled, many = np.arange(101.0), np.full(90, 1.0)  # most images are near, so the labelled ones decide
    found = np.concatenate([many, [50, 99, 99.5, 100, 101]])
    assert belonging(found, labelled, 0.99)[-5:].tolist() == [True, True, False, False, False]
    assert belonging(found, labelled, 1.0)[-5:].tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("strangers", [0, 200])
@pytest.mark.parametrize("share", [0.95, 0.99])
def test_labelled_images_known_by_heart_do_not_reject_the_others(strangers: int, share: float) -> None:
    random = np.random.default_rng(0)
    own = np.square(10 + random.normal(size=1000))
    strange = np.square(40 + random.normal(size=strangers))
    kept = belonging(np.concatenate([own, strange]), np.full(20, 0.1), share)
    assert kept[:1000].mean() >= share - 0.02
    assert not kept[1000:].any()


def test_where_many_are_strangers_it_is_the_labelled_images_that_tell() -> None:
    random = np.random.default_rng(0)
    distances = np.square(np.concatenate([3 + random.normal(size=600), 40 + random.normal(size=400)]))
    kept = belonging(distances, np.square(3 + random.normal(size=50)), 0.99)
    assert kept[:600].mean() > 0.95
    assert not kept[600:].any()


@pytest.mark.parametrize("score", ["energies", "reconstruction_errors"])
def test_a_limit_leaves_the_given_fraction_of_training_images_below_it(score: str) -> None:
    values = np.random.default_rng(0).normal(size=1001)
    for fraction in (0.5, 0.9, 0.99, 1.0):
        limit = outlier_limit({f"training_{score}": values.tolist()}, fraction)
        assert limit is not None
        assert limit.score == score
        exceeded = limit.exceeded(Predictions(np.ones((1001, 1)), values, values))
        assert 1 - exceeded.mean() == pytest.approx(fraction, abs=2e-3)
    assert outlier_limit({}, 0.99) is None
    assert outlier_limit({f"training_{score}": None}, 0.99) is None


def test_the_reconstruction_error_comes_before_the_energy() -> None:
    result = {"training_energies": [0.0, 100.0], "training_reconstruction_errors": [0.1, 0.3]}
    assert outlier_limit(result, 1.0) == OutlierLimit("reconstruction_errors", 0.3)
    found = Predictions(np.ones((3, 1)), np.full(3, 1e9), np.array([0.2, 0.4, np.nan]))
    assert OutlierLimit("reconstruction_errors", 0.3).exceeded(found).tolist() == [False, True, True]


def flat(count: int, directions: int, seed: int) -> np.ndarray:
    """Rows of 40 numbers in a subspace, with a little noise, as a model of rows takes them."""
    random, shape = np.random.default_rng(seed), np.random.default_rng(9)
    rows = random.normal(size=(count, directions)) @ shape.normal(size=(directions, 40))
    return packed(rows + 0.3 * random.normal(size=rows.shape))


def of_rows(pixels: np.ndarray, components: int) -> HybridModel:
    model = Architecture("rows", (1, *pixels.shape[1:3]), 2, "diagonal", {"components": components}).build()
    model.initialise(torch.Generator().manual_seed(0))
    model.features.fit(model.features.prepare(pixels))
    return model


def test_rows_outside_of_the_subspace_of_the_others_have_the_highest_errors() -> None:
    rows = flat(60, 5, seed=0)
    model = of_rows(rows, 8)
    own, strange = (predict(model, each).reconstruction_errors for each in (flat(50, 5, 1), flat(50, 30, 2)))
    assert own is not None
    assert strange is not None
    assert own.max() < strange.min()
    assert ((own >= 0) & (strange <= 1)).all()


def test_cross_validated_errors_are_those_of_new_images_and_not_of_images_that_were_fitted() -> None:
    rows = flat(60, 5, seed=0)
    model = of_rows(rows, 12)  # more than there are directions: the others fit noise
    fitted, new = (predict(model, each).reconstruction_errors for each in (rows, flat(2000, 5, 1)))
    prepared = model.features.prepare(rows)
    validated = model.features.cross_validated_errors(prepared)
    assert fitted is not None
    assert new is not None
    assert validated is not None
    assert np.mean(fitted) < 0.8 * np.mean(new)
    assert validated.mean() == pytest.approx(np.mean(new), rel=0.15)
    assert (new > np.quantile(validated, 0.9)).mean() < 0.2
    assert torch.equal(validated, model.features.cross_validated_errors(prepared))


def test_a_model_that_leaves_nothing_out_has_no_reconstruction_errors() -> None:
    rows = flat(60, 5, seed=0)
    whole, network = of_rows(rows, 40), architecture().build()
    assert predict(whole, rows).reconstruction_errors is None
    for features in (whole.features, network.features):
        assert not features.discards_components
        assert features.cross_validated_errors(torch.zeros(3, 40)) is None
    assert of_rows(rows, 39).features.discards_components
