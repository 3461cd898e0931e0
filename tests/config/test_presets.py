import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebpl
from ebpl.config import Settings, fields
from ebpl.config.presets import (
    FINE_TUNED,
    PRESET_HELP,
    PRESETS,
    STEP_SETTINGS,
    flat,
    nearest_preset,
    nested,
    preset,
    read_config,
    read_toml,
    without_steps,
    write_toml,
)
from ebpl.errors import UsageError
from ebpl.runs import Run
from tests.helpers import blobs, quick


def test_the_paper_preset_is_the_papers_setting() -> None:
    settings = preset("paper")
    assert (settings.model.depth, settings.model.width) == (28, 10)
    assert (settings.optim.epochs, settings.curriculum.steps, settings.curriculum.epochs) == (120, 4, 20)
    assert (settings.optim.learning_rate, settings.energy.coupling_weight) == (1e-4, 1e-3)
    assert (settings.data.augment, settings.optim.ema_decay, settings.curriculum.pseudo_labels) == ("none", 0.0, "soft")


def test_presets_name_settings_in_full_and_say_what_they_are_for() -> None:
    assert {"paper", "standard", "best", "generative", "quick"} <= PRESETS.keys() == PRESET_HELP.keys()
    for name, changes in PRESETS.items():
        assert set(changes) <= set(fields()), name
        unchanged = [key for key, value in changes.items() if fields()[key].field.default == value]
        assert not unchanged, f"{name} repeats defaults"


def test_the_generative_preset_is_best_with_an_energy_that_is_a_likelihood() -> None:
    likelihood = {"energy.weight": 1.0, "energy.penalty": 0.0, "energy.center": 0.0, "energy.clamp_images": True}
    chains = {"sgld.steps": 10, "sgld.start": "gaussian", "sgld.clamp_samples": True}
    rate = {"optim.learning_rate": 3e-4, "optim.final_lr_factor": 0.3, "data.mixup_probability": 0.25}
    assert preset("generative") == preset("best", {**likelihood, **chains, **rate})


def test_the_fine_tuned_preset_has_the_energies_of_features_and_the_views_of_best() -> None:
    tuned, features, best = (preset(name) for name in ("fine-tuned", "features", "best"))
    assert (tuned.energy, tuned.sgld, tuned.model.components) == (features.energy, features.sgld, 128)
    assert tuned.consistency == dataclasses.replace(best.consistency, batch_size=64)
    assert tuned.model.frozen_encoder is None
    assert features.model.frozen_encoder == tuned.model.encoder


def test_the_preset_that_fine_tunes_the_end_has_the_energies_of_features() -> None:
    end, features = preset("fine-tuned-end"), preset("features")
    assert (end.energy, end.sgld, end.model.components) == (features.energy, features.sgld, 128)
    assert (end.model.fine_tune, end.model.encoder) == ("end", features.model.encoder)


def test_what_is_fine_tuned_has_a_preset() -> None:
    assert all(preset(name, fine_tune=part).model.fine_tune == part for part, name in FINE_TUNED.items())
    assert preset(FINE_TUNED["end"]).model.fine_tune == "end"


def test_changes_go_before_the_preset() -> None:
    assert preset("quick", epochs=3).optim.epochs == 3
    assert preset("quick", {"sgld.steps": 2}, epochs=3) == preset("quick").changed(sgld__steps=2, epochs=3)
    assert preset() == preset("standard")


def test_an_unknown_preset_suggests_a_known_one() -> None:
    with pytest.raises(UsageError, match="Did you mean standard"):
        preset("standart")


@pytest.mark.parametrize("name", PRESETS)
def test_settings_near_a_preset_name_it_and_what_differs(name: str) -> None:
    assert nearest_preset(preset(name)) == (name, [])
    assert nearest_preset(preset(name, seed=3, sgld__noise=0.5)) == (name, ["seed", "sgld.noise"])


def test_settings_of_the_steps_are_without_effect_before_them() -> None:
    initial = without_steps(preset("best"))
    assert initial.curriculum.pseudo_labels == "none"
    defaults = Settings()
    assert all(initial[name] == defaults[name] for name in STEP_SETTINGS)
    changed = {name for name in fields() if initial[name] != preset("best")[name]}
    assert changed == {"curriculum.pseudo_labels", *STEP_SETTINGS}
    data = blobs()
    short = {"epochs": 1, "batch_size": 16, "consistency.batch_size": 16, "depth": 10, "width": 1, "device": "cpu",
             "optim.updates_per_epoch": 2, "sgld.steps": 1}  # fmt: skip
    best = preset("best", short, pseudo_labels="none")
    one, other = (ebpl.train(data, each, run=str(i)) for i, each in enumerate((best, without_steps(best))))
    assert (one.path / "best.safetensors").read_bytes() == (other.path / "best.safetensors").read_bytes()


# --- files -----------------------------------------------------------------------------------------------------------


def written(text: str) -> Path:
    path = Path("config.toml")
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_groups_is_read() -> None:
    path = written(
        'seed = 3\nmethod = "ebpl"\n[sgld]\nsteps = 5\nclamp_samples = true\n[optim]\nlearning_rate = 1e-3\n'
    )
    found = read_config(path)
    assert found == {
        "seed": 3,
        "method": "ebpl",
        "sgld.steps": 5,
        "sgld.clamp_samples": True,
        "optim.learning_rate": 1e-3,
    }
    assert preset("quick", found) == preset("quick", seed=3, sgld__steps=5, learning_rate=1e-3)


def test_options_may_stand_at_the_top_of_a_file_without_their_group() -> None:
    assert preset("quick", read_config(written('epochs = 7\naugment = "flip"\n'))) == preset(
        "quick", epochs=7, augment="flip"
    )


def test_the_settings_of_a_run_are_read_from_its_own_file() -> None:
    settings = preset("best", labels_per_class=3, seed=4, sgld__steps=7)
    run = Run.create("run", settings, blobs(), {})
    found = read_config(run.path / "settings.toml")
    assert Settings().changed(found) == settings == Run("run").settings
    assert preset("paper", found).changed(labels_per_class=None) == settings.changed(labels_per_class=None)


def test_a_run_of_version_0_1_is_read_under_todays_names() -> None:
    path = written(
        '[data]\nname = "digits"\n[settings]\nsgld_steps = 5\nweight_average = 0.99\nguard_every = 10\nmix = 0.5\n'
    )
    assert read_config(path) == {"sgld.steps": 5, "optim.ema_decay": 0.99, "data.mixup_probability": 0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sgld\n", r"config\.toml is not valid TOML"),
        ("settings = 3\n", r"config\.toml holds no settings"),
        ("strong = 0.5\n", r"config\.toml sets strong, which this version no longer has"),
    ],
)
def test_a_file_that_holds_no_settings_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_config(written(text))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"There is no file nowhere\.toml"):
        read_config("nowhere.toml")


def test_a_wrong_name_in_a_file_suggests_the_right_one() -> None:
    with pytest.raises(UsageError, match=r"no setting 'sgld\.step'\. Did you mean sgld\.steps"):
        ebpl.train(blobs(), preset="quick", config=written("[sgld]\nstep = 3\n"), run="run")


def test_what_is_set_goes_before_the_file_and_the_file_before_the_preset() -> None:
    path = written("[sgld]\nsteps = 3\nbuffer_size = 64\n[optim]\nepochs = 1\n")
    run = ebpl.train(
        blobs(), preset="quick", config=path, set={"sgld.steps": 2}, pseudo_labels="none", run="run", device="cpu"
    )
    expected = {"sgld.steps": 2, "sgld.buffer_size": 64, "epochs": 1, "pseudo_labels": "none", "device": "cpu"}
    assert run.settings == preset("quick", expected)


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=["Cs"])),
)
NAMES = st.text("abcdefgh_", min_size=1)


@given(st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES)))
def test_what_is_written_as_toml_is_read_back(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("toml") / "settings.toml"
    path.write_text(write_toml({"section": values, "empty": {"nothing": None}}), encoding="utf-8")
    assert read_toml(path) == {"section": values, "empty": {}}


@given(st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, min_size=1)))
def test_flat_and_nested_are_opposites(values: dict[str, Any]) -> None:
    assert nested(flat(values)) == values


@pytest.mark.parametrize("name", PRESETS)
def test_settings_survive_their_file(name: str) -> None:
    settings = preset(name, labels_per_class=4, learning_rate=1e-5, device="cpu")
    path = written(write_toml({"settings": nested(settings.to_dict())}))
    assert Settings().changed(flat(read_toml(path)["settings"])) == settings
    assert Settings().changed(read_config(path)) == settings


def test_a_damaged_settings_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"config\.toml is not valid TOML"):
        read_toml(written("[settings\n"))


def test_the_settings_of_tests_are_those_of_the_quick_preset_made_shorter() -> None:
    assert nearest_preset(quick())[0] == "quick"


def test_the_preset_for_cpus_selects_by_class() -> None:
    assert preset("quick").curriculum.selection == "class"
