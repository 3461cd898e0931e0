"""What people see in a terminal: progress of long work, and tables."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

NARROW = 80
"""Columns of a terminal below which a bar shows less."""


class Progress(Protocol):
    """What a trainer reports while it works."""

    def begin(self, updates: int, done: int) -> None:
        """Training starts: the total number of updates, and how many an earlier process has done."""

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
        with contextlib.suppress(OSError):  # the reader of our output is gone: no reason to stop
            print(harmless(self._label + text), file=sys.stderr, flush=True)


class Bar(Silent):
    """One bar: phase, epoch, losses, validation accuracy, time left; one of several on `display` if given."""

    def __init__(self, label: str = "", display: Any = None) -> None:
        self._display, self._alone = display or _display(), display is None
        self._label = f"{label}: " if label and display else ""
        self._task = self._display.add_task(label or "training", start=False, total=1, where="waiting", facts="")

    def begin(self, updates: int, done: int) -> None:
        self._display.update(self._task, total=updates, completed=done, where="")
        self._display.start_task(self._task)
        self._display.start()

    def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
        self._display.update(self._task, advance=updates, where=where, facts=facts_in_words(facts))

    def say(self, text: str) -> None:
        self._display.console.print(harmless(self._label + text), markup=False, highlight=False, emoji=False)

    def end(self) -> None:
        self._display.stop_task(self._task)
        if self._alone:
            self._display.stop()


def _display() -> Any:
    """Where bars are drawn; only one can be live at a time."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    # on a narrow terminal the time left is worth more than the time that has passed
    elapsed = [TimeElapsedColumn(table_column=Column(no_wrap=True))] if console.width >= NARROW else []
    return Progress(
        TextColumn("[bold]{task.description}"),
        TextColumn("{task.fields[where]}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1, no_wrap=True)),
        TextColumn("{task.percentage:>3.0f}%"),
        _facts_column(),
        *elapsed,
        _time_left_column(),
        console=console,
        expand=True,
    )


def _facts_column() -> Any:
    """What gives way on a narrow terminal, so that the time left can still be seen."""
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Facts(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.fields["facts"], no_wrap=True, overflow="ellipsis")

    return Facts(Column())  # the only column that may wrap is the only one that gets narrower


def _time_left_column() -> Any:
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def render(self, task: Task) -> Text:
            if task.finished or task.stop_time is not None:
                return Text("done" if task.finished else "stopped")
            left = task.time_remaining
            return Text("" if left is None else f"{duration(left)} left")

    return TimeLeft(Column(no_wrap=True))


def facts_in_words(facts: dict[str, float]) -> str:
    """Numbers with their names, an accuracy in per cent.

    >>> facts_in_words({"validation accuracy": 0.815, "loss": 0.12345})
    'validation accuracy 81.5 %  loss 0.1235'
    """
    shown = {name: f"{100 * v:.1f} %" if name.endswith("accuracy") else f"{v:.4g}" for name, v in facts.items()}
    return "  ".join(f"{name} {value}" for name, value in shown.items())


def terminal_progress(label: str = "") -> Progress:
    """A bar on a terminal, plain lines elsewhere."""
    return Bar(label) if sys.stderr.isatty() else Lines(label)


@contextlib.contextmanager
def terminal_progresses(labels: Sequence[str]) -> Iterator[list[Progress]]:
    """A bar for each of several trainings, one below the other on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield [Lines(label) for label in labels]
        return
    display = _display()  # goes live when the first training begins, since a download may want a bar before
    try:
        yield [Bar(label, display) for label in labels]
    finally:
        display.stop()


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


def seconds(time: float | str) -> float:
    """Seconds from a number of them, or from 90, 90s, 20m or 1.5h; a `ValueError` says what is wrong.

    >>> seconds("1.5h"), seconds(90), seconds("4 min")
    (5400.0, 90.0, 240.0)
    """
    text = str(time)
    found = re.fullmatch(r"\s*(\S*?)\s*(s|sec|m|min|h)?\s*", text)
    try:
        value = float(found[1]) * {"m": 60, "h": 3600}.get((found[2] or "s")[0], 1) if found else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is not a time. Give for instance 90, 90s, 20m or 1.5h")
    return value


@contextlib.contextmanager
def counted(what: str, every: float = 5.0) -> Iterator[Callable[[int], None]]:
    """Counts things whose number is not known before: a line now and then, on a terminal always the same one."""
    total, start = 0, time.monotonic()
    live = sys.stderr.isatty()
    last = 0.0 if live else start

    def done(count: int) -> None:
        nonlocal total, last
        total += count
        now = time.monotonic()
        if now - last >= (0.5 if live else every):
            last = now
            rate = total / max(now - start, 1e-9)
            text = f"{total:,} {what}, {rate:,.0f} a second"
            with contextlib.suppress(OSError):
                print(f"\r{text}" if live else text, end="" if live else "\n", file=sys.stderr, flush=True)

    yield done
    if live and total:
        print(file=sys.stderr)


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


MOST_ROWS = 20
"""Classes that a table shows."""
MOST_COLUMNS = 5
"""As many seeds as fit beside each other on a terminal of 80 columns."""


def measures_table(
    title: str,
    results: dict[str, dict[str, Any]],
    shown: Sequence[str] | None = None,
    bins: Mapping[str, Any] = {},
    intervals: Mapping[str, Any] | None = None,
) -> Any:
    """Measures as rows (all, or the ones named), one column a result.

    `bins` are the reliability bins of each: with them it is said whether a wrong confidence is more than chance.
    `intervals` are those of a single result, and the last column.
    """
    from rich.table import Table
    from rich.text import Text

    from ebpl.metrics import METRICS, confidence_direction, in_words
    from ebpl.metrics.intervals import interval_in_words

    table = Table(title=Text(harmless(title)), title_justify="left")
    table.add_column("measure")
    for name in results:
        table.add_column(name, justify="right")
    if intervals is not None:
        table.add_column("95 % interval", justify="right")
    words = {
        name: confidence_direction(result.get("overconfidence"), bins.get(name)) for name, result in results.items()
    }
    for key in shown or METRICS:
        cells = [in_words(key, result.get(key), words[name]) for name, result in results.items()]
        ends = [] if intervals is None else [interval_in_words(key, intervals.get(key))]
        table.add_row(METRICS[key].title, *cells, *ends)
    return table


def classes_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Recall, precision and confidence of each class, with intervals; of many classes those of the lowest recall."""
    from rich.table import Table
    from rich.text import Text

    def share(value: float | None, ends: Sequence[float] | None = None) -> str:
        if value is None or not math.isfinite(value):
            return "–"
        return f"{100 * value:.1f} %" + (f" ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})" if ends else "")

    there = [row for row in rows if row["images"] or row["predicted"]]
    if len(there) > MOST_ROWS:
        there = sorted(there, key=lambda row: row["recall"] if row["images"] else math.inf)[:MOST_ROWS]
    left_out = len(rows) - len(there)
    title = "By class, with 95 % intervals"
    table = Table(
        title=title,
        title_justify="left",
        caption=f"{left_out} more classes are in --json." if left_out else None,
        caption_justify="left",
    )
    table.add_column("class", overflow="fold")
    for name in ("images", "recall", "precision", "confidence"):
        table.add_column(name, justify="right")
    for row in there:
        of_recall, of_precision = (share(row[name], row[f"{name}_interval"]) for name in ("recall", "precision"))
        cells = (str(row["images"]), of_recall, of_precision, share(row["confidence"]))
        table.add_row(Text(harmless(row["class"]).replace("\n", r"\n")), *cells)
    return table


def seeds_table(title: str, results: dict[int, dict[str, Any]], ensemble: dict[str, Any] | None = None) -> Any:
    """Measures as rows, one column a seed (of many seeds the lowest and highest value), mean and standard deviation.

    Where measures of the seeds as an ensemble are given, they are the last column.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ebpl.metrics import as_number, spread

    title += f", {len(results)} seed{'s' * (len(results) > 1)}"
    table = Table(
        title=Text(harmless(title)), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    many = len(results) > MOST_COLUMNS
    table.add_column("measure" if many else "measure, by seed")
    for name in ["lowest", "highest"] if many else results:
        table.add_column(str(name), justify="right")
    table.add_column("mean ± std", justify="right")
    if ensemble:
        table.add_column("ensemble", justify="right")
    for key, (mean, deviation) in spread(list(results.values())).items():
        values = [result[key] for result in results.values()]
        together = ensemble[key] if ensemble else 0.0
        name, shown = as_number(key, *([min(values), max(values)] if many else values), mean, deviation, together)
        *shown, mean_text, deviation_text, together_text = shown
        spread_text = f" ± {deviation_text}" if key != "images" and len(results) > 1 else ""
        table.add_row(name, *shown, mean_text + spread_text, *([together_text] if ensemble else []))
    return table


def show(table: Any) -> None:
    """Print a table, on a terminal with lines and colours."""
    from rich.console import Console

    console = Console()
    console.print(table, highlight=False)


_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]")


def harmless(text: str) -> str:
    """The text with control characters spelt out: names from outside must not move a terminal's cursor.

    >>> print(harmless("clear \\x1b[2J"))
    clear \\x1b[2J
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Heads and rows as a Markdown table.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *rows])


def literal(text: object) -> str:
    """Somebody's text as Markdown that shows it as it is: nothing in it is markup, and it stays on one line.

    >>> print(literal("<b>a|b_c</b>"))
    \\<b\\>a\\|b\\_c\\</b\\>
    """
    one_line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", one_line)
