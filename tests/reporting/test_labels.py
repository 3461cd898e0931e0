import shutil
from dataclasses import replace

import numpy as np
import pytest

import ebpl
from ebpl.labeling.label_errors import Labelled
from ebpl.labeling.learning_curve import LearningCurve
from ebpl.reporting.labels import SHOWN, doubtful_labels, learned, pseudo_labels
from ebpl.reporting.report_data import Context, Sight
from ebpl.runs.reader import Step, Stored
from tests.labeling.test_label_errors import CLASSES, clouds, with_labels
from tests.named_runs import EVIL
from tests.test_recommendation import striped_folder, use_small_encoder


def context(known: Labelled | None) -> Context:
    sight = Sight(CLASSES, {}, 0, False, None, None, None, None, [], (), labelled=known)
    return Context(Stored(), sight, False)


def wrong(count: int = 120, every: int = 20) -> Labelled:
    known = clouds(count)
    given = known.images.labels.copy()
    given[::every] = (given[::every] + 1) % 3
    return with_labels(known, given)


def test_doubtful_labels_are_pictures_with_the_given_and_the_suggested_class() -> None:
    found = doubtful_labels(context(wrong()))
    assert found is not None
    first = found["pictures"][0]
    assert first["uri"].startswith("data:image/png")
    assert {first["given"], first["suggested"]} < set(CLASSES)
    assert {each["name"] for each in found["pictures"][:6]} == {str(1000 + i) for i in range(0, 120, 20)}
    assert found["labels"] == "120 labels"
    assert (found["features"], found["copies"]) == ("clouds", 0)


def test_of_many_doubtful_labels_the_first_are_shown_and_all_are_counted() -> None:
    known = with_labels(clouds(), np.random.default_rng(0).integers(0, 3, 120))
    found = doubtful_labels(context(known))
    assert found is not None
    assert len(found["pictures"]) == SHOWN
    assert found["count"] > SHOWN


def test_a_copy_with_another_label_is_named() -> None:
    known = clouds()
    known.images.pixels[10] = known.images.pixels[0]
    found = doubtful_labels(context(known))
    assert found is not None
    assert found["copies"] == 2
    assert [each["copy_of"] for each in found["pictures"][:2]] in (["1010", "1000"], ["1000", "1010"])


def test_without_labels_to_judge_there_is_no_section() -> None:
    assert doubtful_labels(context(None)) is None
    assert learned(context(None)) is None
    assert doubtful_labels(Context(Stored(), None, False)) is None
    assert doubtful_labels(context(clouds(6))) is None


def test_the_curve_is_drawn_with_what_was_measured_and_what_comes_next() -> None:
    found = learned(context(clouds()))
    assert found is not None
    chart = found["chart"]
    assert str(chart.drawing).count("<circle") == 4
    assert "labels now" in chart.drawing
    assert "polygon" in chart.drawing
    assert found["sentence"].startswith("The next 50 labels are likely to change accuracy by ")


def test_where_the_curve_cannot_be_told_it_says_why() -> None:
    few, network = learned(context(clouds(24))), learned(context(replace(clouds(), rows=clouds().rows * 2)))
    assert few is not None
    assert network is not None
    assert few["chart"] is None
    assert "cannot be told from so few" in few["sentence"]
    assert network["chart"] is None
    assert "trained again" in network["sentence"]


@pytest.mark.parametrize(
    ("interval", "words"), [((0.0, 0.02), "by +0.0 to +2.0"), ((-0.0051, 0.031), "by −0.5 to +3.1")]
)
def test_the_gain_is_an_interval(interval: tuple[float, float], words: str) -> None:
    assert words in str(LearningCurve(100, (), (), (), 50, 0.01, interval))


def test_the_page_of_a_run_on_an_encoder_shows_both(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_encoder(monkeypatch)
    folder = striped_folder(labeled=40)
    shutil.copy(folder / "across" / "0.png", folder / "down" / "same.png")
    run = ebpl.train(folder, preset="features", run="run")
    text = ebpl.report(run).read_text()
    assert 'id="labels"' in text
    assert text.count('<span class="badge">copy</span>') == 2
    assert '<span class="file">down/same.png</span>' in text
    assert "The next 50 labels" in text
    assert "Labels that may be wrong" in text


def test_names_of_classes_in_the_section_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from ebpl.reporting import page

    use_small_encoder(monkeypatch)
    folder = striped_folder(labeled=40)
    (folder / "across").rename(folder / EVIL.replace("/", "_"))
    (folder / "down" / "1.png").rename(folder / EVIL.replace("/", "_") / "1.png")
    run = ebpl.train(folder, preset="features", run="run")
    text = page(run)
    assert "<script" not in text
    section = text.partition('id="labels"')[2].partition("</section>")[0]
    assert "&lt;script&gt;" in section


def test_images_left_out_as_outliers_are_counted_at_their_step() -> None:
    steps = [Step(1, 5, 0.9, 0, 0, 0, 0), Step(2, 8, 0.8, 0, 0, 5, 1)]
    history = [{"phase": "initial", "rejected": 0.0}, {"phase": "step 2 of 2", "rejected": 3.0}]
    found = pseudo_labels(steps, history, CLASSES)
    assert [row["left_out"] for row in found["rows"]] == [0, 3]
    assert found["rejected"]
    assert not pseudo_labels(steps, [], CLASSES)["rejected"]


def test_the_table_of_pseudo_labels_says_how_many_of_each_class_and_which_got_none() -> None:
    steps = [Step(1, 5, 0.9, 0, 0, 0, 0, {"a": 4, "c": 1})]
    (row,) = pseudo_labels(steps, [], CLASSES)["rows"]
    assert row["classes"] == "a: 4, c: 1; 1 class got none"
