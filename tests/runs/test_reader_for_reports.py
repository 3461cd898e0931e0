import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ebpl.runs import Run
from ebpl.runs.reader import Stored, finite, read

Trained = Callable[[str], Run]


def rows(run: Run, step: int) -> dict[str, dict[str, str]]:
    with (run.path / f"pseudo_labels/step-{step}.csv").open(newline="") as file:
        return {row["image"]: row for row in csv.DictReader(file)}


def test_what_a_run_wrote_is_read(trained: Trained) -> None:
    run = trained("with truth")
    stored = read(run)
    assert not stored.problems
    assert [row["phase"] for row in stored.history] == ["initial", "initial", "step 1 of 2", "step 2 of 2"]
    assert stored.result == run.metrics()
    assert stored.environment == run.environment()
    assert stored.samples is not None
    assert stored.samples.shape == (25, 8, 8, 1)
    assert stored.energies is not None
    assert (np.diff(stored.energies) >= 0).all()
    assert stored.log[-1]


def test_steps_agree_with_their_tables_and_with_training(trained: Trained) -> None:
    run = trained("with truth")
    first, second = read(run).steps
    before, now = rows(run, 1), rows(run, 2)
    assert (first.step, first.images, first.again) == (1, len(before), 0)
    assert second.images == second.known == len(now)
    assert second.right == sum(row["label"] == row["truth"] for row in now.values())
    both = before.keys() & now.keys()
    assert second.again == len(both)
    assert second.changed == sum(before[image]["label"] != now[image]["label"] for image in both)
    assert second.confidence == pytest.approx(np.mean([float(row["confidence"]) for row in now.values()]))
    assert second.right / second.known == pytest.approx(run.metrics()["pseudo_labels"][1]["accuracy"])


def test_without_truth_nothing_is_known_to_be_right(trained: Trained) -> None:
    steps = read(trained("without truth")).steps
    assert [step.known for step in steps] == [0, 0, 0]
    assert steps[-1].again > 0


@pytest.mark.parametrize(
    "name",
    ["metrics.csv", "test_metrics.json", "environment.json", "details.npz", "train.log", "pseudo_labels/step-1.csv"],
)
def test_a_link_that_leads_out_of_the_run_is_not_followed(trained: Trained, tmp_path: Path, name: str) -> None:
    run = trained("with truth")
    secret = tmp_path / "secret"
    (run.path / name).rename(secret)
    (run.path / name).symlink_to(secret)
    stored = read(run)
    assert any(name in line and "leads out of the run" in line for line in stored.problems)
    whole = json.dumps([stored.history, stored.result, stored.environment, stored.log])
    if name != "details.npz":
        assert secret.read_text()[:200] not in whole
    else:
        assert stored.samples is None


def test_a_folder_of_pseudo_labels_that_leads_out_is_not_followed(trained: Trained, tmp_path: Path) -> None:
    run = trained("with truth")
    (run.path / "pseudo_labels").rename(tmp_path / "elsewhere")
    (run.path / "pseudo_labels").symlink_to(tmp_path / "elsewhere")
    stored = read(run)
    assert stored.steps == []
    assert "leads out" in stored.problems[0]


def test_a_link_to_itself_is_not_followed(trained: Trained) -> None:
    run = trained("with truth")
    (run.path / "metrics.csv").unlink()
    (run.path / "metrics.csv").symlink_to("metrics.csv")
    assert read(run).history == []


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
def test_damaged_files_are_told_and_left_out(trained: Trained, name: str, content: bytes) -> None:
    run = trained("with truth")
    (run.path / name).write_bytes(content)
    problems = read(run).problems
    assert len(problems) == 1
    assert f"{name} is damaged" in problems[0]


def test_nothing_in_details_is_unpickled(trained: Trained) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (Path("sprung"),)

    run = trained("with truth")
    np.savez(run.path / "details.npz", samples=np.array([Trap()], dtype=object))
    stored = read(run)
    assert stored.samples is None
    assert "damaged" in stored.problems[0]
    assert not Path("sprung").exists()


@pytest.mark.parametrize(
    "samples", [np.zeros((3, 8, 8), np.uint8), np.zeros((3, 8, 8, 3)), np.zeros((0, 8, 8, 1), np.uint8)]
)
def test_samples_that_are_no_images_are_left_out(trained: Trained, samples: np.ndarray) -> None:
    run = trained("with truth")
    np.savez(run.path / "details.npz", samples=samples)
    assert read(run).samples is None


def test_samples_that_would_fill_the_memory_are_not_unpacked(trained: Trained) -> None:
    run = trained("with truth")
    np.savez_compressed(run.path / "details.npz", samples=np.zeros((70, 1024, 1024, 1), np.uint8))
    assert (run.path / "details.npz").stat().st_size < 1_000_000
    stored = read(run)
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
