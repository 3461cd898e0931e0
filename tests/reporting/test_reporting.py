import contextlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ebpl
from ebpl import calibration as checking
from ebpl.calibration import CalibrationCheck
from ebpl.cli import main
from ebpl.errors import DataError, EbplError, RunError, UsageError, WriteError
from ebpl.inference.predict import measured_accuracy
from ebpl.metrics.classification import wilson_interval
from ebpl.reporting import page
from ebpl.runs import Run
from tests.helpers import blobs, class_folders, quick
from tests.named_runs import EVIL, named_blobs

Named = Callable[[str], Run]
VOID = {"meta", "link", "img"}
DIVERGING = {
    "energy.penalty": 0.0,
    "sgld.clamp_samples": False,
    "sgld.steps": 1,
    "optim.gradient_clip": 0.0,
    "optim.learning_rate": 0.05,
    "optim.epochs": 6,
    "curriculum.pseudo_labels": "none",
}


class Page(HTMLParser):
    """The elements, addresses and text of a page, and whether every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.sections: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.tags.append(tag)
        self.addresses += [str(given[name]) for name in ("src", "href") if name in given]
        if tag == "section":
            self.sections.append(str(given["id"]))
        if tag not in VOID:
            self.open.append(tag)
        assert not any(name.startswith("on") for name in given)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_a_finished_run_shows_everything(run_named: Named) -> None:
    run = run_named("with truth")
    found = read(ebpl.report(run, data=named_blobs()))
    wanted = ["confidence", "coverage", "sets", "classes", "mix", "map", "mistakes", "uncertain", "labels", "energy"]
    assert found.sections == [*wanted, "pseudo-labels", "samples", "training", "settings"]
    assert "Not shown on this page" not in found.text
    accuracy = run.metrics()["metrics"]["accuracy"]
    assert f"Accuracy is {100 * accuracy:.1f}\xa0%" in found.text
    for name, value in run.settings.to_dict().items():
        assert name in found.text, value
    assert str(run.environment()["torch"]) in found.text


def test_the_page_needs_nothing_from_outside_and_runs_nothing(run_named: Named) -> None:
    path = ebpl.report(run_named("with truth"), data=named_blobs())
    found = read(path)
    assert "script" not in found.tags
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    assert not re.search(r"@import|url\((?!#)", path.read_text())
    targets = {address[1:] for address in found.addresses if address.startswith("#")}
    assert targets == set(found.sections)


def test_names_from_outside_are_text(run_named: Named) -> None:
    text = page(run_named("with truth"), named_blobs())
    found = Page(text)
    assert EVIL in found.text
    assert "<b>blobs</b>" in found.text
    assert "b&b" in found.text
    assert "<script" not in text


def test_html_in_file_names_and_in_every_stored_file_is_text(run_named: Named) -> None:
    run = run_named("without truth")
    result = {**json.loads((run.path / "test_metrics.json").read_text()), "healed_divergences": [{"reason": EVIL}]}
    (run.path / "test_metrics.json").write_text(json.dumps(result))
    (run.path / "environment.json").write_text(json.dumps({EVIL: EVIL, "command": [EVIL]}))
    (run.path / "metrics.csv").write_text(f"phase,epoch,cross_entropy\n{EVIL},1,2\n{EVIL} 2,1,2\n")
    (run.path / "pseudo_labels/step-1.csv").write_text(f"image,label,confidence,truth\n{EVIL},{EVIL},{EVIL},{EVIL}\n")
    text = page(run)
    assert "<script" not in text
    assert EVIL in Page(text).text


def test_without_ground_truth_it_says_what_cannot_be_known(run_named: Named) -> None:
    found = read(ebpl.report(run_named("without truth")))
    wanted = ["confidence", "mix", "map", "uncertain", "labels", "energy", "pseudo-labels", "samples", "training"]
    assert found.sections == [*wanted, "settings"]
    assert "Not shown on this page" not in found.text
    assert "are unlabelled, so accuracy was not measured" in found.text
    assert "How many predictions are right was not measured" in found.text
    assert "What to label next" in found.text
    assert "ebpl suggest " in found.text
    assert "expected accuracy" not in found.text
    assert "predictions are right. " not in found.text
    assert "ebpl evaluate " in found.text
    assert "unlabeled/0.png" in found.text


def test_the_baseline_has_no_energies(run_named: Named) -> None:
    found = read(ebpl.report(run_named("baseline"), data=named_blobs()))
    assert not {"energy", "samples", "pseudo-labels"} & set(found.sections)
    assert "Not shown on this page" not in found.text


def test_without_its_images_a_run_shows_what_it_wrote_down(run_named: Named) -> None:
    run = run_named("with truth")
    found = read(ebpl.report(run))
    wanted = ["confidence", "classes", "mix", "energy", "pseudo-labels", "samples", "training", "settings"]
    assert found.sections == wanted
    assert "could not be looked at, so there are no pictures" in found.text
    assert f"Accuracy is {100 * run.metrics()['metrics']['accuracy']:.1f}\xa0% on the 30 test images" in found.text


def test_warnings_of_a_run_stand_at_the_top(run_named: Named) -> None:
    run = run_named("with truth")
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "never_predicted": [EVIL]}))
    text = page(run, named_blobs())
    told = Page(text).text
    assert f"Never predicted for any test image: {EVIL}" in told
    assert told.index("Never predicted") < told.index("Calibration")
    assert "<script" not in text


def test_an_imbalanced_run_shows_classes_before_calibration(run_named: Named) -> None:
    run = run_named("with truth")
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    result["images"]["labelled"] = {EVIL: 15, "b&b": 5, "c": 2}
    path.write_text(json.dumps(result))
    found = read(ebpl.report(run, data=named_blobs()))
    assert found.sections[:2] == ["classes", "confidence"]
    assert found.sections.count("classes") == 1
    assert "balanced accuracy" in found.text


def test_samples_that_a_finished_run_lost_are_said_to_be_missing(run_named: Named) -> None:
    run = run_named("with truth")
    (run.path / "details.npz").unlink()
    found = read(ebpl.report(run, data=named_blobs()))
    assert "Not shown on this page" in found.text
    assert "There are no samples from the energy model" in found.text


@pytest.mark.parametrize(
    "damage",
    [
        {"training_energies": [10**400, 1.0]},
        {"class_means": [10**400]},
        {"by_class": [{"class": "a", "images": 10**400, "recall_interval": [0, 1]}]},
        {"by_class": [3]},
        {"by_class": [{"class": "a", "images": 3, "recall_interval": [None, 10**400]}]},
        {"majority_share": 10**400, "never_predicted": [{}, 10**400]},
        {"pseudo_labels": [{"step": 1, "classes": {"a": 10**400}}]},
        {"images": {"labelled": {"a": 10**400}}},
    ],
)
def test_a_damaged_result_ends_in_no_traceback(run_named: Named, damage: dict[str, Any]) -> None:
    run = run_named("with truth")
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, **damage}))
    page(run)
    page(run, named_blobs())
    for use in (lambda: ebpl.export(run, "a.onnx"), lambda: ebpl.predict(run, named_blobs().train.pixels[:3])):
        with contextlib.suppress(EbplError):
            use()


def test_a_null_in_a_bin_ends_in_no_traceback(run_named: Named) -> None:
    run = run_named("with truth")
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    row = next(row for row in result["reliability"] if row["images"])
    for name in ("accuracy", "confidence", "images"):
        path.write_text(json.dumps({**result, "reliability": [{**row, name: None}]}))
        page(run)
        page(run, named_blobs())
        with contextlib.suppress(EbplError):
            ebpl.export(run, "a.onnx")
        with contextlib.suppress(EbplError):
            measured_accuracy(Run(run.path), 0.5)


def test_a_run_that_has_just_begun(run_named: Named) -> None:
    run = run_named("without truth")
    for path in run.path.iterdir():
        if path.name not in ("settings.toml", "environment.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = read(ebpl.report(run))
    assert found.sections == ["training", "settings"]
    assert "not finished: 0 of 5 epochs" in found.text
    assert "No epoch is finished yet" in found.text
    assert "There are no weights yet" in found.text


def test_a_run_that_was_stopped_shows_its_weights_so_far_and_its_log(run_named: Named) -> None:
    run = run_named("with truth")
    (run.path / "test_metrics.json").unlink()
    found = read(ebpl.report(run, data=named_blobs()))
    assert "This run is not finished" in found.text
    assert {"mistakes", "energy", "training"} <= set(found.sections)
    assert "Last lines of the log" in found.text


def test_a_healed_divergence_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebpl.training.divergence.CHECK_EVERY", 3)
    run = ebpl.train("digits", quick(), set=DIVERGING, run="run")
    healed = run.metrics()["healed_divergences"]
    assert healed, "this setting is meant to diverge"
    text = Page(page(run)).text
    assert "Training diverged and recovered" in text
    assert healed[0]["reason"] in text


def test_what_held_out_labels_show_comes_first_where_nothing_else_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "MIN_HOLDOUT", 1)
    data = replace(blobs(), test=None)
    found = Page(page(run := ebpl.train(data, quick(curriculum__calibration_holdout=0.4), run="run"), data=data))
    check = CalibrationCheck.stored(run.metrics()["check"])
    assert str(check) in found.text
    assert "held-out accuracy" in found.text
    assert check is not None
    low, high = wilson_interval(round(6 * check.accuracy), 6)
    assert f"95 % interval {100 * low:.0f} to {100 * high:.0f}\xa0%, on 6 held-out labels" in found.text


def test_other_images_can_be_shown_instead(run_named: Named) -> None:
    class_folders(Path("others"), unlabeled=0)
    found = read(ebpl.report(run_named("without truth"), "others.html", "others"))
    assert "8 images of others" in found.text
    assert "mistakes" in found.sections


def test_the_page_is_written_where_one_wants_it(run_named: Named) -> None:
    run = run_named("without truth")
    assert ebpl.report(run) == run.path / "report.html"
    assert ebpl.report(run.path, "deep/in/here.html") == Path("deep/in/here.html")
    assert Path("deep/in/here.html").is_file()


def test_the_page_never_takes_the_place_of_another_file_of_the_run(run_named: Named) -> None:
    run = run_named("without truth")
    before = (run.path / "metrics.csv").read_bytes()
    with pytest.raises(UsageError, match=r"ends in \.html"):
        ebpl.report(run, run.path / "metrics.csv")
    assert (run.path / "metrics.csv").read_bytes() == before
    with pytest.raises(UsageError, match="is a folder"):
        ebpl.report(run, run.path)
    (run.path / "report.html").mkdir()
    with pytest.raises(WriteError, match="--output"):
        ebpl.report(run)


def test_a_link_that_is_asked_for_as_the_page_is_refused(run_named: Named) -> None:
    Path("precious").write_text("untouched")
    Path("page.html").symlink_to("precious")
    with pytest.raises(UsageError, match="is a link"):
        ebpl.report(run_named("without truth"), "page.html")
    assert Path("page.html").is_symlink()


def test_a_link_in_the_place_of_the_page_is_replaced_and_not_followed(run_named: Named) -> None:
    run = run_named("without truth")
    Path("precious").write_text("untouched")
    (run.path / "report.html").symlink_to(Path("precious").resolve())
    ebpl.report(run)
    assert Path("precious").read_text() == "untouched"
    assert not (run.path / "report.html").is_symlink()


def test_images_that_were_asked_for_must_be_there(run_named: Named) -> None:
    run = run_named("without truth")
    with pytest.raises(DataError, match="does not exist"):
        ebpl.report(run, data="no/such/folder")
    (run.path / "best.safetensors").unlink()
    with pytest.raises(RunError, match="no weights yet"):
        ebpl.report(run, data="no/such/folder")


def test_damaged_weights_are_told_on_the_page(run_named: Named) -> None:
    run = run_named("without truth")
    (run.path / "best.safetensors").write_bytes(b"no weights")
    found = read(ebpl.report(run))
    assert "best.safetensors is damaged" in found.text
    assert "training" in found.sections


def test_text_that_no_file_can_hold_does_not_stop_the_page(run_named: Named) -> None:
    run = run_named("without truth")
    (run.path / "environment.json").write_text('{"gpu": "\\ud800"}')
    assert "gpu" in read(ebpl.report(run)).text


def test_large_pictures_do_not_make_a_large_page() -> None:
    random = np.random.default_rng(0)
    data = ebpl.from_arrays(random.integers(0, 256, (60, 128, 128, 3), dtype=np.uint8), [0, 1] * 3 + [-1] * 54)
    settings = quick(method="curriculum-labeling", pseudo_labels="none", epochs=1, batch_size=4)
    path = ebpl.report(ebpl.train(data, settings, run="run"), data=data)
    assert path.stat().st_size < 2_000_000


def test_an_existing_page_is_replaced_only_in_the_run_directory_or_by_force(run_named: Named, capsys) -> None:
    run = run_named("without truth")
    Path("page.html").write_text("precious")
    with pytest.raises(UsageError, match=r"page\.html exists already"):
        ebpl.report(run, "page.html")
    assert main(["report", str(run.path), "--output", "page.html"]) == UsageError.exit_code
    assert "exists already" in capsys.readouterr().err
    assert Path("page.html").read_text() == "precious"
    for output, force in ((None, False), (run.path / "report.html", False), ("page.html", True)):
        place = Path(output or run.path / "report.html")
        place.write_text("old")
        assert ebpl.report(run, output, force=force) == place
        assert place.read_text() != "old"


def test_the_mean_confidence_is_never_shown_as_an_accuracy(run_named: Named) -> None:
    run = run_named("without truth")
    result = json.loads((run.path / "test_metrics.json").read_text())
    check = {"images": 120, "accuracy": 0.5, "confidence": 0.75, "proof": 0.0, "temperature": 1.0}
    (run.path / "test_metrics.json").write_text(json.dumps({**result, "metrics": None, "check": check}))
    text = page(Run(run.path))
    assert '<span class="name">accuracy</span><span class="value">not measured</span>' in text
    assert "<th>threshold</th><th>mean confidence</th></tr>" in text
    assert "Accuracy on 120 held-out labels is 50.0 % at a mean confidence of 75.0 %" in text


def test_test_images_that_were_trained_on_are_told_also_where_they_are_gone(run_named: Named) -> None:
    data = named_blobs()
    assert data.test is not None
    pixels = np.concatenate([data.train.pixels[:2], data.test.pixels[2:]])
    data = replace(data, test=replace(data.test, pixels=pixels))
    run = ebpl.train(data, quick(labels_per_class=5, pseudo_labels="none"), run="leaky")
    words = "2 of the 30 test images were in the training data, so this is not a measure of new images alone."
    assert words in read(ebpl.report(run, data=data)).text
    assert words in read(ebpl.report(run)).text  # the arrays are not there


def test_other_data_that_was_trained_on_is_told() -> None:
    class_folders(Path("pets"))
    run = ebpl.train("pets", quick(pseudo_labels="none"), run="run")
    for label in ("cats", "dogs"):
        shutil.copytree(Path("pets") / label, Path("again") / label)
    text = read(ebpl.report(run, data="again")).text
    assert "8 of these 8 images were in the training data, so this is not a measure of new images." in text


def test_what_a_time_limit_has_cut_is_told(run_named: Named) -> None:
    run = run_named("baseline")
    assert "time limit" not in read(ebpl.report(run)).text
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    full = result["updates"]["of"]
    path.write_text(json.dumps({**result, "updates": {"made": 4 * full // 10, "of": full}}))
    table = run.path / "metrics.csv"
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{head},updates", *(f"{row},{1 + i}" for i, row in enumerate(rows))]))
    text = read(ebpl.report(run)).text
    assert "The time limit shortened training to " in text
    assert re.search(r"optim\.updates_per_epoch\s*by the data, under a time limit 1 to 2", text)
