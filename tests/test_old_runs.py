"""Runs written by version 0.1 (tests/fixtures): a network of depth 10 and width 1 on scikit-learn's digits.

`old_finished` is a whole run but for its checkpoints; `old_unfinished` was interrupted in its first curriculum step.
Both have an initial training of one epoch and two steps of one.
"""

import csv
import hashlib
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ebpl
from ebpl.cli import main
from ebpl.config.compat import RETIRED
from ebpl.errors import RunError
from ebpl.runs import Run
from ebpl.training import checkpoint
from tests.helpers import environment

FIXTURES = Path(__file__).parent / "fixtures"
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
"""Instructions that every x86 processor has. With others sums are added in another order, and bits change."""
WEIGHTS = "60b8ac8e51745fdf45f3e2cb1c1711ec17e810103f524f072445c6eaf73c0534"
"""SHA-256 of the tensors, in the order of their names, that version 0.1 ends with from `old_unfinished` and PLAIN."""
STEPS = {
    "step-1.csv": "0e2f6576256a59a50a40a6ec8a8e581ca38c55702256ea5f1f2dbdb96700ce38",
    "step-2.csv": "fb7b567d751c4d7274f788bd3f712ba292d3cd078f0cd6d6850e0c9ad797e174",
}
NLL, LAST_NLL = 2.253307, 2.2931687341454765
"""Of the weights that version 0.1 keeps, and of the last ones, on the test images."""


@pytest.fixture
def finished() -> Run:
    return Run(shutil.copytree(FIXTURES / "old_finished", "run"))


def test_the_fixtures_hold_nothing_of_the_machine_that_made_them() -> None:
    for folder in FIXTURES.iterdir():
        made = json.loads((folder / "environment.json").read_text())
        assert (made["ebpl"], made["platform"], made["command"]) == ("0.1.0", "Linux-x86_64", None)
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2_000_000


def test_a_finished_run_is_evaluated(finished: Run) -> None:
    assert finished.finished
    stored = json.loads((finished.path / "test_metrics.json").read_text())["metrics"]
    newer = {"balanced_accuracy", "auroc"}
    assert finished.metrics()["metrics"] == {**stored, **dict.fromkeys(newer)}
    found = ebpl.evaluate(finished)
    assert {name: value for name, value in found.items() if name not in newer} == pytest.approx(stored, abs=1e-5)
    assert all(0 <= found[name] <= 1 for name in newer)


def test_its_settings_have_todays_names(finished: Run) -> None:
    changes = {
        "optim.epochs": 1,
        "curriculum.epochs": 1,
        "curriculum.steps": 2,
        "sgld.steps": 2,
        "sgld.buffer_size": 64,
        "curriculum.selection": "all",  # which the preset has changed since
        "model.stages": 3,  # whatever the size of the images
        "model.square_root": "never",
    }
    assert finished.settings == ebpl.preset("quick", changes)
    assert ebpl.resume(finished).path == finished.path


def test_a_finished_run_labels_images(finished: Run) -> None:
    test = ebpl.load("digits").test
    assert test is not None
    rows = ebpl.predict(finished, test.pixels)
    right = [row["label"] == str(label) for row, label in zip(rows, test.labels, strict=True)]
    assert sum(right) / len(right) == pytest.approx(finished.metrics()["metrics"]["accuracy"], abs=0.01)
    assert {row["outlier"] for row in rows} == {True, False}


def test_a_finished_run_says_what_to_label_next(finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suggest", "run", "--n", "5", "--output", "next.csv"]) == 0
    with Path("next.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 5


def test_a_finished_run_is_reported_on(finished: Run) -> None:
    text = ebpl.report(finished).read_text()
    accuracy = 100 * finished.metrics()["metrics"]["accuracy"]
    assert f"{accuracy:.1f}" in text
    for part in ("energy", "pseudo-labels", "samples", "training", "mistakes"):
        assert f'<section id="{part}"' in text
    assert "is damaged" not in text


def test_a_finished_run_is_exported(finished: Run) -> None:
    pytest.importorskip("onnxruntime")
    assert ebpl.export(finished).is_file()


def test_an_unfinished_run_ends_with_the_bits_of_the_version_that_began_it() -> None:
    shutil.copytree(FIXTURES / "old_unfinished", "run")
    command = [sys.executable, "-m", "ebpl", "resume", "run"]
    found = subprocess.run(command, env={**environment(), **PLAIN}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    result = Run("run").metrics()
    # another build of torch may add in another order
    assert result["metrics"]["nll"] == pytest.approx(NLL, abs=1e-3)
    assert result["last"]["metrics"]["nll"] == pytest.approx(LAST_NLL, abs=1e-2)
    assert result["chosen"] == {"phase": "step 1 of 2", "epoch": 1, "by": "validation accuracy"}
    assert not any(column in (Path("run") / "metrics.csv").read_text().splitlines()[0] for column in ("asked", "gap,"))
    if platform.machine() == "x86_64" and torch.__version__.split("+")[0] == "2.13.0":
        assert digest_of_weights(Path("run")) == WEIGHTS
        assert result["last"]["metrics"]["nll"] == LAST_NLL
        for name, digest in STEPS.items():
            assert hashlib.sha256((Path("run/pseudo_labels") / name).read_bytes()).hexdigest() == digest


def test_a_checkpoint_of_a_moment_of_divergence_goes_back_to_the_last_good_one() -> None:
    shutil.copytree(FIXTURES / "old_unfinished", "run")
    (path,) = Path("run/checkpoints").iterdir()
    state = torch.load(path, weights_only=True)
    good = {name: value for name, value in state.items() if name not in ("guard", "seconds")}
    path.unlink()
    saved = checkpoint.save(path.parent, 1, {**state, "good": good})
    loaded = checkpoint.load(saved.parent, print)
    assert loaded is not None
    last_good = loaded["last_good"]
    assert last_good["tensors"].keys() == state["learner"]["tensors"].keys()
    assert last_good["selected"] == state["chosen"]
    assert ebpl.resume("run").finished


def digest_of_weights(run: Path) -> str:
    from safetensors.torch import load_file

    tensors = load_file(run / "best.safetensors")
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()


@pytest.mark.parametrize(("name", "value"), [("strong", 0.5), ("mixed", "labelled")])
def test_a_run_with_a_retired_setting_says_which_version_reads_it(
    finished: Run, capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    path = finished.path / "settings.toml"
    before = f"{name} = {json.dumps(RETIRED[name])}"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, f"{name} = {json.dumps(value)}"))
    with pytest.raises(
        RunError, match=rf"was trained with {name}, which this version no longer has\. Version 0\.1 reads"
    ):
        Run("run")
    assert main(["evaluate", "run"]) == RunError.exit_code
    assert "Version 0.1 reads it" in capsys.readouterr().err
