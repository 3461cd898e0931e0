"""The cells of an experiment over a Ray cluster: one task for all forms of a seed, which share their initial training.

Records come back to the process that asked for them; a task whose worker is lost runs again elsewhere, and continues
where it was if it finds its run directory. Every machine needs this checkout at the same path.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ebpl.errors import UsageError
from ebpl.terminal import Progress, Silent
from experiments.grid import Cell
from experiments.reproduce import Reproduction
from experiments.results_store import Record, load

RETRIES = 5
ROOT = Path(__file__).parents[1]


def reproduce_on(address: str, work: Reproduction, gpus: float | None = None) -> bool:
    """Run what is missing on the cluster at this address (`auto`: the one this machine belongs to; `local`: a new one).

    Each task asks for `gpus` GPUs: one where the cluster has any and nothing else is said.
    """
    ray = _ray()
    runs, data_dir = work.runs.resolve(), work.data_dir.resolve() if work.data_dir else None
    with contextlib.chdir(ROOT):  # workers import from where Ray was started
        ray.init(address=None if address == "local" else address, log_to_driver=False, ignore_reinit_error=True)
    try:
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
        task = ray.remote(max_retries=RETRIES, num_gpus=gpus)(run_family)
        waiting = {}
        for family in families(work.missing()):
            waiting[task.remote(family, str(data_dir) if data_dir else None, str(runs))] = family
        done = 0
        work.say(f"{len(waiting)} tasks for {len(work.missing())} missing cells")
        while waiting:
            (finished,), _ = ray.wait(list(waiting), num_returns=1)
            family = waiting.pop(finished)
            try:
                records, failures = ray.get(finished)
            except ray.exceptions.RayError as error:
                records, failures = [], {cell: str(error).splitlines()[0] for cell in family}
            for record in records:
                work.keep(record)
            work.failures |= failures
            done += 1
            work.say(f"{done} of {done + len(waiting)} tasks are done: {family[0].trunk}")
            for cell, reason in failures.items():
                work.say(f"{cell} failed: {reason}")
    finally:
        ray.shutdown()
    return not [cell for cell in work.missing() if cell not in work.failures]


def families(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that share their initial training."""
    found: dict[Cell, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.trunk, []).append(cell)
    return list(found.values())


def run_family(cells: list[Cell], data_dir: str | None, runs: str) -> tuple[list[Record], dict[Cell, str]]:
    """One task: train these cells here; returns their records, and the reasons of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(data_dir) if data_dir else None
        work = Reproduction(cells, Path(folder), Path(runs), _silent, lambda _: None, where, at_once=len(cells))
        work.run()
        return load(Path(folder)), work.failures


@contextlib.contextmanager
def _silent(labels: Sequence[str]) -> Iterator[list[Progress]]:
    yield [Silent() for _ in labels]


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs Ray. Install it with: pip install 'ebpl[cluster]'") from None
    return ray
