"""A run directory: everything about one training, never overwritten."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ebpl.config import Settings
from ebpl.config.compat import retired
from ebpl.config.presets import STEP_SETTINGS, nested, write_toml
from ebpl.errors import MEMORY_ADVICE, DataError, EbplError, RunError, UsageError, WriteError, did_you_mean, is_memory
from ebpl.io import free_path, write_bytes, write_failed, write_json, write_text
from ebpl.models.weights import load_model
from ebpl.rng import seeds_in_words
from ebpl.runs.reader import (
    DETAILS,
    ENVIRONMENT,
    SEEDS,
    SETTINGS,
    TEST_METRICS,
    WEIGHTS,
    read_environment,
    read_metrics,
    read_settings,
)

if TYPE_CHECKING:
    from ebpl.data.dataset import ImageSet
    from ebpl.models import HybridModel


class Run:
    """Paths and files of a run. `Run.create` makes a new one, `Run(path)` opens one that exists."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / SETTINGS).is_file():
            raise RunError(_not_a_run(self.path))
        # a logger of its own, so that runs trained at the same time do not write into each other's train.log; a dot
        # would make a logger the child of another
        self.log = logging.getLogger("ebpl.run." + str(self.path.resolve()).replace(".", "%2E"))
        settings, self.source = read_settings(self.path / SETTINGS)
        self.data_name: str = self.source["name"]
        if gone := retired(settings):
            raise RunError(
                f"{self.path} was trained with {', '.join(gone)}, which this version no longer has. Version 0.1 reads "
                "it."
            )
        try:
            self.settings = Settings().changed(settings)
        except UsageError as error:
            raise RunError(f"{self.path / SETTINGS} is damaged or of another version: {error}") from error

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return f"Run({str(self.path)!r}: {self.settings.method} on {self.data_name}, {state})"

    @classmethod
    def create(
        cls,
        path: str | Path | None,
        settings: Settings,
        data: ImageSet,
        source: dict[str, Any],
        processes: int = 1,
    ) -> Run:
        """A new run directory. A given path must not exist yet; without one, a free name below `runs/` is found.

        So many `processes` train it.
        """
        from ebpl.devices import describe_environment

        path = _new_folder(path, data, settings, f"seed{settings.seed}")
        by_command = Path(sys.argv[0]).name == "ebpl" or Path(sys.argv[0]).parts[-2:] == ("ebpl", "__main__.py")
        command = ["ebpl", *sys.argv[1:]] if by_command else None
        more = {"processes": processes, "runs_together": 1, "command": command, "started": _now()}
        described = {"name": data.name, "fingerprint": data.fingerprint(), **source}
        try:
            write_json(path / ENVIRONMENT, {**describe_environment(settings.runtime), **more})
            write_text(path / SETTINGS, _settings_file(described, settings))
            return cls(path)
        except EbplError:  # half a run directory would be in the way of the next try
            shutil.rmtree(path, ignore_errors=True)
            raise

    @classmethod
    def create_for_seeds(
        cls, path: str | Path | None, settings: Settings, seeds: Sequence[int], data: ImageSet, source: dict[str, Any]
    ) -> list[Run]:
        """New run directories `seed-N`, in one folder, that differ only in their seed."""
        every = [settings.changed(seed=seed) for seed in seeds]
        folder = _new_folder(path, data, settings, f"seeds{seeds_in_words(seeds)}")
        try:
            write_json(folder / SEEDS, {"seeds": list(seeds)})
            return [cls.create(folder / f"seed-{each.seed}", each, data, source) for each in every]
        except EbplError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def branch(self, path: str | Path, settings: Settings) -> Run:
        """A new run that continues with pseudo-labels where this one, finished without any, has stopped.

        So runs that differ only in their pseudo-labels share their initial training. It is resumed like any other.
        """
        free = {"curriculum.pseudo_labels", "curriculum.steps", "curriculum.epochs", *STEP_SETTINGS}
        mine, other = self.settings.to_dict(), settings.to_dict()
        changed = {name for name in mine if mine[name] != other[name]} - free
        if self.settings.curriculum.pseudo_labels != "none" or settings.curriculum.pseudo_labels == "none" or changed:
            raise UsageError(
                f"{self.path}: can only branch from a finished run without pseudo-labels"
                + (f" and with the same {', '.join(sorted(changed))}." if changed else ".")
            )
        if not self.finished:
            raise RunError(f"{self.path} is not finished. Continue it with: {resume_command([self])}")
        states = sorted(self.checkpoints.glob("epoch-*.pt"))
        if not states:
            raise RunError(f"{self.path} has no checkpoint left to continue from.")
        path = Path(path)
        if path.exists():
            raise RunError(f"{path} exists already, and a run never overwrites anything.")
        half = path.with_name(f".{path.name}.part")  # a kill leaves a whole run or none
        shutil.rmtree(half, ignore_errors=True)
        try:
            (half / "checkpoints").mkdir(parents=True)
            shutil.copy2(states[-1], half / "checkpoints")
            write_json(half / ENVIRONMENT, {**self.environment(), "branched_from": self.path.name})
            write_text(half / SETTINGS, _settings_file(self.source, settings))
            half.rename(path)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise write_failed(path, error) from error
        return Run(path)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        """Whether training came to its end, and its weights are there."""
        return (self.path / TEST_METRICS).is_file() and (self.path / WEIGHTS).is_file()

    def environment(self) -> dict[str, Any]:
        """Software and hardware that the run was started with."""
        return read_environment(self.path / ENVIRONMENT)

    def record_concurrency(self, runs: int) -> None:
        """Note how many runs share the device, this one among them: its time is not its own."""
        noted = self.environment()
        if runs > noted.get("runs_together", 1):
            write_json(self.path / ENVIRONMENT, {**noted, "runs_together": runs})

    def metrics(self) -> dict[str, Any]:
        """Final test metrics and how they came about."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished. Continue it with: ebpl resume {self.path}")
        return read_metrics(self.path / TEST_METRICS)

    def energy_limit(self, fraction: float) -> float | None:
        """The energy that this fraction of the training images stays below: an outlier's is higher.

        None for a run that is not finished or has no density.
        """
        from ebpl.models.outliers import energy_limit

        return energy_limit(self.metrics().get("training_energies"), fraction) if self.finished else None

    def load_data(self, data: ImageSet | None = None, data_dir: str | os.PathLike[str] | None = None) -> ImageSet:
        """The data the run was started with, from another folder if one is given, checked to be unchanged."""
        if data is None:
            from ebpl.data import load

            if "path" not in self.source:
                raise RunError(
                    f"{self.path} was trained on arrays, which it does not hold. Give them again as data=..."
                )
            source = self.source
            how = {name: source[name] for name in ("image_size", "skip_unreadable") if name in source}
            if data_dir is not None:
                return self.load_data(load(source["path"], data_dir=data_dir, **how))
            try:  # what is not in that folder any more is not downloaded to it: the run may be foreign
                data = load(source["path"], data_dir=source.get("data_dir"), download="data_dir" not in source, **how)
            except DataError:
                if "data_dir" not in source:
                    raise
                data = load(source["path"], **how)
        if data.fingerprint() != self.source.get("fingerprint"):
            raise RunError(
                f"The images or labels of {self.data_name} are not those that {self.path} was started with, so it "
                "cannot continue where it stopped. Put the old data back, or start a new run."
            )
        return data

    def save_model(self, model_state: dict[str, Any], description: dict[str, Any]) -> None:
        """Write weights as safetensors, with what is needed to use them in the file's own metadata."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in model_state.items()}
        metadata = {"ebpl": json.dumps(description, ensure_ascii=False)}
        write_bytes(self.path / WEIGHTS, save(tensors, metadata))

    def load_model(self) -> tuple[HybridModel, dict[str, Any]]:
        """The trained model and its description (classes, shape of the images, how it was chosen)."""
        return load_model(self.path / WEIGHTS)

    def save_details(self, arrays: dict[str, Any]) -> None:
        """Arrays behind the figures: predictions for the test images, the images selected first, samples."""
        import numpy as np

        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        write_bytes(self.path / DETAILS, packed.getbuffer())

    def save_table(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """A CSV in the run directory, written whole each time."""
        text = io.StringIO()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / name, text.getvalue())

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Hold the run for this process, and write its log into train.log."""
        for entry in self.path.iterdir():  # in a foreign run a link could lead anywhere
            if entry.is_symlink():
                raise RunError(f"{entry} is a link, and a run writes into its own folder alone. Replace it by a copy.")
        try:
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise write_failed(self.path, error) from error
        with lock:
            _hold(lock, self.path)
            for stale in self.path.rglob(".*.part"):  # left by a process that was killed while writing
                stale.unlink(missing_ok=True)
            log, handler = self.log, self._log_handler()
            log.addHandler(handler)
            log.setLevel(logging.INFO)
            try:
                yield
            except WriteError as error:
                log.error("%s", error)
                raise WriteError(f"{error} Make room, then continue with: ebpl resume {self.path}") from error
            except EbplError as error:
                log.error("%s", error)
                raise
            except KeyboardInterrupt:
                log.info("stopped from the keyboard")
                raise KeyboardInterrupt(f"Stopped. Continue with: ebpl resume {self.path}") from None
            except Exception as error:
                if not is_memory(error):
                    log.exception("stopped by an error that should not happen")
                    raise
                message = f"There is not enough memory. {MEMORY_ADVICE} Continue with: ebpl resume {self.path}"
                log.error("%s", message)
                raise EbplError(message) from error
            finally:
                log.removeHandler(handler)
                with contextlib.suppress(OSError):
                    handler.close()

    def _log_handler(self) -> logging.Handler:
        try:
            handler = logging.FileHandler(self.path / "train.log", encoding="utf-8")
        except OSError as error:
            raise write_failed(self.path, error) from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handler.handleError = _keep_quiet  # type: ignore[assignment]
        return handler


def _keep_quiet(_: logging.LogRecord) -> None:
    """A log line that cannot be written, on a full disk, is no reason to end a run."""


def _hold(lock: IO[str], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: no lock there
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise RunError(f"{path} is being trained by another process. Wait for it, or stop it first.") from None


def seed_folders(folder: Path) -> list[Path]:
    """The runs of several seeds in this folder, in the order of their seeds."""
    found = [path for path in folder.glob("seed-*") if _is_of_a_seed(path) and (path / SETTINGS).is_file()]
    return sorted(found, key=_seed_of)


def _seed_of(path: Path) -> int:
    return int(path.name.removeprefix("seed-"))


def _is_of_a_seed(path: Path) -> bool:
    return re.fullmatch(r"seed-[0-9]+", path.name) is not None


def lost_seeds(folder: Path) -> list[int]:
    """Seeds that were to be trained in this folder and have no run directory any more."""
    try:
        wanted = json.loads((folder / SEEDS).read_text(encoding="utf-8"))["seeds"]
        return [seed for seed in wanted if not (folder / f"seed-{int(seed)}" / SETTINGS).is_file()]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def readable_seeds(folder: Path) -> tuple[list[Run], dict[int, str]]:
    """The runs of several seeds in this folder, and for each seed whose run cannot be opened, why."""
    runs, broken = [], {}
    for path in seed_folders(folder):
        try:
            runs.append(Run(path))
        except RunError as error:
            broken[_seed_of(path)] = str(error)
    return runs, broken


def open_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The runs at these paths, each once; a folder that holds the runs of several seeds stands for all of them."""
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        inside = [] if (path / SETTINGS).is_file() else seed_folders(path)
        for run in map(Run, inside or [path]):
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def seeds_folder(runs: Iterable[Run]) -> Path | None:
    """The folder of several seeds that all these runs are in, if there is one."""
    folders = {run.path.parent if _is_of_a_seed(run.path) else None for run in runs}
    return folders.pop() if len(folders) == 1 else None


def resume_command(runs: Sequence[Run]) -> str:
    """The command that continues the unfinished ones of these runs."""
    unfinished = [run.path for run in runs if not run.finished]
    folder = seeds_folder(runs)
    if folder and set(unfinished) == {path for path in seed_folders(folder) if not Run(path).finished}:
        unfinished = [folder]
    return " ".join(["ebpl resume", *map(str, unfinished)])


def _new_folder(path: str | Path | None, data: ImageSet, settings: Settings, ending: str) -> Path:
    """A new folder at this path, which must not exist yet, or under a free name below `runs/`."""
    if path is None:
        return free_path(
            Path("runs") / f"{_safe(data.name)}-{settings.method}-{settings.curriculum.pseudo_labels}-{ending}"
        )
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=path.is_dir() and not any(path.iterdir()))
    except FileExistsError:
        trained = (path / SETTINGS).is_file() or seed_folders(path)
        there = f", or continue that one with: ebpl resume {path}" if trained else ""
        raise RunError(
            f"{path} exists already, and a run never overwrites anything. Choose another run directory{there}."
        ) from None
    except OSError as error:
        raise write_failed(path, error) from error
    return path


def _safe(name: str) -> str:
    """A data name as part of a folder name."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:60] or "data"


def _not_a_run(path: Path) -> str:
    if not path.exists():
        siblings = [str(p) for p in path.parent.glob("*") if (p / SETTINGS).is_file()] if path.parent.is_dir() else []
        hint = f" {did_you_mean(str(path), siblings)}" if siblings else ""
        return f"There is no run at {path}.{hint}"
    if seeds := seed_folders(path):
        return f"{path} holds the runs of several seeds: {', '.join(p.name for p in seeds)}. Name one of them."
    return f"{path} is not a run directory: it has no {SETTINGS}."


def _settings_file(source: dict[str, Any], settings: Settings) -> str:
    return write_toml({"source": source, "settings": nested(settings.to_dict())})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
