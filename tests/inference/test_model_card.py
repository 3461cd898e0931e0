import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import ebpl
from ebpl import calibration as checking
from ebpl.calibration import CalibrationCheck
from ebpl.data.dataset import ImageSet
from ebpl.inference.model_card import encoder_name, model_card
from ebpl.metrics import METRICS, confidence_direction, in_words
from ebpl.metrics.intervals import interval_in_words
from ebpl.runs import Run
from ebpl.terminal import literal, markdown_table
from ebpl.training.relabel import described_counts
from tests.helpers import blobs, quick

FACTS: dict[str, Any] = {
    "compared": 64,
    "probability_difference": 1e-8,
    "energy_difference": 1e-7,
    "runtime": "onnxruntime 1.0",
    "parameters": 12345,
    "outlier_energy": 1.25,
}
HOSTILE = ("<script>alert(1)</script>", "a|b\nc", "![x](http://example.com/x.png) `d` *e* &lt;")


def card(run: Run, **changes: Any) -> str:
    _, description = run.load_model()
    return model_card(run, description, {**FACTS, **changes}, "model.onnx")


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown page, as rows of cells, read by a parser that is not ours."""
    page = MarkdownIt("commonmark").enable("table").render(text)
    found = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    rows = [re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL) for table in found]
    return [
        [[html.unescape(re.sub(r"</?code>", "", c)) for c in re.findall(r"<td>(.*?)</td>", row)] for row in table]
        for table in rows
    ]


def test_it_tells_data_labels_measures_reliability_settings_and_environment(run: Run) -> None:
    text = card(run)
    _, labels, measures, classes, bins, sets, promises, steps, settings, environment = tables(text)
    result = run.metrics()
    word = confidence_direction(result["metrics"]["overconfidence"], result["reliability"])
    assert [row[:2] for row in classes] == [[row["class"], str(row["images"])] for row in result["by_class"]]
    for cell, name, there in ((3, "recall", "images"), (5, "precision", "predicted")):
        assert [row[cell] for row in classes] == [
            f"{100 * row[f'{name}_interval'][0]:.0f} to {100 * row[f'{name}_interval'][1]:.0f} %" if row[there] else "-"
            for row in result["by_class"]
        ]
    of_classes = result["prediction_sets"]["by_class"]
    assert [row[:3] for row in sets] == [
        [row["class"], str(row["images"]), f"{100 * row['coverage']:.1f} %"] for row in of_classes
    ]
    assert f"at least {result['prediction_sets']['least_probability']:.4f}" in text
    assert [row[0] for row in promises] == ["90 %", "95 %", "99 %"]
    assert [row[2] for row in steps] == [described_counts(step["classes"]) for step in result["pseudo_labels"]]
    assert labels == [[name, "5", "33.3 %", "33.3 %"] for name in "012"]
    assert "Probabilities are for the class mix of the labels." in text
    assert f"15 labelled and {len(blobs().train) - 15} unlabelled images" in text
    assert measures == [
        [METRICS[n].title, in_words(n, result["metrics"][n], word), interval_in_words(n, result["intervals"].get(n))]
        for n in METRICS
    ]
    assert sum(bool(row[2]) for row in measures) >= 5
    assert sum(int(row[1]) for row in bins) == result["metrics"]["images"]
    assert all((row[2] == "-") == (row[1] == "0") for row in bins)
    assert [int(row[1]) for row in steps] == [step["images"] for step in result["pseudo_labels"]]
    assert dict(settings)["optim.epochs"] == str(run.settings.optim.epochs)
    assert len(settings) == len(run.settings.to_dict())
    assert dict(environment)["torch"] == run.environment()["torch"]
    assert "not a medical device" in text
    assert "higher than 1.25" in text
    assert str(Path.cwd()) not in text


ENCODER: dict[str, Any] = {
    "name": "lite",
    "title": "Lite, trained on photographs",
    "licence": "Apache-2.0",
    "source": "a package 1.0",
    "size": 224,
    "resizes": True,
    "fine_tuned": False,
    "digest": "0123456789abcdef",
    "parameters": 3_371_008,
}


def test_an_encoder_is_named_with_its_licence_and_source(run: Run) -> None:
    text = card(run, encoder=ENCODER)
    about = dict(tables(text)[0])
    assert (about["name"], about["licence of the weights"]) == ("lite", "Apache-2.0")
    assert about["source of the weights"] == "a package 1.0"
    assert about["network"] == "Lite, trained on photographs, 3,371,008 parameters"
    assert "resizes" in about["input"]
    assert "resizes" not in dict(tables(card(run, encoder={**ENCODER, "resizes": False}))[0])["input"]
    assert "two heads with 12,345 parameters" in text
    assert "only what its encoder does" in text
    assert "has not been changed" in text
    assert "encoder" not in card(run).partition("## Settings")[0]


def test_a_fine_tuned_encoder_is_said_to_have_learned(run: Run) -> None:
    text = card(run, encoder={**ENCODER, "fine_tuned": True})
    assert "a pretrained encoder that was fine-tuned, with two heads: 12,345 parameters" in text
    assert "has learned more from these" in text
    assert "only what its encoder does" not in text


def test_what_an_encoder_is_called_stays_text(run: Run) -> None:
    for hostile in HOSTILE:
        about = dict(tables(card(run, encoder={**ENCODER, "title": hostile, "licence": hostile}))[0])
        assert about["licence of the weights"] == " ".join(hostile.split())


def test_the_folder_of_an_encoder_is_not_told(run: Run) -> None:
    path = "/home/ada/secret/scans.toml"
    settings = run.path / "settings.toml"
    head = "[settings.model]\n"
    settings.write_text(settings.read_text().replace(head, f'{head}encoder = "{path}"\n'))
    text = card(Run(run.path), encoder={**ENCODER, "name": encoder_name(path)})
    assert "secret" not in text
    assert ["model.encoder", "scans.toml"] in tables(text)[-2]


def test_the_direction_of_a_wrong_confidence_is_told(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    for value, words in ((0.031, "3.1 % too high"), (-0.2, "20.0 % too low")):
        result["metrics"]["overconfidence"] = value
        path.write_text(json.dumps(result))
        assert words in card(run)


def test_warnings_stand_before_all_sections(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    assert "Before you use" not in card(run) or result["never_predicted"]
    path.write_text(json.dumps({**result, "never_predicted": ["a|b"]}))
    text = card(run)
    assert r"Never predicted for any test image: a\|b" in text
    assert text.index("Before you use this model") < text.index("## What it is")


def test_a_result_of_an_older_version_makes_a_card_without_what_it_lacks(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    for name in ("by_class", "never_predicted", "majority_share", "class_means", "prediction_sets"):
        del result[name]
    for step in result["pseudo_labels"]:
        del step["classes"]
    for name in ("auroc", "balanced_accuracy", "overconfidence", "images"):
        del result["metrics"][name]
    path.write_text(json.dumps(result))
    text = card(run)
    assert "By class" not in text
    assert "conformal" not in text
    assert "| balanced accuracy | – |" in text
    (run.path / "details.npz").unlink()
    assert "abstention" not in card(run)


def test_classes_of_a_run_without_confidences_by_class_have_dashes(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    for row in result["by_class"]:
        for name in ("predicted", "precision_interval", "confidence"):
            del row[name]
    path.write_text(json.dumps(result))
    classes = tables(card(run))[3]
    assert [row[5:7] for row in classes] == [["-", "-"]] * 3
    assert [row[0] for row in classes] == ["0", "1", "2"]


def test_the_class_mix_that_probabilities_are_for_is_shown_with_its_interval(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    mix = {"shares": [0.7, 0.2, 0.1], "log_ratio": [1.0, 0.0, -1.0], "interval": [[0.5, 0.8], [0.1, 0.4], [0, 0.2]]}
    path.write_text(json.dumps({**result, "class_mix": mix}))
    text = card(run)
    assert tables(text)[1] == [
        ["0", "5", "33.3 %", "70.0 %", "50 to 80 %"],
        ["1", "5", "33.3 %", "20.0 %", "10 to 40 %"],
        ["2", "5", "33.3 %", "10.0 %", "0 to 20 %"],
    ]
    assert "estimated in training" in text


def test_a_file_of_shares_is_named_without_its_folder(run: Run) -> None:
    settings = run.path / "settings.toml"
    head = "[settings.data]\n"
    settings.write_text(settings.read_text().replace(head, f'{head}class_mix = "/home/ada/secret/clinic.csv"\n'))
    text = card(Run(run.path))
    assert "secret" not in text
    assert ["data.class_mix", "clinic.csv"] in tables(text)[-2]


def test_where_an_accuracy_can_be_promised_the_confidence_is_named(run: Run) -> None:
    confidences = np.full(300, 0.9, np.float32)
    classes = np.zeros(300, np.uint16)
    run.save_details({"test_confidences": confidences, "test_labels": classes, "test_truth": classes.astype(np.int16)})
    rows = tables(card(run))[6]
    assert rows[0] == ["90 %", "0.00", "100.0 %", "300 (99 to 100 %)"]
    assert rows[2] == ["99 %", "none", "-", "-"]


def test_it_claims_nothing_that_was_not_measured() -> None:
    full = blobs()
    data = ImageSet(full.name, full.classes, full.train)
    run = ebpl.train(data, quick(method="curriculum-labeling", pseudo_labels="none"), run="run")
    text = card(run, outlier_energy=None)
    assert "Not known: there were no labelled test images" in text
    assert "no labelled images tested it" in text
    assert "It has no density" in text
    assert "gave itself" not in text
    assert not any(METRICS["accuracy"].title in row for table in tables(text) for row in table)


def test_weights_of_the_initial_training_have_not_learned_from_pseudo_labels(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    assert "labels that it gave to unlabelled images" in card(run)
    result["chosen"]["phase"] = "initial"
    path.write_text(json.dumps(result))
    assert "labels that it gave to unlabelled images" not in card(run)


def test_a_method_of_another_paper_is_not_said_to_be_after_ours(run: Run) -> None:
    assert "(Toba, Uchida, Hayashi)" in card(run)
    text = card(ebpl.train(blobs(), quick(method="fixmatch", epochs=1), run="fixmatch"))
    assert "Toba" not in text
    assert "above a threshold (Sohn et al. 2020))." in text
    assert "from the labelled images and from what it predicted for unlabelled images." in text


def test_a_run_of_an_older_version_says_what_was_not_recorded(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    del result["images"]
    path.write_text(json.dumps(result))
    assert "was not recorded" in card(run)


def test_names_of_classes_are_shown_as_they_are_and_make_no_markup() -> None:
    full = blobs()
    run = ebpl.train(ImageSet("<b>data</b>", HOSTILE, full.train), quick(pseudo_labels="none"), run="run")
    text = card(run)
    page = MarkdownIt("commonmark").enable("table").render(text)
    for tag in ("<script", "<img", "<b>", "<a "):
        assert tag not in page
    labels = tables(text)[1]
    assert [name for name, *_ in labels] == [" ".join(name.split()) for name in HOSTILE]


def test_it_tells_what_labels_that_waited_have_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MIN_HOLDOUT", 1)
    run = ebpl.train(blobs(), quick(curriculum__calibration_holdout=0.4, curriculum__steps=1), run="run")
    assert str(CalibrationCheck.stored(run.metrics()["check"])) in card(run)


@given(st.text(max_size=20))
def test_any_text_is_shown_as_it_is_and_makes_no_markup(text: str) -> None:
    table = MarkdownIt("commonmark").enable("table").render(markdown_table(["name"], [[literal(text)]]))
    (cell,) = re.findall(r"<td>(.*?)</td>", table, re.DOTALL)
    printable = "".join(c if c.isprintable() else " " for c in text)
    assert html.unescape(cell) == " ".join(printable.split())


def test_a_table_has_a_line_below_its_heads() -> None:
    assert markdown_table(["a", "b"], []) == "| a | b |\n| --- | --- |"


def test_test_images_that_were_trained_on_are_told(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    tested = result["images"]["test"]
    assert f"On {tested} test images that it has not seen:" in card(run)
    for count, words in ((1, "1 is"), (2, "2 are")):
        path.write_text(json.dumps({**result, "images": {**result["images"], "test_in_training": count}}))
        text = card(run)
        assert text.count(f", of which {words} also among the training images") == 2
        assert "not seen" not in text
    del result["images"]["test_in_training"]  # as of a run that did not count them
    path.write_text(json.dumps(result))
    assert f"On {tested} test images:" in card(run)


def test_a_training_that_a_time_limit_shortened_is_told(run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    assert "time limit" not in card(run)
    path.write_text(json.dumps({**result, "updates": {"made": 41, "of": 100}}))
    assert "The time limit shortened training to 41 % of the updates of its settings." in card(run)
