import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ebpl
from ebpl.errors import EbplError, RunError, UsageError, WriteError
from ebpl.io import free_path
from ebpl.runs import SETTINGS, Run, open_runs, resume_command, seed_folders, seeds_folder
from tests.helpers import blobs, quick, result


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    return ebpl.train(blobs(), quick(method="curriculum-labeling"), run=path).path


def test_a_run_directory_holds_everything(finished: Path) -> None:
    names = {p.name for p in finished.iterdir()}
    assert names >= {
        "settings.toml",
        "environment.json",
        "metrics.csv",
        "train.log",
        "checkpoints",
        "pseudo_labels",
        "best.safetensors",
        "test_metrics.json",
        "details.npz",
    }
    assert {p.name for p in (finished / "pseudo_labels").iterdir()} == {f"step-{i}.csv" for i in (1, 2, 3, 4)}
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert "initial, epoch 2/2" in (finished / "train.log").read_text()
    assert not list(finished.rglob("*.part"))


def test_an_existing_directory_is_never_overwritten(finished: Path) -> None:
    before = (finished / "metrics.csv").read_bytes()
    with pytest.raises(RunError, match="never overwrites"):
        ebpl.train(blobs(), quick(), run=finished)
    assert (finished / "metrics.csv").read_bytes() == before


def test_an_empty_directory_may_be_used_a_file_may_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert Run.create(tmp_path / "empty", quick(), blobs(), {}).path.name == "empty"
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file exists already.*Choose another run directory\."):
        Run.create(tmp_path / "file", quick(), blobs(), {})


def test_without_a_name_a_free_one_is_found() -> None:
    paths = [Run.create(None, quick(seed=3), blobs(), {}).path.as_posix() for _ in range(3)]
    first = "runs/blobs-ebpl-soft-seed3"
    assert paths == [first, f"{first}-2", f"{first}-3"]


def test_runs_of_several_seeds_share_a_folder_which_must_be_new() -> None:
    runs = Run.create_for_seeds(None, quick(), [0, 1, 10, 2], blobs(), {})
    folder = Path("runs/blobs-ebpl-soft-seeds0-1_10_2")
    assert [run.path for run in runs] == [folder / f"seed-{seed}" for seed in (0, 1, 10, 2)]
    assert [run.settings.seed for run in runs] == [0, 1, 10, 2]
    assert [path.name for path in seed_folders(folder)] == ["seed-0", "seed-1", "seed-2", "seed-10"]
    with pytest.raises(RunError, match=r"never overwrites.*ebpl resume runs"):
        Run.create_for_seeds(folder, quick(), [3], blobs(), {})
    with pytest.raises(RunError, match=r"several seeds: seed-0, seed-1, seed-2, seed-10. Name one"):
        Run(folder)


def test_when_one_cannot_be_created_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    write = ebpl.runs.write_text

    def full(path: Path, text: str) -> None:
        if "seed-1" in str(path):
            raise WriteError("The disk is full.")
        write(path, text)

    monkeypatch.setattr("ebpl.runs.write_text", full)
    with pytest.raises(WriteError):
        Run.create_for_seeds("seeds", quick(), [0, 1], blobs(), {})
    assert not Path("seeds").exists()


def test_a_folder_of_seeds_stands_for_its_runs_and_each_is_opened_once() -> None:
    runs = Run.create_for_seeds("seeds", quick(), [0, 1], blobs(), {})
    other = Run.create("other", quick(), blobs(), {})
    opened = open_runs(["seeds/seed-1", "seeds", "other", "./other"])
    assert [run.path for run in opened] == [runs[1].path, runs[0].path, other.path]
    assert seeds_folder(runs) == Path("seeds")
    assert seeds_folder(opened) is None
    with pytest.raises(RunError, match="no run at"):
        open_runs(["nothing"])


def test_the_command_to_go_on_is_as_short_as_can_be() -> None:
    runs = Run.create_for_seeds("seeds", quick(), [2, 0, 1], blobs(), {})
    assert resume_command(runs) == "ebpl resume seeds"
    assert resume_command(runs[:1]) == f"ebpl resume {runs[0].path}"
    for name in ("test_metrics.json", "best.safetensors"):
        (runs[0].path / name).write_text("{}")
    assert resume_command(runs[1:]) == "ebpl resume seeds"


def test_a_data_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    import dataclasses

    data = dataclasses.replace(blobs(), name="../../etc/x y")
    assert Run.create(None, quick(), data, {}).path.parent == Path("runs")
    assert free_path(tmp_path / "a") != free_path(tmp_path / "a")


def test_what_is_not_a_run_is_said_so(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        Run(tmp_path)
    with pytest.raises(RunError, match=r"no run at .*Did you mean .*/run\?"):
        Run(finished.with_name("runn"))


def test_damaged_settings_are_said_to_be_damaged(tmp_path: Path) -> None:
    for number, content in enumerate(("[settings]\nepochz = 3\n[data]\nname = 'x'", "", "[settings]\n")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / SETTINGS).write_text(content)
        with pytest.raises(RunError, match="damaged or of another version"):
            Run(folder)


def test_two_processes_cannot_train_the_same_run() -> None:
    run = Run.create("run", quick(), blobs(), {})
    with run.training(), pytest.raises(RunError, match="another process"), run.training():
        pass


def test_runs_trained_at_the_same_time_each_have_their_own_log() -> None:
    first, second = (Run.create(name, quick(), blobs(), {}) for name in ("a", "a.b"))
    with first.training(), second.training():
        first.log.info("only the first")
        second.log.info("only the second")
    assert [(run.path / "train.log").read_text().split("INFO ")[1] for run in (first, second)] == [
        "only the first\n",
        "only the second\n",
    ]


def test_too_little_memory_says_how_to_go_on_and_a_bug_leaves_its_trace() -> None:
    run = Run.create("run", quick(), blobs(), {})
    with pytest.raises(EbplError, match=r"not enough memory.*--batch-size.*ebpl resume run"), run.training():
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(ZeroDivisionError), run.training():
        _ = 1 / 0
    log = (run.path / "train.log").read_text()
    assert "not enough memory" in log
    assert "ZeroDivisionError" in log


def test_metrics_of_an_unfinished_run_say_how_to_finish_it() -> None:
    run = Run.create("run", quick(), blobs(), {})
    assert not run.finished
    with pytest.raises(RunError, match="ebpl resume run"):
        run.metrics()


def test_leftovers_of_a_killed_process_are_removed() -> None:
    run = Run.create("run", quick(), blobs(), {})
    (run.path / ".metrics.csv.abc.part").write_text("half")
    run.checkpoints.mkdir()
    (run.checkpoints / ".epoch-1.pt.xyz.part").write_text("half")
    with run.training():
        assert not list(run.path.rglob(".*.part"))
        being_written = run.checkpoints / ".epoch-2.pt.xyz.part"
        being_written.write_text("half")
        with pytest.raises(RunError, match="another process"), run.training():
            pass
        assert being_written.exists()


def test_what_cannot_be_trained_leaves_no_directory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no GPU"):
            ebpl.train(blobs(), quick(device="cuda"), run="run")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="tensorboard"):
        ebpl.train(blobs(), quick(runtime__tensorboard=True), run="run")
    assert not Path("run").exists()


def test_settings_edited_since_the_run_was_started_are_named() -> None:
    run = Run.create("run", quick(), blobs(), {})
    settings = run.path / SETTINGS
    whole = settings.read_text()
    for old, new, named in (
        ("learning_rate = 0.004", "learning_rate = 0.001", r"optim.learning_rate \(was 0.004, is 0.001\)"),
        ("seed = 0", "seed = 1", r"seed \(was 0, is 1\)"),
        ("ema_decay = 0.99\n", "", r"optim.ema_decay \(was 0.99, is 0.999\)"),
        ("fingerprint = ", 'fingerprint = "x"\nwas = ', r"source\.fingerprint"),
    ):
        assert old in whole
        settings.write_text(whole.replace(old, new, 1))
        with pytest.raises(RunError, match=rf"was edited since.*{named}.*ebpl train DATA --config run/settings.toml"):
            Run("run").check_unedited()
    with pytest.raises(RunError, match="was edited since"):  # the last of them
        ebpl.resume("run", data=blobs())


def test_where_to_compute_may_be_edited_and_runs_of_older_versions_are_continued() -> None:
    run = Run.create("run", quick(), blobs(), {})
    settings = run.path / SETTINGS
    settings.write_text(settings.read_text().replace("checkpoint_seconds = 30.0", "checkpoint_seconds = 1.0"))
    Run("run").check_unedited()
    (run.path / "environment.json").write_text("{}")
    settings.write_text(settings.read_text().replace("epochs = 2", "epochs = 1"))
    assert ebpl.resume("run", data=blobs()).finished


def test_a_checkpoint_that_does_not_fit_the_settings_is_said_so() -> None:
    run = ebpl.train(blobs(), quick(method="curriculum-labeling", pseudo_labels="none"), run="run")
    (run.path / "test_metrics.json").unlink()
    (run.path / "environment.json").write_text("{}")  # as an older version would have it, without its settings
    settings = run.path / SETTINGS
    assert "ema_decay = 0.99" in settings.read_text()
    settings.write_text(settings.read_text().replace("ema_decay = 0.99", "ema_decay = 0.0"))
    with pytest.raises(RunError, match="settings of the run edited"):
        ebpl.resume("run", data=blobs())


def test_how_many_processes_and_runs_share_the_work_is_noted() -> None:
    run = Run.create("run", quick(), blobs(), {}, processes=2)
    assert run.environment()["processes"] == 2
    for together in (3, 2):  # the most there were
        run.record_concurrency(together)
        assert run.environment()["runs_together"] == 3


@pytest.mark.parametrize("method", ["ebpl", "curriculum-labeling"])
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_branch_ends_as_the_run_with_pseudo_labels_would(method: str, kind: str) -> None:
    settings = quick(method=method, epochs=2, curriculum__steps=2)
    whole = ebpl.train(blobs(), settings, run="whole", pseudo_labels=kind)
    trunk = ebpl.train(blobs(), settings, run="trunk", pseudo_labels="none")
    branch = ebpl.resume(trunk.branch("branch", settings.changed(pseudo_labels=kind)), data=blobs())
    assert result(branch.path) == result(whole.path)
    assert "2 of 2" in (branch.path / "metrics.csv").read_text()


def test_only_a_finished_run_without_pseudo_labels_is_branched() -> None:
    settings = quick(epochs=1, curriculum__steps=1)
    trunk = ebpl.train(blobs(), settings, run="trunk", pseudo_labels="none")
    with pytest.raises(UsageError, match=r"with the same model\.depth\."):
        trunk.branch("a", settings.changed(pseudo_labels="soft", depth=16))
    with pytest.raises(UsageError, match="can only branch from a finished run without pseudo-labels"):
        trunk.branch("a", trunk.settings)
    branch = trunk.branch("a", settings.changed(pseudo_labels="soft"))
    with pytest.raises(RunError, match="exists already"):
        trunk.branch("a", settings.changed(pseudo_labels="hard"))
    with pytest.raises(UsageError, match="can only branch from a finished run without pseudo-labels"):
        branch.branch("b", settings.changed(pseudo_labels="hard"))


def killed_at(operation: int, work: Callable[[str], object]) -> bool:
    """Do some work in a process that ends at once before this file operation; False if it was over before."""
    child = os.fork()
    if child == 0:
        left = operation

        def watch(event: str, _: object) -> None:
            nonlocal left
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.scandir"):
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(watch)
        work(f"killed-{operation}")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_run_killed_while_it_is_made_is_whole_or_not_there() -> None:
    data = blobs()
    Run.create("before", quick(), data, {})  # imports, and asks git
    kills = 0
    while killed_at(kills, lambda path: Run.create(path, quick(), data, {})):
        path = Path(f"killed-{kills}")
        if path.exists():
            assert Run(path).environment()["processes"] == 1
        else:
            assert Run.create(path, quick(), data, {}).path == path
        kills += 1
    assert kills > 8


def test_a_folder_of_seeds_killed_while_it_is_made_has_all_of_them_or_is_not_there() -> None:
    data = blobs()
    Run.create("before", quick(), data, {})
    kills = 0
    while killed_at(kills, lambda path: Run.create_for_seeds(path, quick(), [0, 1], data, {})):
        path = Path(f"killed-{kills}")
        assert len(open_runs([path])) == 2 if path.exists() else True
        kills += 1
    assert kills > 16


def test_of_two_processes_that_make_one_run_exactly_one_succeeds() -> None:
    data = blobs()
    for number in range(5):
        begun = Path(f"begin-{number}")

        def make(seed: int, path: str = f"run-{number}", begun: Path = begun) -> None:
            while not begun.exists():
                pass
            try:
                Run.create(path, quick(seed=seed), data, {})
            except RunError:
                os._exit(4)
            os._exit(0)

        children = []
        for seed in (1, 2):
            if (child := os.fork()) == 0:
                make(seed)
            children.append(child)
        begun.touch()
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sorted(codes) == [0, 4]
        assert Run(f"run-{number}").settings.seed == (1, 2)[codes.index(0)]
        assert sorted(path.name for path in Path(f"run-{number}").iterdir()) == ["environment.json", "settings.toml"]


def test_what_killed_processes_left_is_removed_when_the_run_is_made() -> None:
    old, new = Path(".run.part-999999999-abc"), Path(f".run.part-{os.getpid()}-abc")
    for path in (old, new):
        path.mkdir()
        os.utime(path, (0, 0))
    Run.create("run", quick(), blobs(), {})
    assert not old.exists()
    assert new.exists()


def test_what_an_older_version_left_half_made_is_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text("{}")
    with pytest.raises(RunError, match=r"or remove it: it has no settings, as a process leaves it that is killed"):
        Run.create(tmp_path, quick(), blobs(), {})


def test_a_link_to_an_empty_folder_may_be_used() -> None:
    Path("real").mkdir()
    Path("link").symlink_to("real")
    assert Run.create("link", quick(), blobs(), {}).data_name == "blobs"
    assert (Path("real") / SETTINGS).is_file()


def test_a_run_moved_away_while_it_is_trained_stops_and_is_not_made_anew() -> None:
    run = Run.create("run", quick(), blobs(), {})

    def train() -> None:
        with run.training():
            run.save_table("metrics.csv", [{"epoch": 1}])
            shutil.move("run", "moved")
            run.save_table("metrics.csv", [{"epoch": 1}])

    with pytest.raises(RunError, match="was moved or removed while it was being trained"):
        train()
    assert not Path("run").exists()
    assert "was moved or removed" in Path("moved/train.log").read_text()


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(RunError, match="not valid UTF-8"):
        Run.create("run-\udcff", quick(), blobs(), {})
    assert not list(Path().glob("run*"))
