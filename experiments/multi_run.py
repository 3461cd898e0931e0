"""Experiments that compare several trainings of each seed and keep one record of the comparison.

They take a benchmark apart and put it together as a practitioner would meet it. Records are in `results/beyond/`; a
seed that has one is not run again. An experiment is one file of this package with a subclass of `MultiRun` that is
named `EXPERIMENT`.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ebpl import api
from ebpl.config import Settings
from ebpl.config.compat import modern_names
from ebpl.data import load
from ebpl.data.dataset import ImageSet
from ebpl.devices import describe_environment
from ebpl.errors import DataError, UsageError
from ebpl.io import write_json
from ebpl.runs import Run
from experiments.reproduce import Bars, Brief, clear_half
from experiments.results_store import Record, identity, network_of
from experiments.table import averaged

FOLDER = "beyond"
MOST_COLUMNS = 8

Arm = dict[str, Any]
Column = Callable[[Arm], float | None]
Rows = list[list[str]]


class MultiRun:
    """An experiment of several trainings for each seed, continued where it was stopped."""

    name: ClassVar[str]
    datasets: ClassVar[Sequence[str]] = ("blood",)
    """On which it is run unless told otherwise."""
    columns: ClassVar[Mapping[str, Column]] = {}
    """What is shown of each arm beside accuracy and ECE: a fraction or None."""

    def __init__(
        self,
        settings: Settings,
        results: Path,
        runs: Path,
        bars: Bars,
        say: Callable[[str], None],
        data_dir: Path | None = None,
        deadline: float = float("inf"),
    ) -> None:
        self.settings, self.results, self.runs, self.bars, self.say = settings, results / FOLDER, runs, bars, say
        self.data_dir, self.deadline = data_dir, deadline
        self._loaded: dict[str, ImageSet] = {}

    def measure(self, data: str, settings: Settings) -> dict[str, Any] | None:
        """What a record holds of one seed, with the result of each arm under `arms`; None if time ran out."""
        raise NotImplementedError

    def prepare(self, data: str, every: Sequence[Settings]) -> bool:
        """What is done for all missing seeds at once, before any is measured; False if time ran out."""
        return True

    def run(self, data: str, seeds: Sequence[int]) -> bool:
        """Run the seeds that are missing; False if time ran out."""
        every = [self.settings.changed(method="ebpl", seed=seed) for seed in seeds]
        network = network_of(self.settings.to_dict()).lower()
        paths = {each: self.results / f"{self.name}-{data}-{network}-seed{each.seed}.json" for each in every}
        missing = {settings: path for settings, path in paths.items() if not path.is_file()}
        if missing and not self.prepare(data, list(missing)):
            return False
        for settings, path in missing.items():
            seed = settings.seed
            self.say(f"{self.name}, {data}, seed {seed}")
            found = self.measure(data, settings)
            if found is None:
                return False
            described = {"settings": settings.to_dict(), "environment": describe_environment(settings.runtime)}
            write_json(path, {"experiment": self.name, "data": data, **described, **found})
        return True

    def load(self, name: str) -> ImageSet:
        """A benchmark by name, read once."""
        if name not in self._loaded:
            self._loaded[name] = load(name, data_dir=self.data_dir)
        return self._loaded[name]

    def trained(self, wanted: Sequence[tuple[str, Settings]], images: ImageSet) -> list[Run] | None:
        """Finished runs by these names, trained now if need be; None if the time was over before."""
        runs = []
        for name, settings in wanted:
            path = self.runs / f"{name}-seed{settings.seed}"
            clear_half(path)
            runs.append(Run(path) if path.is_dir() else Run.create(path, settings, images, {}))
            if identity(runs[-1].settings.to_dict()) != identity(settings.to_dict()):
                raise UsageError(f"{path} was trained with other settings. Remove it, or choose another --runs folder.")
        unfinished = [run for run in runs if not run.finished]
        if unfinished:
            self.say(f"training {', '.join(run.path.name for run in unfinished)}")
            with self.bars([run.path.name for run in unfinished]) as bars:
                errors = api.resume_runs(unfinished, images, [Brief(bar) for bar in bars], self.deadline)
            for error in errors.values():
                raise error
        return runs if all(run.finished for run in runs) and time.monotonic() < self.deadline else None


def experiment_of(name: str) -> type[MultiRun]:
    """An experiment by its name."""
    found: type[MultiRun] = importlib.import_module(f"experiments.{name}").EXPERIMENT
    return found


def records(folder: Path) -> list[Record]:
    """All that is kept of these experiments, under today's names of settings."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            found.append({**record, "settings": modern_names(record["settings"])})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} is not a record of an experiment: {error!r}") from error
    return found


def shown(folder: Path, name: str) -> Rows:
    """The results of an experiment as a table that can be read."""
    own = [record for record in records(folder) if record["experiment"] == name]
    return compact(summary(own, experiment_of(name).columns))


def summary(found: Sequence[Record], columns: Mapping[str, Column]) -> Rows:
    """A line for each dataset, network and arm: means over seeds."""
    lines = [["data", "network", "arm", "n", "accuracy %", "ECE %", *columns]]
    groups: dict[tuple[str, str, str], list[Arm]] = {}
    for record in found:
        for arm, values in record["arms"].items():
            groups.setdefault((record["data"], network_of(record["settings"]), arm), []).append(values)
    for key, arms in groups.items():
        measured = [_mean([arm["metrics"][name] for arm in arms]) for name in ("accuracy", "ece")]
        more = [_mean([column(arm) for arm in arms]) for column in columns.values()]
        lines.append([*key, str(len(arms)), *measured, *more])
    return lines


def compact(lines: Rows) -> Rows:
    """The lines without empty columns; turned, if there are still too many to be read: a line for each metric."""
    kept = [column for column in zip(*lines, strict=True) if any(column[1:]) or len(lines) == 1]
    if len(kept) > MOST_COLUMNS and len(lines) > 1:
        first = [next(column for column in kept if column[0] == name) for name in ("data", "network", "arm")]
        heads = ["", *(", ".join(names) for names in zip(*(column[1:] for column in first), strict=True))]
        return [heads, *([*column] for column in kept if column not in first)]
    return [[*line] for line in zip(*kept, strict=True)]


def _mean(values: Sequence[float | None]) -> str:
    there = [{"x": value} for value in values if value is not None]
    return str(averaged(there)["x"]) if there else ""
