"""What an attack found, counted."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebpl.cli import main


@dataclass
class Outcome:
    """How one command ended."""

    code: int
    out: str
    err: str
    trace: str = ""
    """The traceback, if an exception escaped."""


def command(arguments: Sequence[object]) -> Outcome:
    """A command of the shell, in this process: importing torch anew for each would take hours."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            return Outcome(main([str(word) for word in arguments]), out.getvalue(), err.getvalue())
        except SystemExit as stop:
            return Outcome(int(stop.code or 0), out.getvalue(), err.getvalue())
        except BaseException:
            return Outcome(-1, out.getvalue(), err.getvalue(), traceback.format_exc())


@dataclass
class Findings:
    """Counts of how attacks ended, and the ones that found something wrong."""

    attack: str
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, kind: str, problem: str | None = None) -> None:
        """One more attack of a kind, and what was wrong, if anything."""
        self.counts[kind] += 1
        if problem:
            self.wrong.append(f"{kind}: {problem}")

    def __str__(self) -> str:
        lines = [f"{self.attack}: {self.counts.total()} attacks, {len(self.wrong)} found something wrong"]
        lines += [f"  {count:5} {kind}" for kind, count in sorted(self.counts.items())]
        return "\n".join([*lines, *(f"  WRONG {problem}" for problem in self.wrong[:40])])
