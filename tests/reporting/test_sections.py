from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ebpl.data.dataset import Images
from ebpl.metrics import METRICS
from ebpl.metrics.classification import wilson_interval
from ebpl.metrics.intervals import interval_in_words, intervals
from ebpl.models.outliers import OutlierLimit
from ebpl.models.predictions import Predictions
from ebpl.reporting import sections
from ebpl.reporting.report_data import Context, Seen, Sight
from ebpl.reporting.sections import calibration_error, direction, sure_ones
from ebpl.runs import Run
from ebpl.runs.reader import Stored, read, reliability_bins
from tests.helpers import random_images

CLASSES = ("a", "b", "c")


def seen(probabilities: Any, labels: Any, energies: Any = None, paths: tuple[str, ...] | None = None) -> Seen:
    count = len(probabilities)
    images = Images(random_images(count, 4, 4, 1), np.array(labels), paths)
    found = Predictions(np.array(probabilities, float), np.zeros(count) if energies is None else np.array(energies))
    return Seen("test images", images, found, np.arange(100, 100 + count), count)


def random_answers(count: int = 200) -> Seen:
    random = np.random.default_rng(0)
    return seen(random.dirichlet(np.ones(3), count), random.integers(0, 3, count))


def test_mistakes_are_the_wrong_ones_most_confident_first() -> None:
    answers = seen([[0.6, 0.4, 0], [0.9, 0.1, 0], [1, 0, 0], [0.8, 0.1, 0.1]], [1, 1, 0, -1])
    found = sections.mistakes(answers, CLASSES)
    assert [each["confidence"] for each in found["pictures"]] == ["90.0\xa0%", "60.0\xa0%"]
    assert [each["name"] for each in found["pictures"]] == ["no. 101", "no. 100"]
    assert (found["count"], found["of"]) == (2, 3)


def test_pictures_are_capped_whatever_there_is() -> None:
    answers = random_answers(500)
    assert len(sections.mistakes(answers, CLASSES)["pictures"]) == sections.MISTAKES
    assert len(sections.uncertain(answers, CLASSES, None, True)["pictures"]) == sections.UNCERTAIN
    assert len(sections.outlying(answers, CLASSES, OutlierLimit("energies", 0.0))["pictures"]) == sections.OUTLYING


def test_the_most_uncertain_come_first_with_their_two_best_guesses() -> None:
    answers = seen([[0.9, 0.1, 0], [0.3, 0.45, 0.25]], [-1, -1], paths=("sure.png", "unsure.png"))
    first, second = sections.uncertain(answers, CLASSES, None, True)["pictures"]
    assert (first["name"], second["name"]) == ("unsure.png", "sure.png")
    assert first["guesses"] == [("b", 0.45), ("a", 0.3)]


def test_outliers_are_not_among_the_images_to_label_next() -> None:
    answers = seen([[0.5, 0.5, 0], [0.6, 0.4, 0], [0.9, 0.1, 0]], [-1] * 3, energies=[5.0, 0.0, 0.0])
    found = sections.uncertain(answers, CLASSES, OutlierLimit("energies", 1.0), True)
    assert [each["name"] for each in found["pictures"]] == ["no. 101", "no. 102"]


def test_results_by_class_come_first_where_one_class_is_several_times_another() -> None:
    def context(labelled: Any, labels: list[int]) -> Context:
        probabilities = np.tile([0.5, 0.3, 0.2], (len(labels), 1))
        empty = Sight(CLASSES, {}, 1, True, seen(probabilities, labels), None, None, None, [], ())
        return Context(Stored(result={"images": {"labelled": labelled}}), empty, True)

    even = [0, 1, 2] * 3
    assert not context({"a": 5, "b": 5, "c": 5}, even).imbalanced
    assert context({"a": 15, "b": 5, "c": 5}, even).imbalanced
    assert context({"a": 5, "b": 5, "c": 5}, [0, 0, 0, *even[:3], 0]).imbalanced
    assert not context("damaged", even).imbalanced


def test_the_most_outlying_have_the_highest_energy_and_are_marked_beyond_the_limit() -> None:
    answers = seen(np.eye(3), [0, 1, -1], energies=[1.0, np.nan, -2.0])
    found = sections.outlying(answers, CLASSES, OutlierLimit("energies", 0.5))
    assert [each["beyond"] for each in found["pictures"]] == [True, True, False]
    assert [each["score"] for each in found["pictures"]][1:] == ["1.00", "−2.00"]
    assert found["beyond"] == 2


def test_the_coverage_table_agrees_with_a_count_by_hand() -> None:
    probabilities, labels = random_answers(100).truth
    rows = sections.measures(probabilities, labels, "images")["coverages"]
    order = np.argsort(-probabilities.max(1), kind="stable")[:80]
    wrong = int((probabilities.argmax(1) != labels)[order].sum())
    share, answered, at, right, ends, mistakes = rows[3]
    low, high = wilson_interval(80 - wrong, 80)
    assert ends == f"{100 * low:.0f} to {100 * high:.0f}\xa0%"
    assert (share, answered, mistakes) == ("80\xa0%", "80", str(wrong))
    assert right == f"{100 - 100 * wrong / 80:.1f}\xa0%"
    assert at == f"{100 * probabilities.max(1)[order[-1]]:.1f}\xa0%"


def test_stored_measures_are_those_that_would_be_measured(run_named: Callable[[str], Run]) -> None:
    run = run_named("with truth")
    found = sections.stored_measures(read(run.path))
    assert found is not None
    assert found["values"] == run.metrics()["metrics"]
    assert found["reliability"] is not None


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"metrics": None},
        {"metrics": [1]},
        {"metrics": {"accuracy": "high"}},
        {"metrics": dict.fromkeys(["accuracy", "f_score", "ece", "overconfidence", "images"], 0)},
    ],
)
def test_measures_of_a_stranger_that_are_none_are_left_out(result: dict[str, Any]) -> None:
    assert sections.stored_measures(Stored(result=result)) is None


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        [3],
        [{}],
        [{"images": 1, "above": 0, "up_to": 1, "accuracy": 7, "confidence": 0.5}],
        [{"images": 0, "above": 0, "up_to": 1, "accuracy": None, "confidence": None}],
        [{"images": 5, "above": 0.5, "up_to": 0.1, "accuracy": 0.5, "confidence": 0.5}],
    ],
)
def test_foreign_bins_that_are_none_are_not_drawn(rows: Any) -> None:
    assert reliability_bins(rows) == []


def test_a_recovery_is_described_in_a_sentence() -> None:
    event = {"phase": "initial", "epoch": 3, "reason": "ran away", "learning_rate": 0.002, "sgld_steps": 8}
    stored = Stored(result={"healed_divergences": [event, {}]})
    told = sections.training(stored, True)["healed"]
    assert told[0] == "initial, epoch 3: ran away. Continued with learning rate 0.002 and 8 SGLD steps."
    assert told[1] == "some phase, epoch ?."


def answers(confidence: float, right: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tile([confidence, 1 - confidence], (count, 1)), np.where(np.arange(count) < right, 0, 1)


def said_and_done(confidence: float, right: int, count: int) -> tuple[float, Any, int]:
    return confidence - right / count, [{"images": count, "confidence": confidence}], count


@pytest.mark.parametrize(
    ("confidence", "right", "count", "word"),
    [
        (0.95, 500, 1000, "over-confident"),
        (0.6, 900, 1000, "under-confident"),
        (0.9, 900, 1000, "neither"),
        (0.9, 8, 10, "neither"),  # ten points off, but ten images cannot tell
        (0.9, 8000, 10000, "over-confident"),
    ],
)
def test_the_direction_is_named_where_the_images_can_tell(confidence: float, right: int, count: int, word: str) -> None:
    found, sentence = direction(*said_and_done(confidence, right, count))
    assert found == word
    assert ("neither" if word == "neither" else word) in sentence


def test_certain_and_right_is_neither() -> None:
    assert direction(*said_and_done(1.0, 5, 5))[0] == "neither"


def test_the_calibration_error_stands_beside_what_chance_would_give() -> None:
    text = calibration_error(*answers(0.8, 50, 100))
    assert "30.0\xa0%" in text
    assert "3.2\xa0%" in text or "3.1\xa0%" in text or "3.3\xa0%" in text  # E|X - 80| of 100 draws with 0.8: 3.2


def test_accuracy_at_high_confidence_is_a_sentence() -> None:
    assert "50.0\xa0% are predicted right" in sure_ones(*answers(0.95, 5, 10))
    assert "No confidence reaches" in sure_ones(*answers(0.7, 5, 10))


def test_every_metric_has_its_interval_beside_it() -> None:
    answers = random_answers()
    found = sections.measures(*answers.truth, "test images")
    ends = intervals(*answers.truth)
    assert found["intervals"] == ends
    assert [row[2] for row in found["rows"]] == [interval_in_words(name, ends.get(name)) for name in METRICS]


def test_intervals_of_a_foreign_run_are_shown_only_if_they_are_intervals() -> None:
    metrics = {"accuracy": 0.5, "f_score": 0.4, "ece": 0.1, "images": 50.0, "overconfidence": 0.1}
    given = {
        "f_score": [0.3, 0.5],
        "ece": "all",
        "nll": [1],
        "brier": ["x", None],
        "unknown": [0, 1],
        "accuracy": [9, 9],
    }
    found = sections.stored_measures(Stored(result={"metrics": metrics, "intervals": given}))
    assert found is not None
    assert found["intervals"] == {"f_score": (0.3, 0.5), "accuracy": wilson_interval(25, 50)}
    bare = sections.stored_measures(Stored(result={"metrics": metrics, "intervals": [1, 2]}))
    assert bare is not None
    assert list(bare["intervals"]) == ["accuracy"]


def test_it_is_said_from_which_confidence_on_an_accuracy_is_promised_or_that_it_is_not() -> None:
    sure, labels = np.tile([0.98, 0.01, 0.01], (300, 1)), np.zeros(300, np.int64)
    promise = sections.measures(sure, labels, "images")["promise"]
    assert promise.startswith("By these images, images are labelled at a confidence of at least ")
    assert "for an accuracy of 95 % with 95 % confidence" in promise
    assert "cannot be promised from 20 labels" in sections.measures(sure[:20], labels[:20], "images")["promise"]
