"""Progress of long work: a bar where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Progress(Protocol):
    """What the trainer tells while it works."""

    def begin(self, updates: int, done: int) -> None:
        """Training starts, with so many updates in all, some of them done by an earlier process."""

    def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
        """Some more updates are done; `where` is phase and epoch, `facts` what is worth showing."""

    def epoch(self, line: str) -> None:
        """An epoch is done, summed up in a line."""

    def say(self, text: str) -> None:
        """Something happened that a person should know."""

    def end(self) -> None:
        """Training is over, for whatever reason."""


class Silent:
    """Shows nothing."""

    def begin(self, updates: int, done: int) -> None: ...
    def advance(self, updates: int, where: str, facts: dict[str, float]) -> None: ...
    def epoch(self, line: str) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...


class Lines(Silent):
    """Plain lines on standard error: the first epochs, then one every few seconds, each with the time left."""

    def __init__(self, label: str = "", every: float = 5.0) -> None:
        self._label = f"{label}: " if label else ""
        self._every = every
        self._total = self._done = self._begun_with = 0
        self._start = self._last = 0.0

    def begin(self, updates: int, done: int) -> None:
        self._total, self._done, self._begun_with = updates, done, done
        self._start, self._last = time.monotonic(), 0.0

    def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
        self._done += updates

    def epoch(self, line: str) -> None:
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            worked = self._done - self._begun_with
            left = (self._total - self._done) * (now - self._start) / worked if worked else 0.0
            self.say(f"{line} | {duration(left)} left")

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever was reading went away: no reason to stop working
            print(self._label + text, file=sys.stderr, flush=True)


class Bar(Silent):
    """One bar: phase, epoch, losses, validation accuracy, time left."""

    def __init__(self, label: str = "") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn(f"[bold]{label}" if label else "[bold]training"),
            TextColumn("{task.fields[where]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            _time_left_column(),
            console=Console(stderr=True),
            expand=True,
        )
        self._task: Any = None

    def begin(self, updates: int, done: int) -> None:
        self._task = self._bar.add_task("", total=updates, completed=done, where="", facts="")
        self._bar.start()

    def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.3g}" for name, value in facts.items())
        self._bar.update(self._task, advance=updates, where=where, facts=text)

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        self._bar.stop()


def _time_left_column() -> Any:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            if task.finished:
                return Text("done")
            left = task.time_remaining
            return Text("" if left is None else f"{duration(left)} left")

    return TimeLeft()


def terminal_progress(label: str = "") -> Progress:
    """A bar on a terminal, plain lines elsewhere."""
    return Bar(label) if sys.stderr.isatty() else Lines(label)


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(42), duration(125), duration(7500)
    ('42 s', '2 min 05 s', '2 h 05 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


@contextlib.contextmanager
def transfer_bar(name: str, total: int | None, done: int) -> Iterator[Callable[[int], None]]:
    """A bar for a download; yields a function to call with the number of bytes that arrived."""
    if not sys.stderr.isatty():
        print(f"downloading {name} ({total or 0:,} bytes)", file=sys.stderr, flush=True)
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(f"downloading {name}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda count: bar.advance(task, count)
