"""What listens to training: files of the run directory, the log, the progress bar, TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ebpl.errors import UsageError
from ebpl.runs import Run
from ebpl.terminal import Progress
from ebpl.training import checkpoint
from ebpl.training.relabel import PSEUDO_LABELS, Relabeling

Row = dict[str, Any]


class Callback:
    """Told what happens while a run is trained. Every method may be left out."""

    def begin(self, updates: int, epochs_done: int, updates_done: int) -> None:
        """Training starts: updates in all, and what an earlier process has done of it."""

    def message(self, text: str, warning: bool = False) -> None:
        """Something that a person should know."""

    def updates(self, count: int, where: str, facts: dict[str, float]) -> None:
        """More updates are done; `where` is phase and epoch, `facts` what is worth showing."""

    def relabeled(self, step: int, found: Relabeling) -> None:
        """A curriculum step has given new pseudo-labels."""

    def epoch(self, history: Sequence[Row], line: str) -> None:
        """An epoch is done: the rows of all epochs, and this one as a line of text."""

    def rewound(self, epochs_done: int, updates_undone: int, where: str) -> None:
        """Training has gone back to an earlier state."""

    def weights(self, weights: dict[str, Tensor], chosen: dict[str, Any]) -> None:
        """These are the weights to keep so far, and how they were chosen."""

    def checkpoint(self, epochs_done: int, state: dict[str, Any]) -> None:
        """A state that training can continue from."""

    def end(self) -> None:
        """Training is over, for whatever reason."""


class RunWriter(Callback):
    """Writes metrics.csv, pseudo-labels, weights and checkpoints into the run directory."""

    def __init__(self, run: Run, description: dict[str, Any]) -> None:
        self.run, self.description = run, description

    def relabeled(self, step: int, found: Relabeling) -> None:
        if found.outlier_rows is not None:
            self.run.save_table(f"{PSEUDO_LABELS}/outliers-{step}.csv", found.outlier_rows)
        self.run.save_table(f"{PSEUDO_LABELS}/step-{step}.csv", found.rows)

    def epoch(self, history: Sequence[Row], line: str) -> None:
        self.run.save_table("metrics.csv", history)

    def weights(self, weights: dict[str, Tensor], chosen: dict[str, Any]) -> None:
        self.run.save_model(weights, {**self.description, "chosen": chosen})

    def checkpoint(self, epochs_done: int, state: dict[str, Any]) -> None:
        self.run.check_in_place()
        checkpoint.save(self.run.checkpoints, epochs_done, state)


class RunLog(Callback):
    """Writes train.log."""

    def __init__(self, run: Run) -> None:
        self.log = run.log

    def message(self, text: str, warning: bool = False) -> None:
        (self.log.warning if warning else self.log.info)("%s", text)

    def epoch(self, history: Sequence[Row], line: str) -> None:
        self.log.info("%s", line)


class ProgressBar(Callback):
    """Shows progress in the terminal."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def begin(self, updates: int, epochs_done: int, updates_done: int) -> None:
        self.progress.begin(updates, updates_done)

    def message(self, text: str, warning: bool = False) -> None:
        self.progress.say(text)

    def updates(self, count: int, where: str, facts: dict[str, float]) -> None:
        self.progress.advance(count, where, facts)

    def epoch(self, history: Sequence[Row], line: str) -> None:
        self.progress.epoch(line)

    def rewound(self, epochs_done: int, updates_undone: int, where: str) -> None:
        self.progress.advance(-updates_undone, where, {})

    def end(self) -> None:
        self.progress.end()


class TensorBoard(Callback):
    """Writes each number of an epoch as a scalar; a resumed run replaces what came after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None
        summary_writer()

    def _open(self, epochs_done: int) -> None:
        self.end()
        self.writer = summary_writer()(str(self.folder), purge_step=epochs_done + 1)

    def begin(self, updates: int, epochs_done: int, updates_done: int) -> None:
        self._open(epochs_done)

    def epoch(self, history: Sequence[Row], line: str) -> None:
        for name, value in history[-1].items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, len(history))

    def rewound(self, epochs_done: int, updates_undone: int, where: str) -> None:
        self._open(epochs_done)

    def end(self) -> None:
        if self.writer is not None:
            self.writer.close()


def summary_writer() -> Any:
    """PyTorch's writer of TensorBoard events, or an error that says how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("TensorBoard events need the extra: pip install 'ebpl[tensorboard]'") from error
    return SummaryWriter
