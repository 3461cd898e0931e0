"""Train the cells that have no record yet; whatever was interrupted continues."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from ebpl import api
from ebpl.data import load
from ebpl.data.dataset import ImageSet
from ebpl.devices import choose_device
from ebpl.errors import EbplError
from ebpl.runs import Run
from ebpl.runs.reader import SETTINGS
from ebpl.terminal import Progress, Silent, duration
from experiments.grid import Cell, found
from experiments.results_store import Record, name_of, record_of, save, without_details
from experiments.results_store import load as load_records

Bars = Callable[[list[str]], AbstractContextManager[Sequence[Progress]]]
"""Makes something that shows the progress of trainings with these labels."""


class Brief(Silent):
    """Progress without what a run says of itself, which is in its log: there are many of them."""

    def __init__(self, progress: Progress) -> None:
        self._whole = progress

    def begin(self, updates: int, done: int) -> None:
        self._whole.begin(updates, done)

    def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
        self._whole.advance(updates, where, facts)

    def epoch(self, line: str) -> None:
        self._whole.epoch(line)

    def end(self) -> None:
        self._whole.end()


def clear_half(path: Path) -> None:
    """Remove half a run directory, which a kill has left."""
    if path.is_dir() and not (path / SETTINGS).is_file():
        shutil.rmtree(path)


@dataclass
class Reproduction:
    """Cells to train, where their records and run directories are, and how long it may take."""

    cells: list[Cell]
    results: Path
    runs: Path
    bars: Bars
    say: Callable[[str], None]
    data_dir: Path | None = None
    deadline: float = float("inf")
    """On the clock of `time.monotonic`; what runs then is stopped after saving its last epoch."""
    detailed: list[Cell] | None = None
    """Whose records carry what single images and samples are drawn from; None: all."""
    at_once: int = 1
    """Trainings that share a GPU."""
    failures: dict[Cell, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def missing(self) -> list[Cell]:
        """Cells without a record, in their order."""
        return self._missing(self.cells)

    def _missing(self, cells: Sequence[Cell]) -> list[Cell]:
        there = {cell for cell, _ in found(cells, load_records(self.results))}
        return [cell for cell in cells if cell not in there]

    def run(self) -> bool:
        """Train what is missing; False if the time was over before all was done."""
        self._tell()
        for data, group in groupby(self.missing(), lambda cell: cell.data):
            family = list(group)
            if time.monotonic() >= self.deadline:
                return False
            try:
                images = load(data, data_dir=self.data_dir)
            except EbplError as error:
                for cell in family:
                    self.failures[cell] = str(error)
                self.say(f"{data} is left out: {error}")
                continue
            trunks = list(dict.fromkeys(cell.trunk for cell in family))
            self._train([cell for cell in trunks if self._wanted(cell, family, images)], images)
            self._train([cell for cell in family if cell != cell.trunk and cell not in self.failures], images)
        return not [cell for cell in self.missing() if cell not in self.failures]

    def _wanted(self, trunk: Cell, family: Sequence[Cell], images: ImageSet) -> bool:
        """Whether a cell without pseudo-labels is missing itself, or to be branched from and not there."""
        return trunk in family or not self._run_of(trunk, images).is_dir()

    def _run_of(self, cell: Cell, images: ImageSet) -> Path:
        """Where a cell is trained."""
        data = {"name": cell.data, "fingerprint": images.fingerprint()}
        return self.runs / name_of({"data": data, "settings": cell.settings.to_dict()})

    def _train(self, cells: Sequence[Cell], images: ImageSet) -> None:
        """Train cells of one dataset, on a GPU side by side, elsewhere one after the other; keep what is finished."""
        on_gpu = all(choose_device(cell.settings.runtime).type == "cuda" for cell in cells)
        size = self.at_once if on_gpu else 1
        for start in range(0, len(cells), size):
            if time.monotonic() < self.deadline:
                self._train_together(cells[start : start + size], images)

    def _train_together(self, cells: Sequence[Cell], images: ImageSet) -> None:
        opened = {cell: self._opened(cell, images) for cell in cells}
        unfinished = {cell: run for cell, run in opened.items() if not run.finished}
        started = time.monotonic()
        with self.bars([str(cell) for cell in unfinished]) as bars:
            brief = [Brief(bar) for bar in bars]
            errors = api.resume_runs(list(unfinished.values()), images, brief, self.deadline)
        new = set(self._missing(cells))
        for cell, run in opened.items():
            if run.finished and cell in new:
                self.keep(record_of(run))
            elif run.path in errors:
                self.failures[cell] = str(errors[run.path])
                self.say(f"{cell} failed: {errors[run.path]}")
        if unfinished:  # else all were finished before, and only their records were missing
            self.seconds += [(time.monotonic() - started) / len(unfinished)] * len(unfinished)
        self._tell()

    def keep(self, record: Record) -> None:
        """Put a record beside the others."""
        detailed = self.detailed is None or any(cell.is_in(record) for cell in self.detailed)
        save(record if detailed else without_details(record), self.results)

    def _opened(self, cell: Cell, images: ImageSet) -> Run:
        """The cell's run: as it was left, branched from the one without pseudo-labels, or new."""
        path = self._run_of(cell, images)
        clear_half(path)
        if path.is_dir():
            return Run(path)
        trunk = self._run_of(cell.trunk, images)
        if cell != cell.trunk and (trunk / SETTINGS).is_file() and Run(trunk).finished:
            return Run(trunk).branch(path, cell.settings)
        source = {"path": cell.data, "data_dir": str(self.data_dir.resolve()) if self.data_dir else None}
        return Run.create(path, cell.settings, images, source)

    def _tell(self) -> None:
        left = len([cell for cell in self.missing() if cell not in self.failures])
        done = len(self.cells) - left
        mean = sum(self.seconds) / len(self.seconds) if self.seconds else None
        time_left = f", about {duration(mean * left)} left" if mean and left else ""
        self.say(f"{done} of {len(self.cells)} cells are done{time_left}")
