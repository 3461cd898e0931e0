import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ebpl
from ebpl.config import Settings, fields
from ebpl.config.compat import (
    BEFORE,
    OLD_NAMES,
    RETIRED,
    modern_architecture,
    modern_checkpoint,
    modern_names,
    modern_result,
    modern_row,
    retired,
)
from ebpl.config.presets import PRESETS, preset, write_toml
from ebpl.errors import RunError
from ebpl.models import Architecture
from ebpl.runs import Run
from ebpl.terminal import Silent
from ebpl.training import checkpoint
from tests.helpers import blobs, quick, result

# as ebpl 0.1.0 had them, in src/ebpl/settings.py
OLD_DEFAULTS: dict[str, Any] = {
    "method": "ebpl",
    "pseudo_labels": "soft",
    "labels_per_class": None,
    "validation_fraction": None,
    "seed": 0,
    "depth": 16,
    "width": 4,
    "precision": "diagonal",
    "epochs": 120,
    "epoch_updates": None,
    "steps": 4,
    "step_epochs": 20,
    "selection": "all",
    "sharpening": 1.0,
    "labeled_share": 0.0,
    "held_back": 0.0,
    "reject_outliers": 0.0,
    "batch_size": 64,
    "learning_rate": 0.0001,
    "warm_up": 0,
    "final_rate": 1.0,
    "gradient_clip": 0.0,
    "weight_average": 0.999,
    "augment": "auto",
    "strong": 0.0,
    "strong_colors": 1.0,
    "mix": 0.0,
    "mixed": "all",
    "max_shift": 2,
    "pixel_noise": 0.03,
    "density_weight": 1.0,
    "coupling_weight": 0.001,
    "energy_penalty": 0.0,
    "energy_center": 0.0,
    "consistency": 0.0,
    "gate": 0.95,
    "consistency_sharpening": 0.0,
    "consistency_batch": 256,
    "sgld_steps": 20,
    "sgld_step_size": 1.0,
    "sgld_noise": 0.01,
    "sgld_gradient_clip": 0.0,
    "clamp_samples": False,
    "chains": 64,
    "buffer_size": 10000,
    "restart_probability": 0.05,
    "guard_tries": 5,
    "guard_every": 10,
    "guard_gap": 50.0,
    "device": "auto",
    "dtype": "auto",
    "checkpoint_seconds": 30.0,
    "tensorboard": False,
}
OLD_STANDARD: dict[str, Any] = {
    "epochs": 12,
    "step_epochs": 6,
    "epoch_updates": 128,
    "learning_rate": 1e-3,
    "warm_up": 200,
    "gradient_clip": 1.0,
    "energy_penalty": 0.5,
    "energy_center": 1.0,
    "sgld_steps": 10,
    "clamp_samples": True,
}
OLD_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"depth": 28, "width": 10, "augment": "none", "weight_average": 0.0},
    "standard": OLD_STANDARD,
    "best": {
        **OLD_STANDARD,
        "epochs": 24,
        "step_epochs": 4,
        "epoch_updates": 256,
        "mix": 0.5,
        "max_shift": 3,
        "labeled_share": 0.25,
        "held_back": 0.2,
        "selection": "class",
        "sharpening": 0.8,
        "consistency": 3.0,
        "consistency_sharpening": 1.0,
        "gate": 0.0,
        "density_weight": 0.2,
        "energy_penalty": 0.1,
        "sgld_steps": 5,
    },
    "quick": {
        "depth": 10,
        "width": 1,
        "epochs": 30,
        "step_epochs": 6,
        "learning_rate": 4e-3,
        "gradient_clip": 1.0,
        "energy_penalty": 0.5,
        "energy_center": 1.0,
        "weight_average": 0.99,
        "sgld_steps": 5,
        "clamp_samples": True,
    },
}
OF_OLD = {new: old for old, new in OLD_NAMES.items()}


NEWER = {
    *("model.backbone", "model.encoder", "model.components", "energy.clamp_images", "optim.weight_decay", "sgld.start"),
    *("model.fine_tune", "optim.encoder_lr_factor", "data.class_mix"),
    *("model.stages", "model.square_root", "model.norm", "data.strong_views"),
    *("consistency.final_threshold", "consistency.final_temperature", "consistency.distribution_alignment"),
    *("optim.optimizer", "optim.lr_schedule", "optim.network_decay", "optim.label_smoothing"),
    *("unlabeled.weight", "unlabeled.ratio", "unlabeled.threshold", "unlabeled.momentum"),
}
"""Settings that version 0.1 did not have."""


def test_every_old_name_is_a_setting_of_today_and_none_is_forgotten() -> None:
    assert set(OLD_NAMES.values()) <= set(fields())
    assert len(OF_OLD) == len(OLD_NAMES), "two old names for one setting"
    assert set(OLD_NAMES) | {"method", "seed"} | set(RETIRED) == set(OLD_DEFAULTS)
    assert set(fields()) - set(OF_OLD) == {"method", "seed"} | NEWER


def test_the_old_defaults_are_those_of_today() -> None:
    named = modern_names(OLD_DEFAULTS)
    assert Settings().changed(named) == Settings()
    assert set(named) == set(fields()) - NEWER


@pytest.mark.parametrize("name", OLD_PRESETS)
def test_the_presets_of_version_0_1_are_those_of_today(name: str) -> None:
    assert OLD_PRESETS.keys() <= PRESETS.keys()
    since = {"curriculum.selection": "class"} if name == "quick" else {}
    assert {**modern_names(OLD_PRESETS[name]), **since} == PRESETS[name]
    assert Settings().changed(modern_names({**OLD_DEFAULTS, **OLD_PRESETS[name]})).changed(since) == preset(name)


def test_names_of_today_are_left_as_they_are() -> None:
    settings = preset("best").to_dict()
    assert modern_names(settings) == settings
    assert retired(settings) == []


@pytest.mark.parametrize(
    ("old", "gone"),
    [
        ({}, []),
        ({"guard_every": 3}, []),  # how often losses were looked at
        ({"strong": 0.5}, ["strong"]),
        ({"mixed": "labeled", "strong": 0.1}, ["strong", "mixed"]),
    ],
)
def test_settings_that_are_gone_are_told_where_they_had_an_effect(old: dict[str, Any], gone: list[str]) -> None:
    named = modern_names({**OLD_DEFAULTS, **old})
    assert sorted(retired(named)) == sorted(gone)
    assert {name: named[name] for name in gone} == {name: old[name] for name in gone}
    path = Path("run/settings.toml")
    path.parent.mkdir()
    path.write_text(write_toml({"data": {"name": "digits"}, "settings": {**OLD_DEFAULTS, **old}}))
    if gone:
        with pytest.raises(RunError, match=f"was trained with {', '.join(retired(named))}, .*[Vv]ersion 0.1"):
            Run("run")
    else:
        assert Run("run").settings == Settings().changed(BEFORE)


def test_columns_and_curves_have_todays_names() -> None:
    assert modern_row({"asked": 0.5, "gap": 1.0, "loss": 2.0}) == {"mask_rate": 0.5, "energy_gap": 1.0, "loss": 2.0}
    assert modern_result({"curves": {"gap": [1.0]}, "seconds": 3}) == {"curves": {"energy_gap": [1.0]}, "seconds": 3}
    assert modern_result({"seconds": 3}) == {"seconds": 3}


def test_an_old_architecture_is_a_wide_residual_network() -> None:
    old = {"depth": 16, "width": 4, "channels": 3, "classes": 8, "precision": "full"}
    made = modern_architecture(old, [3, 28, 28])
    expected = Architecture("wide_resnet", (3, 28, 28), 8, "full", {"depth": 16, "width": 4})
    assert Architecture(**{**made, "image_shape": tuple(made["image_shape"])}) == expected
    for other in (None, 3, "text", made):
        assert modern_architecture(other, [3, 28, 28]) == other


# --- a run of version 0.1, made from one of today ---------------------------------------------------------------------


def old_row(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name != "energy_gap"}
    return {**kept, "consistency": 0.0, "asked": 0.0}


def old_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    names = {"selected": "chosen", "last_good": "good", "divergence": "guard"}
    learner = {"tensors": state["tensors"], "averaged_updates": state["ema_updates"]}
    made = {names.get(name, name): value for name, value in state.items() if name not in ("tensors", "ema_updates")}
    made |= {"learner": learner, "history": [old_row(row) for row in state["history"]]}
    if "guard" in made:
        limits = {"retries": "tries", "max_gap": "gap"}
        made["guard"] = {limits.get(name, name): value for name, value in made["guard"].items()}
    if "good" in made:
        made["good"] = old_checkpoint(made["good"])
    return made


def make_old(run: Run) -> None:
    """Rewrite the files of an unfinished run as version 0.1 wrote them."""
    newer = {"model.backbone", *(name for name in NEWER if name.startswith("consistency."))}
    flat = {OF_OLD.get(name, name): value for name, value in run.settings.to_dict().items() if name not in newer}
    (run.path / "settings.toml").write_text(write_toml({"data": run.source, "settings": {**flat, "guard_every": 10}}))
    state = checkpoint.load(run.checkpoints, print)
    assert state is not None
    for path in run.checkpoints.iterdir():
        path.unlink()
    checkpoint.save(run.checkpoints, len(state["history"]), old_checkpoint(state))


class Stop(Silent):
    """Stops after the third epoch."""

    left = 3

    def epoch(self, line: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["ebpl", "curriculum-labeling"])
def test_a_run_that_version_0_1_began_ends_with_the_same_bits(method: str) -> None:
    settings = quick(method=method, runtime__checkpoint_seconds=0.0)
    whole = ebpl.train(blobs(), settings, run="whole")
    with pytest.raises(KeyboardInterrupt):
        ebpl.train(blobs(), settings, run="old", progress=Stop())
    make_old(Run("old"))
    assert "sgld_steps" in Path("old/settings.toml").read_text()
    assert Run("old").settings == settings
    resumed = ebpl.resume("old", data=blobs())
    expected, found = result(whole.path), result(resumed.path)
    assert found["weights"] == expected["weights"]
    assert found["pseudo_labels"] == expected["pseudo_labels"]
    told = [json.loads((path / "test_metrics.json").read_text()) for path in (whole.path, resumed.path)]
    assert told[0]["metrics"] == told[1]["metrics"]
    assert told[0]["curves"] == told[1]["curves"]
    with open("old/metrics.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 6
    assert "report.html" in str(ebpl.report(resumed, data=blobs()))


def test_a_checkpoint_with_a_state_to_go_back_to_is_read_too() -> None:
    state = {
        "tensors": {"model.w": torch.ones(2)},
        "ema_updates": 7,
        "selected": [1],
        "history": [{"phase": "initial", "energy_images": 1.5, "energy_samples": 0.5, "energy_gap": 1.0}],
        "divergence": {"retries": 5, "max_gap": 50.0, "learning_rate": 0.1, "sgld_steps": 3, "healed": 0, "events": []},
        "seconds": 1.0,
    }
    inner = {name: value for name, value in state.items() if name not in ("divergence", "seconds")}
    state["last_good"] = inner
    old = old_checkpoint(copy.deepcopy(state))
    found = modern_checkpoint(old)
    assert found["divergence"] == state["divergence"]
    assert found["ema_updates"] == found["last_good"]["ema_updates"] == 7
    assert found["selected"] == found["last_good"]["selected"] == [1]
    assert found["history"][0]["energy_gap"] == found["last_good"]["history"][0]["energy_gap"] == 1.0
    assert found["history"][0]["mask_rate"] == 0.0
    assert not {"learner", "good", "guard", "chosen"} & (found.keys() | found["last_good"].keys())


def test_whatever_else_a_checkpoint_holds_is_left_to_the_checkpoints_own_rules() -> None:
    for value in (None, 3, [], {}, {"learner": 3}, {"tensors": {}}):
        assert modern_checkpoint(value) == value
