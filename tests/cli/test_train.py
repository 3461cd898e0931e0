import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ebpl
from ebpl.cli import main
from ebpl.config.presets import PRESETS, default_settings
from ebpl.errors import RunError
from ebpl.launch import INTERRUPTED
from ebpl.methods import get_method
from ebpl.runs import Run
from tests.helpers import QUICK, blobs, class_folders, quick
from tests.test_recommendation import striped_folder, use_small_encoder

SHORT = {"optim.epochs": 1, "curriculum.steps": 1, "curriculum.epochs": 1}


def test_the_demo_shows_both_methods_and_a_picture(capsys, monkeypatch) -> None:
    # the whole demo runs in CI; here it is the same on a short schedule
    monkeypatch.setitem(PRESETS, "quick", {**PRESETS["quick"], **SHORT})
    titles = [get_method(name).title for name in ("curriculum-labeling", "ebpl")]
    figures = []
    for _ in range(2):
        assert main(["demo", "--seed", "1", "--folder", "demos"]) == 0
        printed = capsys.readouterr().out
        for text in (*titles, "accuracy", "macro F-score", "ECE, 15 bins"):
            assert text in printed
        figures.append(Path(printed.splitlines()[-1].removeprefix("Reliability diagram: ")))
    assert figures[0] != figures[1]
    for figure in figures:
        picture = ElementTree.parse(figure).getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        words = "".join(picture.itertext())
        assert all(title in words for title in titles)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ebpl.Settings]:
    """The settings that a training would have; it ends before it begins."""
    seen: list[ebpl.Settings] = []

    def training(run: Run, *_: object, **__: object) -> list[None]:
        seen.append(run.settings)
        raise KeyboardInterrupt

    monkeypatch.setattr("ebpl.api._training", training)
    return seen


def test_a_file_of_settings_in_groups_is_taken(asked: list[ebpl.Settings]) -> None:
    Path("mine.toml").write_text("seed = 3\n[sgld]\nsteps = 7\n[optim]\nepochs = 9\n")
    main(["train", "digits", "--preset", "standard", "--config", "mine.toml"])
    assert asked == [ebpl.preset("standard", seed=3, sgld__steps=7, epochs=9)]


def test_another_runs_settings_are_taken(asked: list[ebpl.Settings]) -> None:
    settings = quick(sgld__steps=3, labels_per_class=4, curriculum__selection="class", method="ebpl-without-energy")
    Run.create("other", settings, blobs(), {})
    main(["train", "digits", "--config", "other/settings.toml"])
    assert asked == [settings]


def test_settings_of_version_0_1_are_taken(asked: list[ebpl.Settings]) -> None:
    old = Path(__file__).parents[1] / "fixtures" / "old_finished"
    main(["train", "digits", "--config", str(old / "settings.toml")])
    anew = {"model.stages": 0, "model.square_root": "auto"}  # a new run has what its images need
    assert asked == [Run(old).settings.changed(anew)]


def test_an_option_wins_over_set_and_set_over_the_file(asked: list[ebpl.Settings]) -> None:
    Path("mine.toml").write_text("[sgld]\nsteps = 7\nchains = 8\n[optim]\nepochs = 9\n")
    words = ["--config", "mine.toml", "--set", "sgld.steps=6", "--set", "epochs=5", "--epochs", "4"]
    main(["train", "digits", "--preset", "quick", *words])
    assert asked == [ebpl.preset("quick", sgld__steps=6, sgld__chains=8, epochs=4)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[sgld]\nstesp = 7", "Did you mean sgld.steps"),
        ("[sgld]\nsteps = 'many'", "sgld.steps is 'many'"),
        ("settings = 3", "mine.toml holds no settings"),
        ("no toml", "mine.toml is not valid TOML"),
    ],
)
def test_a_file_of_settings_that_is_wrong_is_said_so(capsys, content: str, message: str) -> None:
    Path("mine.toml").write_text(content)
    assert main(["train", "digits", "--config", "mine.toml"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_what_was_given_is_in_the_run_directory() -> None:
    class_folders(Path("pets"))
    words = ["--set", "runtime.checkpoint_seconds=0", "--set", "data.max_shift=1", "--seed", "4", "--epochs", "1"]
    assert main(["train", "pets", *QUICK, *words, "--pseudo-labels", "none", "--run", "run"]) == 0
    expected = quick(runtime__checkpoint_seconds=0, data__max_shift=1, seed=4, epochs=1, pseudo_labels="none")
    assert Run("run").settings == expected


def test_what_a_user_should_know_of_a_run_is_said_at_its_end(capsys, run: Run) -> None:
    path = run.path / "test_metrics.json"
    result = json.loads(path.read_text())
    events = [{"phase": "initial", "epoch": 1, "reason": "x"}]
    path.write_text(json.dumps({**result, "healed_divergences": events, "never_predicted": ["cat\x1b[31m"]}))
    assert main(["resume", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "Warning: Training diverged and recovered once" in said
    assert "Warning: Never predicted for any test image: cat" in said
    assert "\x1b[31m" not in said


def test_the_rest_of_a_run_is_given_a_time_limit(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    given = []

    def resume(*_: object, time_limit: float | None, **__: object) -> None:
        given.append(time_limit)
        raise RunError("enough")

    monkeypatch.setattr("ebpl.api.resume", resume)
    Run.create("run", quick(), blobs(), {})
    Run.create_for_seeds("seeds", quick(), [0, 1], blobs(), {})
    for options in ([], ["--time-limit", "10m"]):
        assert main(["resume", "run", *options]) == 4
        assert main(["resume", "seeds", *options]) == 4
    assert given == [None, None, 600, 600]
    assert main(["resume", "run", "--time-limit", "soon"]) == 2
    assert "is not a time" in capsys.readouterr().err


def test_an_encoder_brings_its_preset_and_files_are_asked_for_theirs(
    asked: list[ebpl.Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_encoder(monkeypatch)
    striped_folder()
    name = ebpl.preset("features").model.encoder
    for words in ([], ["--encoder", name], ["--preset", "quick"], ["--width", "2"]):
        assert main(["train", "photos", *words]) == INTERRUPTED
    features = ebpl.preset("features")
    assert asked[:2] == [features, features]
    assert asked[2] == ebpl.preset("quick")
    assert asked[3] == default_settings().changed(width=2)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("preset")]
    assert len(said) == 1
    assert said[0].startswith("preset features: By cross-validation on 20 labels")
