"""Label spreading on the graph of features, against scikit-learn's and by its invariants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.training import neighbors
from ebpl.training.neighbors import Graph


def two_groups(count: int = 30, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    centers = np.array([[5.0, 0, 0, 0], [0, 5.0, 0, 0]]).repeat(count, axis=0)
    return centers + random.normal(size=(2 * count, 4))


def test_the_graph_is_symmetric_has_no_loops_and_its_largest_eigenvalue_is_one() -> None:
    edges = Graph.of(two_groups()).edges.toarray()
    np.testing.assert_allclose(edges, edges.T, atol=1e-12)
    assert not edges.diagonal().any()
    assert np.abs(np.linalg.eigvalsh(edges)).max() == pytest.approx(1)


def test_every_image_is_connected_to_those_most_similar_to_it() -> None:
    rows = two_groups() * np.array([9.0, 1, 1, 0.1])
    edges, scaled = Graph.of(rows, 3).edges.toarray(), rows / (rows**2).mean(0) ** 0.25
    unit = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    similarity = unit @ unit.T - 2 * np.eye(len(rows))
    for image in range(len(rows)):
        assert set(np.argsort(-similarity[image])[:3]) <= set(np.flatnonzero(edges[image]))


def test_a_component_that_is_zero_for_all_images_changes_nothing() -> None:
    rows = two_groups()
    wider = np.concatenate([rows, np.zeros((len(rows), 2))], axis=1)
    np.testing.assert_allclose(Graph.of(wider).edges.toarray(), Graph.of(rows).edges.toarray())


def test_the_graph_does_not_depend_on_how_many_rows_are_compared_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = two_groups()
    whole = Graph.of(rows).edges.toarray()
    monkeypatch.setattr(neighbors, "ROWS", 7)
    np.testing.assert_allclose(Graph.of(rows).edges.toarray(), whole, atol=1e-6)


def test_spreading_converges_to_the_solution_of_zhou_et_al() -> None:
    rows, amount = two_groups(), 0.8
    graph = Graph.of(rows)
    targets = np.random.default_rng(1).dirichlet(np.ones(3), len(rows))
    exact = np.linalg.solve(np.eye(len(rows)) - amount * graph.edges.toarray(), (1 - amount) * targets)
    found = graph.spread(targets, amount, rounds=200)
    np.testing.assert_allclose(found, exact / exact.sum(1, keepdims=True), atol=1e-8)


def test_two_labels_are_spread_over_two_groups() -> None:
    rows = two_groups()
    targets = np.full((60, 2), 0.5)
    targets[0], targets[30] = (1, 0), (0, 1)
    found = Graph.of(rows).spread(targets, 0.9).argmax(1)
    np.testing.assert_array_equal(found, np.repeat([0, 1], 30))


@given(st.integers(1, 12), st.integers(1, 5), st.floats(0, 0.99), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_what_is_spread_stays_a_distribution_for_any_number_of_images(
    images: int, classes: int, amount: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(images, 3)) * random.integers(0, 2, (images, 1))  # some are all zeros
    targets = random.dirichlet(np.ones(classes), images)
    found = Graph.of(rows).spread(targets, amount)
    assert found.shape == targets.shape
    assert (found >= 0).all()
    if images > 1 and amount == 0:
        np.testing.assert_array_equal(found, targets)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
