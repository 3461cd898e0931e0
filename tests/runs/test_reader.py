import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebpl.config.compat import BEFORE
from ebpl.errors import RunError
from ebpl.inference.evaluate import SAMPLES
from ebpl.metrics import METRICS
from ebpl.runs import Run
from ebpl.runs.reader import (
    Stored,
    finite,
    read,
    read_answers,
    read_environment,
    read_metrics,
    read_settings,
    read_training_digests,
    warnings_of,
)

GOOD = {"metrics": dict.fromkeys(METRICS, 0.5), "chosen": {"phase": "initial", "epoch": 1, "by": "last epoch"}}
ROW = {"above": 0, "up_to": 1, "images": 3, "accuracy": 0.5, "confidence": None}


@pytest.mark.parametrize(
    "content",
    [
        "[settings]\n",
        "settings = 3\ndata = 4",
        "settings = 3\nsource = 4",
        "[settings]\n[source]\nname = 3",
        "[settings]\n[data]\nname = 3",
        "[settings]\n[data]\nname = 'x'\npath = ['a']",
        "[settings]\n[data]\nname = 'x'\nimage_size = 'large'",
        "[settings]\n[data]\nname = 'x'\nimage_size = -1",
        "[settings]\n[data]\nname = 'x'\nskip_unreadable = 'yes'",
        "a = " + "[" * 5000,
        "no toml",
        "\x00",
    ],
)
def test_settings_that_are_none_name_the_file_and_what_to_do(content: str) -> None:
    Path("settings.toml").write_text(content)
    with pytest.raises(RunError, match=r"settings\.toml .*Put the file back") as raised:
        read_settings(Path("settings.toml"))
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("content", ["[]", "3", '{"threads": "many"}', '{"runs_together": 0}', "[" * 100_000, "\xff"])
def test_an_environment_that_is_none_names_the_file_and_what_to_do(content: str) -> None:
    path = Path("environment.json")
    with pytest.raises(RunError, match=r"environment\.json is missing\. .*write \{\} into it"):
        read_environment(path)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(RunError, match=r"environment\.json is damaged .*write \{\} into it"):
        read_environment(path)
    path.write_text("{}")
    assert read_environment(path) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"metrics": 3},
        {"metrics": {"ece": 1}},
        {"metrics": {**GOOD["metrics"], "ece": "low"}},
        {"chosen": {}},
        {"chosen": None},
        {"training_energies": []},
        {"training_energies": ["a"]},
        {"training_energies": {"a": 1}},
        {"reliability": [{"above": 0}]},
        {"reliability": [{**ROW, "images": "many"}]},
    ],
)
def test_metrics_that_are_none_name_the_file_and_what_to_do(changed: dict[str, object]) -> None:
    path = Path("test_metrics.json")
    path.write_text(json.dumps({**GOOD, "training_energies": [1, 2.5], "reliability": [ROW]}))
    assert read_metrics(path)["chosen"] == GOOD["chosen"]
    path.write_text(json.dumps({**GOOD, "metrics": None}))
    assert read_metrics(path)["metrics"] is None
    path.write_text(json.dumps({**GOOD, **changed}))
    with pytest.raises(RunError, match=r"test_metrics\.json is damaged .*ebpl resume"):
        read_metrics(path)


def test_a_metric_that_came_after_the_run_is_null_and_one_nobody_knows_is_left_out() -> None:
    path = Path("test_metrics.json")
    path.write_text(json.dumps({**GOOD, "metrics": {"accuracy": 0.5, "unheard_of": 1.0}}))
    assert read_metrics(path)["metrics"] == {**dict.fromkeys(METRICS), "accuracy": 0.5}


def test_settings_of_version_0_1_are_read_as_those_of_today() -> None:
    old, new = Path("old.toml"), Path("new.toml")
    old.write_text("[data]\nname = 'x'\n[settings]\nseed = 3\nsgld_steps = 5\nheld_back = 0.2\nguard_every = 7\n")
    new.write_text(
        "[source]\nname = 'x'\n[settings]\nseed = 3\n[settings.sgld]\nsteps = 5\n"
        "[settings.curriculum]\ncalibration_holdout = 0.2\n"
    )
    assert read_settings(old) == read_settings(new)
    assert read_settings(new)[0] == {**BEFORE, "seed": 3, "sgld.steps": 5, "curriculum.calibration_holdout": 0.2}


Named = Callable[[str], Run]


def rows(run: Run, step: int) -> dict[str, dict[str, str]]:
    with (run.path / f"pseudo_labels/step-{step}.csv").open(newline="") as file:
        return {row["image"]: row for row in csv.DictReader(file)}


def test_what_a_run_wrote_is_read(run_named: Named) -> None:
    run = run_named("with truth")
    stored = read(run.path)
    assert not stored.problems
    assert [row["phase"] for row in stored.history] == ["initial", "initial", "step 1 of 2", "step 2 of 2"]
    assert stored.result == run.metrics()
    assert stored.environment == run.environment()
    assert stored.samples is not None
    assert stored.samples.shape == (SAMPLES, 8, 8, 1)
    assert stored.energies is not None
    assert (np.diff(stored.energies) >= 0).all()
    assert stored.log[-1]


def test_steps_agree_with_their_tables_and_with_training(run_named: Named) -> None:
    run = run_named("with truth")
    first, second = read(run.path).steps
    before, now = rows(run, 1), rows(run, 2)
    assert (first.step, first.images, first.again) == (1, len(before), 0)
    assert second.images == second.known == len(now)
    assert second.right == sum(row["label"] == row["truth"] for row in now.values())
    both = before.keys() & now.keys()
    assert second.again == len(both)
    assert second.changed == sum(before[image]["label"] != now[image]["label"] for image in both)
    assert second.confidence == pytest.approx(np.mean([float(row["confidence"]) for row in now.values()]))
    assert second.right / second.known == pytest.approx(run.metrics()["pseudo_labels"][1]["accuracy"])


def test_without_truth_nothing_is_known_to_be_right(run_named: Named) -> None:
    steps = read(run_named("without truth").path).steps
    assert [step.known for step in steps] == [0, 0, 0]
    assert steps[-1].again > 0


@pytest.mark.parametrize(
    "name",
    ["metrics.csv", "test_metrics.json", "environment.json", "details.npz", "train.log", "pseudo_labels/step-1.csv"],
)
def test_a_link_that_leads_out_of_the_run_is_not_followed(run_named: Named, tmp_path: Path, name: str) -> None:
    run = run_named("with truth")
    secret = tmp_path / "secret"
    (run.path / name).rename(secret)
    (run.path / name).symlink_to(secret)
    stored = read(run.path)
    assert any(name in line and "leads out of the run" in line for line in stored.problems)
    whole = json.dumps([stored.history, stored.result, stored.environment, stored.log])
    if name != "details.npz":
        assert secret.read_text()[:200] not in whole
    else:
        assert stored.samples is None


def test_a_folder_of_pseudo_labels_that_leads_out_is_not_followed(run_named: Named, tmp_path: Path) -> None:
    run = run_named("with truth")
    (run.path / "pseudo_labels").rename(tmp_path / "elsewhere")
    (run.path / "pseudo_labels").symlink_to(tmp_path / "elsewhere")
    stored = read(run.path)
    assert stored.steps == []
    assert "leads out" in stored.problems[0]


def test_a_link_to_itself_is_not_followed(run_named: Named) -> None:
    run = run_named("with truth")
    (run.path / "metrics.csv").unlink()
    (run.path / "metrics.csv").symlink_to("metrics.csv")
    assert read(run.path).history == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("test_metrics.json", b"{"),
        ("test_metrics.json", b"[1]"),
        ("test_metrics.json", b"[" * 100_000),
        ("environment.json", b"\xff\xfe"),
        ("metrics.csv", b"phase,epoch\n\xff,1\n"),
        ("details.npz", b"PK no zip"),
        ("pseudo_labels/step-1.csv", b'image,label\n"' + b"x" * 200_000),
    ],
)
def test_damaged_files_are_told_and_left_out(run_named: Named, name: str, content: bytes) -> None:
    run = run_named("with truth")
    (run.path / name).write_bytes(content)
    problems = read(run.path).problems
    assert len(problems) == 1
    assert f"{name} is damaged" in problems[0]


def test_nothing_in_details_is_unpickled(run_named: Named) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (Path("sprung"),)

    run = run_named("with truth")
    np.savez(run.path / "details.npz", samples=np.array([Trap()], dtype=object))
    stored = read(run.path)
    assert stored.samples is None
    assert "damaged" in stored.problems[0]
    assert not Path("sprung").exists()


@pytest.mark.parametrize(
    "samples", [np.zeros((3, 8, 8), np.uint8), np.zeros((3, 8, 8, 3)), np.zeros((0, 8, 8, 1), np.uint8)]
)
def test_samples_that_are_no_images_are_left_out(run_named: Named, samples: np.ndarray) -> None:
    run = run_named("with truth")
    np.savez(run.path / "details.npz", samples=samples)
    assert read(run.path).samples is None


def test_samples_that_would_fill_the_memory_are_not_unpacked(run_named: Named) -> None:
    run = run_named("with truth")
    np.savez_compressed(run.path / "details.npz", samples=np.zeros((70, 1024, 1024, 1), np.uint8))
    assert (run.path / "details.npz").stat().st_size < 1_000_000
    stored = read(run.path)
    assert stored.samples is None
    assert "too large" in stored.problems[0]


@pytest.mark.parametrize("value", [None, "", "nan", float("inf"), True, [1], "x", {}, 10**400])
def test_what_is_no_number_is_none(value: object) -> None:
    assert finite(value) is None


def test_divergences_of_an_unfinished_run_come_from_its_epochs() -> None:
    history = [{"phase": "initial", "epoch": float(i), "healed": float(i > 2)} for i in range(1, 5)]
    assert Stored(history=history).healed == [{"phase": "initial", "epoch": 3.0}]
    events = [{"phase": "initial", "epoch": 1, "reason": "ran away"}]
    assert Stored(history=history, result={"healed_divergences": [*events, "no event"]}).healed == events


def whole(**changes: Any) -> dict[str, Any]:
    """A result that nothing is wrong with, but for some entries."""
    return {
        "metrics": {"accuracy": 0.9, "overconfidence": 0.02},
        "images": {"test": 500, "validation": 100},
        "curves": {"validation_accuracy": [0.5, 0.9], "validation_confidence": [0.9, 0.9]},
        "check": {"images": 100, "accuracy": 0.9, "confidence": 0.88, "temperature": 1.0},
        "healed_divergences": [],
        "majority_share": 0.3,
        "never_predicted": [],
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"healed_divergences": [{"phase": "initial"}]}, "diverged and recovered once"),
        ({"metrics": {"accuracy": 0.11, "overconfidence": 0.89}, "majority_share": 0.1}, "is over-confident"),
        ({"metrics": {"accuracy": 0.9, "overconfidence": -0.3}}, "is under-confident"),
        (
            {"curves": {"validation_accuracy": [0.4], "validation_confidence": [0.9]}},
            "on the validation images is 90 %",
        ),
        (
            {"check": {"images": 100, "accuracy": 0.5, "confidence": 0.9, "temperature": 1}},
            "on held-out labels is 90 %, its accuracy 50 %",
        ),
        ({"majority_share": 0.89}, "not clearly better than always naming the largest class, which has 89.0 %"),
        ({"majority_share": 0.95}, "below that of always naming the largest class, which has 95.0 %"),
        ({"never_predicted": ["cat", "dog"]}, "Never predicted for any test image: cat, dog."),
    ],
)
def test_what_a_user_should_know_of_a_run_is_said(changes: dict[str, Any], said: str) -> None:
    assert any(said in warning for warning in warnings_of(whole(**changes)))


def test_an_ordinary_run_or_a_gap_that_may_be_chance_is_no_warning() -> None:
    assert warnings_of(whole()) == []
    assert warnings_of({}) == []
    few = whole(metrics={"accuracy": 0.5, "overconfidence": 0.15}, images={"test": 10}, curves={}, majority_share=0.1)
    assert warnings_of(few) == []


def test_warnings_about_a_foreign_result_never_fail() -> None:
    odd: list[Any] = [None, -1, 10**400, float("nan"), "x", [], {}, [None], {"accuracy": "x", "test": -3}]
    for name in whole():
        for value in odd:
            warnings_of(whole(**{name: value}))
    for value in odd:
        warnings_of(
            whole(images={"test": value, "validation": value}, metrics={"accuracy": value, "overconfidence": value})
        )


def test_digests_of_the_training_images_are_read_with_suspicion(tmp_path: Path) -> None:
    assert read_training_digests(tmp_path) is None
    np.savez(tmp_path / "details.npz", training_digests=np.array([1, 2**64 - 1], np.uint64))
    found = read_training_digests(tmp_path)
    assert found is not None
    assert found.tolist() == [1, 2**64 - 1]
    for wrong in (np.zeros(2), np.zeros((2, 1), np.uint64), np.uint64(1), np.array([None], object), np.array(["x"])):
        np.savez(tmp_path / "details.npz", training_digests=wrong)
        assert read_training_digests(tmp_path) is None
    (tmp_path / "details.npz").write_bytes(b"PK no zip")
    assert read_training_digests(tmp_path) is None


def test_answers_are_those_for_test_images_with_a_label(tmp_path: Path) -> None:
    good = {"test_confidences": np.array([0.5, 0.75, 1], np.float32), "test_labels": np.array([0, 1, 1], np.uint16)}
    np.savez(tmp_path / "details.npz", **good, test_truth=np.array([0, -1, 0], np.int16))
    found = read_answers(tmp_path)
    assert found is not None
    assert [each.tolist() for each in found] == [[0.5, 1.0], [True, False]]
    for wrong in (np.array([0.0, 1.0, 0.0]), np.zeros(2, int), np.zeros((3, 1), int), np.full(3, -1)):
        np.savez(tmp_path / "details.npz", **good, test_truth=wrong)
        assert read_answers(tmp_path) is None
    np.savez(tmp_path / "details.npz", **good)
    assert read_answers(tmp_path) is None
    (tmp_path / "details.npz").write_bytes(b"PK no zip")
    assert read_answers(tmp_path) is None
