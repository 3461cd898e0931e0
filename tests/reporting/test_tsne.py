import numpy as np
import pytest
from sklearn.manifold import trustworthiness

from ebpl.reporting.tsne import PERPLEXITY, _affinities, _repulsion, layout


def groups(count: int, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of groups that are well apart in 20 dimensions."""
    random = np.random.default_rng(seed)
    number = np.arange(rows) % count
    return 8 * random.normal(size=(count, 20))[number] + random.normal(size=(rows, 20)), number


@pytest.mark.parametrize("count", [3, 10])
def test_groups_stay_together(count: int) -> None:
    rows, number = groups(count, 300)
    places = layout(rows)
    assert places is not None
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + np.diag(np.full(300, np.inf))
    assert (number[distances.argmin(1)] == number).all()
    centers = np.stack([places[number == i].mean(0) for i in range(count)])
    apart = np.linalg.norm(centers[:, None] - centers[None], axis=2) + np.diag(np.full(count, np.inf))
    within = max(np.linalg.norm(places[number == i] - centers[i], axis=1).max() for i in range(count))
    assert apart.min() > within


def test_neighbours_are_neighbours_in_the_features() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 2)) @ random.normal(size=(2, 30)) + 0.05 * random.normal(size=(400, 30))
    assert trustworthiness(rows, layout(rows), n_neighbors=10) > 0.97


def test_the_same_rows_have_the_same_places_at_any_scale() -> None:
    rows, _ = groups(4, 100)
    first = layout(rows)
    assert first is not None
    np.testing.assert_array_equal(first, layout(rows.copy()))
    np.testing.assert_allclose(first.mean(0), 0, atol=1e-4)
    assert np.isfinite(layout(1e30 * rows)).all()


def test_each_row_has_the_wanted_number_of_neighbours() -> None:
    rows, _ = groups(2, 200)
    near = _affinities(rows).toarray()
    assert near.sum() == pytest.approx(1)
    np.testing.assert_allclose(near, near.T)
    weights = near / near.sum(1, keepdims=True)
    entropies = -(weights * np.log(np.maximum(weights, 1e-300))).sum(1)
    assert PERPLEXITY / 2 < np.exp(entropies).mean() < 3 * PERPLEXITY


def test_repulsion_is_that_of_the_definition() -> None:
    places = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    gaps = places[:, None] - places[None]
    near = 1 / (1 + np.square(gaps).sum(2))
    total = near.sum() - len(places)
    expected = (np.square(near)[..., None] * gaps).sum(1) / total
    np.testing.assert_allclose(_repulsion(places), expected, atol=1e-5)


def test_twins_and_a_single_feature_are_no_problem() -> None:
    twins = np.repeat(np.random.default_rng(0).normal(size=(20, 5)), 4, axis=0)
    line = np.arange(30.0)[:, None]
    for rows in (twins, line, np.concatenate([twins, np.zeros((60, 5))])):
        places = layout(rows)
        assert places is not None
        assert np.isfinite(places).all()


def test_rows_without_any_difference_have_no_layout() -> None:
    assert layout(np.ones((50, 4))) is None
    assert layout(np.zeros((0, 4))) is None
    assert layout(np.random.default_rng(0).normal(size=(3, 4))) is None
