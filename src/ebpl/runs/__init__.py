"""A run directory: everything about one training, never overwritten."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.config import Settings
from ebpl.config.compat import retired
from ebpl.config.presets import STEP_SETTINGS, edited, nested, write_toml
from ebpl.errors import MEMORY_ADVICE, DataError, EbplError, RunError, UsageError, WriteError, did_you_mean, is_memory
from ebpl.io import is_text, write_bytes, write_failed, write_json, write_text
from ebpl.launch import create_folder, create_free_folder, held
from ebpl.models.weights import load_model, packed_model
from ebpl.rng import seeds_in_words
from ebpl.runs.reader import (
    DETAILS,
    ENVIRONMENT,
    METRICS_TABLE,
    SEEDS,
    SETTINGS,
    TEST_METRICS,
    WEIGHTS,
    is_of_a_seed,
    lost_seeds,
    read,
    read_environment,
    read_metrics,
    read_settings,
    seed_folders,
    seed_of,
)

if TYPE_CHECKING:
    from ebpl.data.dataset import ImageSet
    from ebpl.models import HybridModel
    from ebpl.models.outliers import OutlierLimit

__all__ = ["Run", "lost_seeds", "open_runs", "readable_seeds", "resume_command", "seed_folders", "seeds_folder"]


class Run:
    """Paths and files of a run. `Run.create` makes a new one, `Run(path)` opens one that exists."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._held: os.stat_result | None = None
        _check_name(self.path)
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
        """A new run directory. A given path must not exist yet; without one, a free name below `runs/` is found."""
        files = _files(settings, data, source, processes)
        return cls(_created(path, data, settings, f"seed{settings.seed}", lambda folder: _write(folder, *files)))

    @classmethod
    def create_for_seeds(
        cls, path: str | Path | None, settings: Settings, seeds: Sequence[int], data: ImageSet, source: dict[str, Any]
    ) -> list[Run]:
        """New run directories `seed-N`, in one folder, that differ only in their seed. All of them appear at once."""
        every = {f"seed-{seed}": _files(settings.changed(seed=seed), data, source) for seed in seeds}

        def make(folder: Path) -> None:
            write_json(folder / SEEDS, {"seeds": list(seeds)})
            for name, files in every.items():
                _write(folder / name, *files)

        folder = _created(path, data, settings, f"seeds{seeds_in_words(seeds)}", make)
        return [cls(folder / name) for name in every]

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
        path, environment = Path(path), self.environment()
        environment |= {"branched_from": self.path.name, "time_spent": 0.0, **_digest(self.source, settings)}

        def make(folder: Path) -> None:
            (folder / "checkpoints").mkdir()
            shutil.copy2(states[-1], folder / "checkpoints")
            _write(folder, environment, _settings_file(self.source, settings))

        if not create_folder(path, make):
            raise RunError(f"{path} exists already, and a run never overwrites anything.")
        return Run(path)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        """Whether training came to its end, and its weights are there."""
        return (self.path / TEST_METRICS).is_file() and (self.path / WEIGHTS).is_file()

    def check_whole(self) -> None:
        """Raise where a file of a finished run is damaged or gone."""
        self.metrics(), self.load_model(), self.environment()
        problems = [] if (self.path / METRICS_TABLE).is_file() else [f"{METRICS_TABLE} is missing."]
        if problems := problems or read(self.path).problems:
            raise RunError(f"{self.path} is finished, but {problems[0]} Restore the file from a backup if you need it.")

    def environment(self) -> dict[str, Any]:
        """Software and hardware that the run was started with."""
        return read_environment(self.path / ENVIRONMENT)

    def check_unedited(self) -> None:
        """Raise where settings.toml is not as it was written when the run was started; older runs do not know."""
        then = self.environment()
        try:
            changed = edited(then["settings"], self.settings) if "settings" in then else []
        except UsageError as error:
            raise RunError(f"{self.path / ENVIRONMENT} is damaged or of another version: {error}") from error
        if then.get("fingerprint", self.source.get("fingerprint")) != self.source.get("fingerprint"):
            changed.append("source.fingerprint")
        if changed:
            raise RunError(
                f"{self.path / SETTINGS} was edited since the run was started: {', '.join(changed)}. Put it back as it "
                f"was to continue, or start a new run with it: ebpl train DATA --config {self.path / SETTINGS}"
            )

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

    def outlier_limit(self, fraction: float) -> OutlierLimit | None:
        """The score that this fraction of the training images stays below: an outlier's is higher.

        None for a run that is not finished or whose model has no such score.
        """
        from ebpl.models.outliers import outlier_limit

        if not self.finished:
            logging.getLogger("ebpl").warning("%s is not finished, so outliers are not flagged.", self.path)
            return None
        return outlier_limit(self.metrics(), fraction)

    def load_data(self, data: ImageSet | None = None, data_dir: str | os.PathLike[str] | None = None) -> ImageSet:
        """The data the run was started with, from another folder if one is given, checked to be unchanged."""
        data = self.data_now(data_dir) if data is None else data
        if data.fingerprint() != self.source.get("fingerprint"):
            raise RunError(
                f"The images or labels of {self.data_name} are not those that {self.path} was started with, so it "
                "cannot continue where it stopped. Put the old data back, or start a new run."
            )
        return data

    def data_now(self, data_dir: str | os.PathLike[str] | None = None, **changes: Any) -> ImageSet:
        """What is now where the run's data came from, read as in its training but for the changes."""
        from ebpl.data import load

        if "path" not in self.source:
            raise RunError(f"{self.path} was trained on arrays, which it does not hold. Give them again as data=...")
        how = {name: self.source[name] for name in ("image_size", "skip_unreadable") if name in self.source} | changes
        where = data_dir if data_dir is not None else self.source.get("data_dir")
        try:  # the run may be foreign: nothing is downloaded because of it
            return load(self.source["path"], data_dir=where, download=False, **how)
        except DataError:
            if where is None or data_dir is not None:
                raise
            return load(self.source["path"], download=False, **how)

    def save_model(self, model_state: dict[str, Any], description: dict[str, Any]) -> None:
        """Write weights as safetensors, with what is needed to use them in the file's own metadata."""
        self.check_in_place()
        write_bytes(self.path / WEIGHTS, packed_model(model_state, description))

    def load_model(self) -> tuple[HybridModel, dict[str, Any]]:
        """The trained model and its description (classes, shape of the images, how it was chosen)."""
        return load_model(self.path / WEIGHTS)

    def save_details(self, arrays: dict[str, Any]) -> None:
        """Arrays behind the figures: predictions for the test images, the images selected first, samples."""
        import numpy as np

        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        self.check_in_place()
        write_bytes(self.path / DETAILS, packed.getbuffer())

    def save_table(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """A CSV in the run directory, written whole each time."""
        text = io.StringIO()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.check_in_place()
        write_text(self.path / name, text.getvalue())

    def check_in_place(self) -> None:
        """Stop where the directory was moved or removed while training: a new one would lack its settings."""
        try:
            here = self._held is None or os.path.samestat(os.stat(self.path), self._held)
        except OSError:
            here = False
        if not here:
            raise RunError(
                f"{self.path} was moved or removed while it was being trained, so training stops. Where it was moved "
                "to, continue it with: ebpl resume NEW_PLACE"
            )

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Hold the run for this process, and write its log into train.log."""
        if links := [str(entry) for entry in self.path.iterdir() if entry.is_symlink()]:  # to where a foreigner likes
            raise RunError(f"{links[0]} is a link, but a run only writes into its own folder. Replace it by a copy.")
        with held(self.path):
            self._held = os.stat(self.path)
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
        handler.handleError = lambda record: None  # type: ignore[method-assign] # a full disk is no reason to end a run
        return handler


def readable_seeds(folder: Path) -> tuple[list[Run], dict[int, str]]:
    """The runs of several seeds in this folder, and for each seed whose run cannot be opened, why."""
    runs, broken = [], {}
    for path in seed_folders(folder):
        try:
            runs.append(Run(path))
        except RunError as error:
            broken[seed_of(path)] = str(error)
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
    folders = {run.path.parent if is_of_a_seed(run.path) else None for run in runs}
    return folders.pop() if len(folders) == 1 else None


def resume_command(runs: Sequence[Run]) -> str:
    """The command that continues the unfinished ones of these runs."""
    unfinished = [run.path for run in runs if not run.finished]
    folder = seeds_folder(runs)
    if folder and set(unfinished) == {path for path in seed_folders(folder) if not Run(path).finished}:
        unfinished = [folder]
    return " ".join(["ebpl resume", *map(str, unfinished)])


def _files(
    settings: Settings, data: ImageSet, source: dict[str, Any], processes: int = 1
) -> tuple[dict[str, Any], str]:
    """What a new run directory holds: the content of environment.json and settings.toml."""
    from ebpl.devices import describe_environment

    described = {"name": data.name, **data.fingerprints(), **source}
    environment = {**describe_environment(settings.runtime), "processes": processes, "runs_together": 1}
    return {**environment, **_digest(described, settings)}, _settings_file(described, settings)


def _digest(source: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """What a resumed run compares with its settings.toml."""
    return {"settings": settings.to_dict(), "fingerprint": source["fingerprint"]}


def _write(folder: Path, environment: dict[str, Any], settings: str) -> None:
    write_json(folder / ENVIRONMENT, environment)
    write_text(folder / SETTINGS, settings)  # last: it makes the folder a run


def _created(
    path: str | Path | None, data: ImageSet, settings: Settings, ending: str, make: Callable[[Path], None]
) -> Path:
    """A new folder at this path, where nothing may be yet, or under a free name below `runs/`; `make` fills it."""
    if path is None:
        about = (data.name[:60] or "data", settings.method, settings.curriculum.pseudo_labels, ending)
        return create_free_folder(Path("runs"), "-".join(about), make)
    path = Path(path)
    _check_name(path)
    if create_folder(path, make):
        return path
    trained = (path / SETTINGS).is_file() or seed_folders(path)
    there = f", or continue that one with: ebpl resume {path}" if trained else ""
    if not trained and any((path / name).exists() for name in (ENVIRONMENT, SEEDS)):
        there = ", or remove it: it has no settings, as a process leaves it that is killed while it makes a run"
    raise RunError(f"{path} exists already, and a run never overwrites anything. Choose another run directory{there}.")


def _check_name(path: Path) -> None:
    if not is_text(str(path)):
        raise RunError(f"{str(path)!a} is not valid UTF-8. Choose another name for the run directory.")


def _not_a_run(path: Path) -> str:
    if not path.exists():
        siblings = (
            [str(p) for p in path.parent.glob("[!.]*") if (p / SETTINGS).is_file()] if path.parent.is_dir() else []
        )
        hint = f" {did_you_mean(str(path), siblings)}" if siblings else ""
        return f"There is no run at {path}.{hint}"
    if seeds := seed_folders(path):
        return f"{path} holds the runs of several seeds: {', '.join(p.name for p in seeds)}. Name one of them."
    if lost := lost_seeds(path):
        return f"{path} was made for seeds, but the runs of {', '.join(map(str, lost))} are gone. Train them anew."
    return f"{path} is not a run directory: it has no {SETTINGS}."


def _settings_file(source: dict[str, Any], settings: Settings) -> str:
    return write_toml({"source": source, "settings": nested(settings.to_dict())})
