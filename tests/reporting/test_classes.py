import json
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from ebpl.data.dataset import Images
from ebpl.metrics.classification import wilson_interval
from ebpl.models.predictions import Predictions
from ebpl.reporting.classes import MOST_CLASSES, by_class, class_mix, prediction_sets, stored_classes
from ebpl.reporting.report_data import Context, Seen, Sight, interval
from ebpl.runs.reader import Stored
from tests.reporting.test_sections import CLASSES, random_answers, seen


def test_the_table_of_classes_agrees_with_scikit_learn() -> None:
    answers = random_answers()
    probabilities, labels = answers.truth
    expected = precision_recall_fscore_support(labels, probabilities.argmax(1))
    for i, row in enumerate(by_class(answers, CLASSES)["rows"]):
        assert row["precision"] == f"{100 * expected[0][i]:.1f}\xa0%"
        assert row["recall"] == f"{100 * expected[1][i]:.1f}\xa0%"
        assert row["share"] == pytest.approx(expected[2][i])
        assert row["images"] == str(expected[3][i])


def test_a_class_that_never_occurs_has_dashes() -> None:
    rows = by_class(seen([[0.9, 0.1, 0], [0.2, 0.8, 0]], [0, 1]), CLASSES)["rows"]
    assert (rows[2]["precision"], rows[2]["recall"], rows[2]["f_score"]) == ("–", "–", "–")


def test_of_many_classes_the_worst_are_listed_and_there_is_no_matrix() -> None:
    count = MOST_CLASSES + 50
    answers = seen(np.eye(count), [*range(1, 51), *range(50, count)])  # the first fifty are wrong
    found = by_class(answers, [f"c{i}" for i in range(count)])
    assert found["matrix"] is None
    assert found["left_out"] == 50
    assert {row["name"] for row in found["rows"]} >= {f"c{i}" for i in range(1, 50)}


def test_what_is_mixed_up_most_often_comes_first() -> None:
    answers = seen([[1, 0, 0]] * 3 + [[0, 1, 0]] * 2 + [[0, 0, 1]], [1, 1, 1, 2, 2, 2])
    mixed = by_class(answers, CLASSES)["mixed"]
    assert mixed == [
        {"is": "b", "said": "a", "times": 3, "of": 3},
        {"is": "c", "said": "b", "times": 2, "of": 3},
    ]


def test_recall_and_precision_of_a_class_have_intervals_and_its_predictions_a_confidence() -> None:
    answers = random_answers()
    probabilities, labels = answers.truth
    for i, row in enumerate(by_class(answers, CLASSES)["rows"]):
        own, said = labels == i, probabilities.argmax(1) == i
        for name, of in (("recall", own), ("precision", said)):
            low, high = wilson_interval(int((own & said).sum()), int(of.sum()))
            assert row[f"{name}_interval"] == f"{100 * low:.0f} to {100 * high:.0f}\xa0%"
        sure, right = probabilities.max(1)[said].mean(), own[said].mean()
        assert row["confidence"] == f"{100 * sure:.1f}\xa0%"
        low, high = wilson_interval(int(own[said].sum()), int(said.sum()))
        assert row["off"] == ("" if low <= sure <= high else "over" if sure > right else "under")


def test_a_class_whose_confidence_is_beyond_chance_is_marked() -> None:
    sure = seen([[0.9, 0.1, 0]] * 40 + [[0.3, 0.6, 0.1]] * 40, [0] * 20 + [1] * 20 + [1] * 40)
    first, second, third = by_class(sure, CLASSES)["rows"]
    assert (first["off"], second["off"], third["off"]) == ("over", "under", "")


def test_stored_classes_are_those_that_were_measured_and_older_runs_have_dashes() -> None:
    from ebpl.inference.evaluate import class_rows

    answers = random_answers()
    rows = json.loads(json.dumps(class_rows(*answers.truth, CLASSES)))
    stored = stored_classes(Stored(result={"by_class": rows}))
    assert stored is not None
    assert stored["rows"] == by_class(answers, CLASSES)["rows"]
    later = ("predicted", "precision_interval", "confidence")
    older = [{name: value for name, value in row.items() if name not in later} for row in rows]
    found = stored_classes(Stored(result={"by_class": older}))
    assert found is not None
    assert [row["recall"] for row in found["rows"]] == [row["recall"] for row in stored["rows"]]
    assert {(row["confidence"], row["precision_interval"], row["off"]) for row in found["rows"]} == {("–", "", "")}


def mixed(result: dict[str, Any], labels: list[int] | None = None, setting: str | None = None) -> Any:
    """The section of the class mix of a run, measured on images of these labels."""
    images = None if labels is None else seen(np.tile([0.5, 0.3, 0.2], (len(labels), 1)), labels)
    sight = Sight(CLASSES, {}, 1, True, images, images, None, None, [], ())
    return class_mix(Context(Stored(result=result), sight, True, setting))


LABELLED = {"images": {"labelled": {"a": 10, "b": 10, "c": 20}}}


def test_the_class_mix_of_the_labels_is_shown_where_no_other_was_used() -> None:
    found = mixed(LABELLED, [0, 1, 2, 2] * 10)
    assert [row["name"] for row in found["rows"]] == ["c", "a", "b"]
    first = found["rows"][0]
    assert (first["labels"], first["share"], first["used"], first["interval"]) == ("20", "50.0\xa0%", "50.0\xa0%", "")
    assert first["measured"] == "50.0\xa0%"
    assert found["sentences"][0] == "Probabilities are for the class mix of the labels."
    assert not found["elsewhere"]
    assert mixed({"images": {}}) is None
    assert mixed({**LABELLED, "class_mix": {"shares": "damaged"}}) is None


def test_an_estimated_class_mix_has_intervals_and_other_test_images_are_told() -> None:
    mix = {"shares": [0.7, 0.2, 0.1], "log_ratio": [1.0, 0.0, -1.0], "interval": [[0.5, 0.8], [0.1, 0.4], [0.05, 0.2]]}
    found = mixed({**LABELLED, "class_mix": mix}, [0, 1, 2] * 30, "auto")
    assert [(row["used"], row["interval"]) for row in found["rows"]] == [
        ("70.0\xa0%", "50 to 80\xa0%"),
        ("20.0\xa0%", "10 to 40\xa0%"),
        ("10.0\xa0%", "5 to 20\xa0%"),
    ]
    assert "estimated" in found["sentences"][0]
    assert found["elsewhere"]
    assert not mixed({**LABELLED, "class_mix": mix}, [0] * 63 + [1] * 18 + [2] * 9, "auto")["elsewhere"]
    unmeasured = mixed({**LABELLED, "class_mix": mix})
    assert (unmeasured["what"], unmeasured["elsewhere"]) == ("", False)


def test_prediction_sets_are_measured_where_there_are_labels_enough() -> None:
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.full(3, 0.4), 400)
    labels = np.array([random.choice(2, p=row[:2] / row[:2].sum()) for row in probabilities])
    labels[:50] = -1

    def some(count: int) -> Seen:
        images = Images(np.zeros((count, 4, 4, 1), np.uint8), labels[:count])
        return Seen("test images", images, Predictions(probabilities[:count], np.zeros(count)), np.arange(count), count)

    found = prediction_sets(some(400), "abc")
    assert found is not None
    assert found["images"] == 350
    assert found["coverage"] == pytest.approx(0.9, abs=0.04)
    assert [row["class"] for row in found["rows"]] in (["a", "b"], ["b", "a"])
    assert found["rows"][0]["coverage"] <= found["rows"][1]["coverage"]
    assert found["interval"] == interval(found["coverage_interval"])
    assert prediction_sets(some(69), "abc") is None
    assert prediction_sets(some(70), "abc") is not None
