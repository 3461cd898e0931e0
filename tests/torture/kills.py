"""SIGKILL at random moments of `train` and `resume`; the run must end with what an undisturbed one ends with."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers import ebpl, environment, result, sets
from tests.torture.report import Findings

OPTIONS = [
    "--preset",
    "quick",
    *("--labels-per-class", "4"),
    *sets({"sgld.steps": 2, "sgld.buffer_size": 128, "optim.epochs": 2, "curriculum.steps": 2, "curriculum.epochs": 1}),
    *sets({"runtime.checkpoint_seconds": 0}),
]
MOST_KILLS = 6
"""Of one run; then it may finish."""


def kills(count: int, folder: Path, seed: int = 0) -> Findings:
    """Kill so often in all."""
    found, chance = Findings("kill -9"), random.Random(seed)
    started = time.monotonic()
    whole = ebpl("train", "digits", "--run", folder / "whole", *OPTIONS)
    seconds = time.monotonic() - started
    assert whole.returncode == 0, whole.stderr
    expected = result(folder / "whole")
    number = 0
    while found.counts.total() < count:
        run, number = folder / f"run-{number}", number + 1
        for _ in range(min(MOST_KILLS, count - found.counts.total())):
            verb = ["resume", run] if (run / "settings.toml").is_file() else ["train", "digits", "--run", run, *OPTIONS]
            child = subprocess.Popen(
                [sys.executable, "-m", "ebpl", *map(str, verb)],
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            time.sleep(chance.uniform(0, seconds))
            killed = child.poll() is None
            if killed:
                os.kill(child.pid, signal.SIGKILL)
            _, err = child.communicate()
            if killed:
                found.add("killed", "traceback" if "Traceback" in err else None)
                continue
            if child.returncode != 0:
                found.wrong.append(f"{verb[0]} exits {child.returncode}: {err.strip().splitlines()[-1:]}")
            break  # it was finished before
        verb = ["resume", run] if (run / "settings.toml").is_file() else ["train", "digits", "--run", run, *OPTIONS]
        end = ebpl(*verb)
        if end.returncode != 0:
            found.wrong.append(f"{run.name} cannot be finished: {end.stderr.strip()[-300:]}")
        elif result(run) != expected:
            found.wrong.append(f"{run.name} ends with another result than an undisturbed run")
        if left := [path.name for path in folder.glob(f".{run.name}*")]:
            found.wrong.append(f"{run.name} leaves {left}")
    return found
