from dataclasses import asdict

import numpy as np
import pytest
import torch

from ebpl.calibration import CalibrationCheck
from ebpl.inference.evaluate import SAMPLES, curves, samples, selection, steps, summary
from ebpl.models.predictions import predict
from ebpl.training.callbacks import Callback
from ebpl.training.relabel import Relabeling, phases
from ebpl.training.trainer import Trainer
from tests.helpers import blobs, quick, trainer_of


@pytest.fixture(scope="module")
def training() -> Trainer:
    """A short training that is over."""
    made = trainer_of(quick(curriculum__steps=2, labels_per_class=3), blobs(unlabeled=False))
    made.train()
    return made


def test_a_summary_counts_images_and_tells_of_steps_curves_and_time(training: Trainer) -> None:
    counts = {1: {"0": 20, "1": 20, "2": 15}}
    told = summary(training.state, training.training_set, training.schedule, counts)
    assert [step["classes"] for step in told["pseudo_labels"]] == [counts[1], None]
    assert told["images"] == {"labelled": {"0": 3, "1": 3, "2": 3}, "unlabelled": 111, "validation": 0, "test": 30}
    (first, half), last = [(step["step"], step["images"]) for step in told["pseudo_labels"]]
    assert (first, last) == (1, (2, 111))
    assert 55 <= half <= 58  # half of each class, rounded up
    assert told["check"] is None
    assert told["healed_divergences"] == []
    assert told["seconds"] == round(training.state.seconds, 1)
    assert set(told["curves"]) == {"cross_entropy", "energy_gap"}
    for name, values in told["curves"].items():
        assert values == pytest.approx([row[name] for row in training.state.progress.history], rel=1e-3)


def test_what_the_held_out_labels_have_shown_is_told_as_plain_values(training: Trainer) -> None:
    check = CalibrationCheck(102, 0.931, 0.845, 5.8, 0.62)
    training.state.progress.check = check
    told = summary(training.state, training.training_set, training.schedule, {})["check"]
    training.state.progress.check = None
    assert told == asdict(check)


def test_the_last_epoch_of_a_step_tells_of_it_and_the_initial_phase_of_none() -> None:
    schedule = phases(quick(curriculum__steps=2, curriculum__epochs=2))
    history = [
        {"phase": "initial", "pseudo_labels": 0, "pseudo_label_accuracy": None, "rejected": 0},
        {"phase": "step 1 of 2", "pseudo_labels": 5, "pseudo_label_accuracy": 0.5, "rejected": 1},
        {"phase": "step 1 of 2", "pseudo_labels": 6, "pseudo_label_accuracy": 0.6, "rejected": 2},
        {"phase": "step 2 of 2", "pseudo_labels": 9, "pseudo_label_accuracy": None},
    ]
    assert steps(history, schedule, {1: {"a": 6}}) == [
        {"step": 1, "images": 6, "accuracy": 0.6, "rejected": 2, "classes": {"a": 6}},
        {"step": 2, "images": 9, "accuracy": None, "rejected": 0, "classes": None},
    ]


def test_a_curve_is_there_if_every_epoch_has_it() -> None:
    history = [{"cross_entropy": 1.23456, "validation_accuracy": 0.5}, {"cross_entropy": 0.5}]
    assert curves(history) == {"cross_entropy": [1.235, 0.5]}
    assert curves([]) == {}


def test_samples_are_images_of_the_chains_as_they_are(training: Trainer) -> None:
    kept = samples(training.state)["samples"]
    assert kept.shape == (SAMPLES, 8, 8, 1)
    assert kept.dtype == np.uint8
    buffer = training.state.buffer
    assert buffer is not None
    expected = np.round((buffer.samples.clamp(-1, 1).numpy() + 1) * 127.5).transpose(0, 2, 3, 1)
    chosen = expected[:: len(expected) // SAMPLES][:SAMPLES]
    assert sorted(image.tobytes() for image in kept) == sorted(image.astype(np.uint8).tobytes() for image in chosen)
    labels = predict(training.state.predictor, kept).labels
    assert labels.tolist() == sorted(labels)
    buffer.samples[0] = float("nan")
    assert any(image.std() == 0 for image in samples(training.state)["samples"])


def test_chains_of_feature_rows_and_methods_without_chains_have_no_samples_to_look_at(training: Trainer) -> None:
    without = trainer_of(quick(method="curriculum-labeling"))
    assert samples(without.state) == {}
    state = training.state
    images = state.buffer
    state.create_buffer((6,))
    assert samples(state) == {}
    state.buffer = images


def test_the_first_steps_selection_is_found_again_from_its_list() -> None:
    class Listed(Callback):
        def relabeled(self, step: int, found: Relabeling) -> None:
            self.found = found

    listed = Listed()
    training = trainer_of(quick(curriculum__steps=1, labels_per_class=3), blobs(unlabeled=False), listed)
    training.train()
    images, rows = training.training_set, listed.found.rows
    found = selection(rows, images)
    assert found["selected"].tolist() == images.unlabeled_index[listed.found.selected].tolist()
    assert torch.from_numpy(found["selected_labels"].astype(int)).tolist() == [int(row["label"]) for row in rows]
    assert selection([{"image": "not one of these", "label": "0"}], images) == {}
    assert selection([], images) == {}
