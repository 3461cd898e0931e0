import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpl.config.presets import preset
from ebpl.models.predictions import Predictions
from ebpl.training.relabel import phases, pseudo_targets, rate_factor, select

confidences = st.lists(st.floats(0, 1, width=32), max_size=60).map(np.array)


@given(confidences, st.integers(1, 6))
def test_each_step_takes_its_share_most_confident_first(values: np.ndarray, steps: int) -> None:
    for step in range(1, steps + 1):
        chosen = select(values, step, steps)
        assert len(chosen) == len(values) * step // steps
        assert (np.diff(values[chosen]) <= 0).all()
        left_out = np.setdiff1d(np.arange(len(values)), chosen)
        if len(chosen) and len(left_out):
            assert values[chosen].min() >= values[left_out].max()


@given(confidences, st.integers(1, 6))
def test_the_last_step_takes_everything(values: np.ndarray, steps: int) -> None:
    assert sorted(select(values, steps, steps).tolist()) == list(range(len(values)))


def test_the_papers_rates_are_quarters() -> None:
    assert [len(select(np.zeros(100), t, 4)) for t in (1, 2, 3, 4)] == [25, 50, 75, 100]


def test_ties_are_broken_by_position() -> None:
    assert select(np.array([0.5, 0.9, 0.5, 0.5]), 1, 2).tolist() == [1, 0]


def test_hard_labels_are_the_argmax_and_soft_ones_the_posterior() -> None:
    predictions = Predictions(np.array([[0.6, 0.4], [0.1, 0.9], [0.5, 0.5]]), np.zeros(3))
    chosen = np.array([1, 0])
    assert pseudo_targets(predictions, chosen, "hard").tolist() == [[0, 1], [1, 0]]
    assert pseudo_targets(predictions, chosen, "soft").tolist() == [[0.1, 0.9], [0.6, 0.4]]


@pytest.mark.parametrize(
    ("kind", "names"), [("none", ["initial"]), ("soft", ["initial", "step 1 of 2", "step 2 of 2"])]
)
def test_the_schedule(kind: str, names: list[str]) -> None:
    schedule = phases(preset("paper", pseudo_labels=kind, curriculum__steps=2))
    assert [phase.name for phase in schedule] == names
    assert [phase.epochs for phase in schedule] == [120, 20, 20][: len(names)]


@given(st.floats(0, 1), st.integers(0, 10_000))
def test_the_papers_learning_rate_is_constant(progress: float, updates: int) -> None:
    assert rate_factor(preset("paper"), progress, updates) == 1


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine() -> None:
    rising = preset("paper", optim__warmup_updates=100)
    assert [rate_factor(rising, 0.5, updates) for updates in (25, 50, 100, 900)] == [0.25, 0.5, 1, 1]
    falling = preset("paper", optim__final_lr_factor=0.2)
    assert [rate_factor(falling, at, 1) for at in (0, 0.5, 1)] == pytest.approx([1, 0.6, 0.2])


def test_only_images_that_belong_are_chosen_and_the_last_step_takes_all_of_those() -> None:
    values = np.array([0.9, 0.8, 0.7, 0.6])
    allowed = np.array([False, True, True, True])
    assert select(values, 1, 3, allowed).tolist() == [1]
    assert select(values, 3, 3, allowed).tolist() == [1, 2, 3]


@given(confidences, st.integers(1, 6), st.integers(0, 99))
def test_by_class_every_class_gives_its_own_most_confident_share(values: np.ndarray, steps: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 3, len(values))
    for step in range(1, steps + 1):
        chosen = select(values, step, steps, None, labels)
        assert (np.diff(values[chosen]) <= 0).all()
        for label in range(3):
            own = np.flatnonzero(labels == label)
            expected = own[np.argsort(-values[own], kind="stable")[: int(np.ceil(len(own) * step / steps))]]
            assert set(chosen[labels[chosen] == label]) == set(expected)


def test_by_class_images_that_do_not_belong_are_left_out_too() -> None:
    allowed = np.array([True, False, True, True])
    assert select(np.array([0.9, 0.8, 0.7, 0.6]), 1, 2, allowed, np.array([0, 1, 1, 1])).tolist() == [0, 2]


@given(st.floats(0.02, 1), st.integers(0, 99))
def test_sharpening_is_a_softmax_at_a_lower_temperature(temperature: float, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(5, 4)) * 3
    posterior = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    targets = pseudo_targets(Predictions(posterior, np.zeros(5)), np.arange(5), "soft", temperature)
    lower = scores / temperature - (scores / temperature).max(1, keepdims=True)
    np.testing.assert_allclose(targets, np.exp(lower) / np.exp(lower).sum(1, keepdims=True), rtol=1e-9, atol=1e-12)


def test_a_class_that_is_ruled_out_stays_so_when_labels_are_sharpened() -> None:
    predictions = Predictions(np.array([[1.0, 0.0], [0.75, 0.25]]), np.zeros(2))
    np.testing.assert_allclose(pseudo_targets(predictions, np.arange(2), "soft", 0.5), [[1, 0], [0.9, 0.1]])
