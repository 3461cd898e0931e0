import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf

from ebpl.calibration.class_mix import ClassMix
from ebpl.config.presets import preset
from ebpl.models.predictions import Predictions, predict_with_features
from ebpl.training.callbacks import Callback
from ebpl.training.relabel import (
    Phase,
    Relabeling,
    described_counts,
    lr_factor,
    outlier_rows,
    phases,
    pseudo_label_rows,
    pseudo_targets,
    relabel,
    select,
    spread_predictions,
)
from ebpl.training.trainer import Trainer
from ebpl.training.training_set import TrainingSet
from tests.helpers import architecture, blobs, quick, trainer_of

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
    assert lr_factor(preset("paper"), progress, updates) == 1


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine() -> None:
    rising = preset("paper", optim__warmup_updates=100)
    assert [lr_factor(rising, 0.5, updates) for updates in (25, 50, 100, 900)] == [0.25, 0.5, 1, 1]
    falling = preset("paper", optim__final_lr_factor=0.2)
    assert [lr_factor(falling, at, 1) for at in (0, 0.5, 1)] == pytest.approx([1, 0.6, 0.2])


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


def test_rows_tell_image_label_confidence_and_truth() -> None:
    data = blobs(unlabeled=False)
    predictions = Predictions(np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), np.zeros(2))
    first, second = pseudo_label_rows(data, np.array([4, 9]), predictions, np.array([1, 0]))
    assert (first["image"], first["label"], first["confidence"], first["p(2)"]) == ("9", "2", "0.8", "0.800000")
    assert (second["image"], second["truth"]) == ("4", data.classes[data.train.labels[4]])


def test_the_labels_of_all_images_are_looked_for_once_not_for_every_row() -> None:
    looked: list[str] = []

    class Watched(Predictions):
        @property
        def labels(self) -> np.ndarray:
            looked.append("labels")
            return super().labels

        @property
        def confidences(self) -> np.ndarray:
            looked.append("confidences")
            return super().confidences

    predictions = Watched(np.full((5, 3), 1 / 3), np.zeros(5))
    assert len(pseudo_label_rows(blobs(unlabeled=False), np.arange(5), predictions, np.arange(5))) == 5
    assert sorted(looked) == ["confidences", "labels"]


def test_outliers_are_listed_furthest_first() -> None:
    predictions = Predictions(np.full((4, 3), 1 / 3), np.array([1.0, 2.0, 3.0, 4.0]))
    distances = np.array([5.0, 70.0, 6.0, 90.0])
    rows = outlier_rows(blobs(), np.array([20, 21, 22, 23]), predictions, distances, np.array([1, 3]))
    assert rows == [
        {"image": "23", "distance": "90", "energy": "4"},
        {"image": "21", "distance": "70", "energy": "2"},
    ]


# --- a step of a real training --------------------------------------------------------------------------------------


class Listed(Callback):
    """Keeps the lists that would be written."""

    def relabeled(self, step: int, found: Relabeling) -> None:
        self.found = found


def begun(**changes: object) -> tuple[Trainer, Relabeling]:
    """A trainer with fresh weights that has just begun its first step of two."""
    listed = Listed()
    settings = quick(curriculum__steps=2, labels_per_class=3, **changes)
    trainer = trainer_of(settings, blobs(unlabeled=False), listed)
    next(trainer.work())
    trainer._relabel(trainer.schedule[1])
    return trainer, listed.found


def pseudo_labels(trainer: Trainer) -> torch.Tensor:
    return trainer.training_set.targets[trainer.training_set.labeled :]


@pytest.mark.parametrize("selection", ["all", "class"])
def test_half_of_the_images_get_the_label_that_is_listed(selection: str) -> None:
    trainer, found = begun(curriculum__selection=selection, pseudo_labels="hard")
    selected = trainer.state.progress.selected
    assert len(found.rows) == len(selected)
    assert abs(len(found.rows) - trainer.training_set.unlabeled / 2) <= (2 if selection == "class" else 0.5)
    pseudo = pseudo_labels(trainer)
    classes = [trainer.training_set.data.classes[int(row.argmax())] for row in pseudo[selected]]
    assert classes == [row["label"] for row in found.rows]
    assert pseudo.sum() == len(found.rows)


def test_by_class_each_predicted_class_gives_half_of_its_images() -> None:
    trainer, _ = begun(curriculum__selection="class")
    images = trainer.training_set
    predicted = trainer.predict(images.inputs[images.labeled :]).labels
    for label in np.unique(predicted):
        chosen = (predicted[trainer.state.progress.selected] == label).sum()
        assert chosen == -(-(predicted == label).sum() // 2)


def test_sharper_labels_are_nearer_to_the_predicted_class() -> None:
    soft, sharp = (
        begun(pseudo_labels="soft", curriculum__pseudo_label_temperature=t)[0].training_set.targets for t in (1.0, 0.5)
    )
    assert torch.equal(soft.argmax(1), sharp.argmax(1))
    squared = soft.double().square()
    torch.testing.assert_close(
        sharp.double(), squared / squared.sum(1, keepdim=True).clamp_min(1e-12), rtol=1e-5, atol=1e-6
    )


def test_the_accuracy_of_pseudo_labels_is_that_of_the_images_whose_label_was_hidden() -> None:
    trainer, found = begun(pseudo_labels="hard")
    images = trainer.training_set
    truth = images.data.train.labels[images.unlabeled_index[found.selected]]
    expected = (pseudo_labels(trainer)[found.selected].argmax(1).numpy() == truth).mean()
    assert found.accuracy == trainer.state.progress.pseudo_label_accuracy == pytest.approx(expected)
    assert [row["truth"] for row in found.rows] == [images.data.classes[label] for label in truth]


def test_outliers_get_no_label_and_are_listed_strangest_first() -> None:
    trainer, found = begun(curriculum__reject_outliers=0.5)
    rows, progress = found.outlier_rows, trainer.state.progress
    assert rows is not None
    distances = [float(row["distance"]) for row in rows]
    assert distances == sorted(distances, reverse=True)
    assert all(np.isfinite(float(row["energy"])) for row in rows)
    assert len(rows) == len(progress.rejected) > 0
    assert set(progress.rejected).isdisjoint(progress.selected)


def test_outliers_are_furthest_from_every_class_by_a_detector_of_scikit_learns_making() -> None:
    model = architecture().build().initialise(torch.Generator().manual_seed(0))
    settings = quick(labels_per_class=5, curriculum__reject_outliers=0.5, pseudo_labels="hard")
    images = TrainingSet.prepare(blobs(unlabeled=False), settings, 0.0, model.features, torch.device("cpu"))
    known, unknown = (predict_with_features(model, part) for part in (images.inputs[:15], images.inputs[15:]))
    found = relabel(images, unknown[0], lambda: (known[1], unknown[1]), settings, Phase(2, 2, 1))
    labels, features = images.labels, known[1].astype(float)
    means = np.stack([features[labels == c].mean(0) for c in range(3)])
    precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(features - means[labels]).covariance_)
    away = unknown[1][:, None] - means[None]
    distances = np.einsum("ncd,de,nce->nc", away, precision, away).min(1)
    count = len(found.rejected)
    assert 0 < count < images.unlabeled
    assert set(found.rejected) == set(np.argsort(-distances)[:count])
    assert len(found.selected) == images.unlabeled - count


def test_without_rejection_the_features_are_not_computed() -> None:
    def never() -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError

    model = architecture().build().initialise(torch.Generator().manual_seed(0))
    images = TrainingSet.prepare(blobs(), quick(), 0.0, model.features, torch.device("cpu"))
    predictions = Predictions(np.random.default_rng(0).dirichlet([1, 1, 1], images.unlabeled), np.zeros(105))
    found = relabel(images, predictions, never, quick(), Phase(1, 4, 1))
    assert (found.rejected, found.outlier_rows) == ([], None)
    assert found.accuracy is None  # nobody knows the labels of these


def test_no_class_that_the_model_predicts_is_without_a_pseudo_label_in_any_step() -> None:
    random = np.random.default_rng(0)
    settings = preset("quick")
    model = architecture().build().initialise(torch.Generator().manual_seed(0))
    images = TrainingSet.prepare(blobs(count=345), settings, 0.0, model.features, torch.device("cpu"))
    probabilities = random.dirichlet([90, 2, 1], images.unlabeled)  # one class with much confidence, two with little
    probabilities[:7], probabilities[7:9] = [0.4, 0.5, 0.1], [0.3, 0.3, 0.4]
    predictions = Predictions(probabilities, np.zeros(images.unlabeled))
    assert set(predictions.labels[select(predictions.confidences, 3, 4)].tolist()) == {0}  # without the classes
    for phase in phases(settings)[1:]:
        found = relabel(images, predictions, lambda: pytest.fail("no features are wanted"), settings, phase)
        predicted = {images.data.classes[label] for label in predictions.labels.tolist()}
        assert {name for name, count in found.counts.items() if count} == predicted
        assert sum(found.counts.values()) == len(found.selected)


def test_by_confidence_alone_a_class_can_get_none_and_that_is_said() -> None:
    assert described_counts({"a": 3, "b": 0, "c": 5, "d": 0}) == "c: 5, a: 3; 2 classes got none"
    many = {str(i): 100 - i for i in range(8)}
    assert described_counts(many) == "0: 100, 1: 99, 2: 98, 3: 97, 4: 96 and 3 more classes"
    assert described_counts({"a": 0}) == "no class; 1 class got none"
    six = {str(i): 100 - i for i in range(6)}  # to say that there is one more takes as much room as its name
    assert described_counts(six) == "0: 100, 1: 99, 2: 98, 3: 97, 4: 96, 5: 95"


def test_labels_are_spread_by_how_frequent_their_class_is_among_the_images() -> None:
    known, unknown = np.eye(2, 4), np.array([[1.0, 1.0, 0.0, 0.0]] * 3)
    said, labels = Predictions(np.full((3, 2), 0.5), np.zeros(3)), np.array([0, 1])
    plain = spread_predictions(said, labels, known, unknown, 0.5)
    np.testing.assert_allclose(plain.probabilities, 0.5)
    mixed = spread_predictions(said, labels, known, unknown, 0.5, ClassMix((0.9, 0.1), tuple(np.log([1.8, 0.2]))))
    assert (mixed.probabilities[:, 0] > 0.5).all()
