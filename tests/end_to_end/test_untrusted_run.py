"""A run directory that is not to be trusted: any damage is one line, nothing in it is executed, nothing is lost."""

import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import ebpl
from ebpl.cli import main
from ebpl.errors import RunError
from ebpl.models.weights import load_model
from tests.helpers import class_folders, quick


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrusted")
    class_folders(folder / "pets")
    ebpl.train(folder / "pets", quick(epochs=2, curriculum__steps=1), run=folder / "run")
    return folder


@pytest.fixture
def run(finished: Path) -> Path:
    shutil.copytree(finished / "run", "run")
    shutil.copytree(finished / "pets", "pets")
    return Path("run")


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return damage


def written(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(content)


def described(**changes: object) -> Callable[[Path], None]:
    """Weights whose description says something else."""

    def damage(run: Path) -> None:
        _, description = load_model(run / "best.safetensors")
        built = description["architecture"]
        for place in (description, built, built["options"]):
            place.update({name: value for name, value in changes.items() if name in place})
        save_file(load_file(run / "best.safetensors"), run / "best.safetensors", {"ebpl": json.dumps(description)})

    return damage


def weights_of(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        _, description = load_model(run / "best.safetensors")
        tensors = {name: change(tensor) for name, tensor in load_file(run / "best.safetensors").items()}
        save_file(tensors, run / "best.safetensors", {"ebpl": json.dumps(description)})

    return damage


DAMAGES: dict[str, tuple[str, Callable[[Path], None], list[str]]] = {
    "settings of a wrong type": ("settings.toml", replaced("settings.toml", "epochs = 2", "epochs = 'x'"), ["predict"]),
    "endless epochs": ("settings.toml", replaced("settings.toml", "epochs = 2", "epochs = inf"), ["predict"]),
    "a depth without end": ("settings.toml", replaced("settings.toml", "depth = 10", "depth = 6000004"), ["resume"]),
    "data of a wrong type": ("settings.toml", replaced("settings.toml", 'name = "pets"', "name = 3"), ["evaluate"]),
    "no TOML": ("settings.toml", written("settings.toml", b"\xff\x00"), ["predict", "evaluate", "resume"]),
    "no JSON": ("test_metrics.json", written("test_metrics.json", b"{"), ["predict", "resume"]),
    "other JSON": ("test_metrics.json", written("test_metrics.json", b"[1]"), ["predict", "resume"]),
    "metrics of words": (
        "test_metrics.json",
        written("test_metrics.json", b'{"metrics": {"accuracy": "good"}, "chosen": 3}'),
        ["predict", "resume"],
    ),
    "weights of a pickle": (
        "best.safetensors",
        written("best.safetensors", pickle.dumps([1])),
        ["predict", "evaluate"],
    ),
    "no weights": ("best.safetensors", written("best.safetensors", b""), ["predict", "evaluate"]),
    "wide weights": ("best.safetensors", described(width=100_000), ["predict", "evaluate"]),
    "deep weights": ("best.safetensors", described(depth=10**9), ["predict"]),
    "weights of words": ("best.safetensors", described(depth="x"), ["predict"]),
    "other classes": ("best.safetensors", described(classes=["a"]), ["predict"]),
    "huge images": ("best.safetensors", described(image_shape=[1, 10**6, 10**6]), ["predict"]),
    "wrong shapes": ("best.safetensors", weights_of(lambda t: torch.zeros(3)), ["predict", "evaluate"]),
    "no numbers": ("best.safetensors", weights_of(lambda t: t * float("nan")), ["predict"]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_a_line_with_its_name_and_costs_nothing(run: Path, capsys, name: str) -> None:
    file, damage, commands = DAMAGES[name]
    damage(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for command in commands:
        code = main([command, "run", *(["pets"] if command == "predict" else [])])
        printed = capsys.readouterr()
        assert code == RunError.exit_code
        (line,) = printed.err.strip().splitlines()
        assert line.startswith("ebpl: ")
        assert str(run / file) in line
        assert len(line) < 500
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def as_checkpoint(run: Path, content: bytes) -> None:
    """The one checkpoint of a run that looks unfinished."""
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / f"epoch-000001-{zlib.crc32(content):08x}.pt").write_bytes(content)
    (run / "test_metrics.json").unlink()


def saved(state: object) -> bytes:
    torch.save(state, "state")
    return Path("state").read_bytes()


def test_nothing_in_a_checkpoint_is_executed(run: Path, capsys) -> None:
    class Harm:
        def __reduce__(self):
            return (os.system, ("touch harmed",))

    for content in (pickle.dumps(Harm()), saved({"tensors": Harm()})):
        as_checkpoint(run, content)
        assert main(["resume", "run"]) == RunError.exit_code
        assert "is damaged" in capsys.readouterr().err
        (run / "test_metrics.json").touch()
    assert not Path("harmed").exists()


def test_a_checkpoint_of_another_shape_or_none_is_a_line(run: Path, capsys) -> None:
    (newest,) = sorted((run / "checkpoints").glob("*.pt"))[-1:]
    state = torch.load(newest, weights_only=True)
    old = {name: state[name] for name in state.keys() - {"tensors", "ema_updates", "divergence"}}
    old |= {"learner": {"tensors": state["tensors"], "averaged_updates": state["ema_updates"]}, "guard": {"tries": "x"}}
    others = [
        [1, 2],
        {},
        {**state, "history": "long"},
        {**state, "divergence": {"retries": "x"}},
        {**state, "divergence": {}},
        {**state, "targets": torch.zeros(1)},
        {**state, "last_good": {"targets": state["targets"]}},
        {**state, "tensors": {}},
        {**state, "tensors": dict.fromkeys(state["tensors"], torch.zeros(5))},
        {"learner": 3},
        {"learner": {}, "good": "bad", "guard": 4, "history": [5]},
        old,
        {**old, "guard": {}},
        {**old, "learner": {"tensors": {}, "averaged_updates": 0}},
    ]
    for other in others:
        as_checkpoint(run, saved(other))
        assert main(["resume", "run"]) == RunError.exit_code
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith("ebpl: The newest checkpoint does not fit this run") or "another shape" in line
        (run / "test_metrics.json").touch()


def test_a_missing_environment_is_a_line_and_predictions_need_none(run: Path, capsys) -> None:
    (run / "environment.json").unlink()
    assert main(["predict", "run", "pets", "--output", "labels.csv"]) == 0
    (run / "test_metrics.json").unlink()
    capsys.readouterr()
    assert main(["resume", "run"]) == RunError.exit_code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "run/environment.json is missing." in line
    (run / "environment.json").write_text("{}")
    assert main(["resume", "run"]) == 0


@pytest.mark.parametrize("name", [".lock", "train.log", "checkpoints", "pseudo_labels", "details.npz"])
def test_links_in_a_run_lead_nothing_outside(run: Path, capsys, name: str) -> None:
    (run / "test_metrics.json").unlink()
    target = Path("outside")
    if (run / name).is_dir():
        shutil.move(run / name, target)
    else:
        (run / name).unlink(missing_ok=True)
        target.write_text("precious")
    (run / name).symlink_to(target.resolve())
    before = {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()}
    assert main(["resume", "run"]) == RunError.exit_code
    assert f"run/{name} is a link" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()} == before


def test_a_data_folder_that_a_run_names_is_not_downloaded_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from ebpl.data import benchmarks
    from ebpl.runs import Run
    from tests.helpers import blobs

    asked = []

    def refused(remote: object, folder: Path, failed: Callable[[str], Exception]) -> None:
        asked.append(folder)
        raise failed("and there is no network")

    monkeypatch.setattr(benchmarks, "fetch", refused)
    Path("victim").mkdir()
    source = {"path": "cifar10", "data_dir": str(Path("victim").resolve())}
    made = Run.create("run", quick(), blobs(), source)
    with pytest.raises(ebpl.EbplError, match="CIFAR-10 is not here"):
        made.load_data()
    assert not asked
    assert not list(Path("victim").iterdir())
