"""The ledger: one small JSON for each finished run, with everything needed to know where its numbers come from.

A record's name is a function of its settings and data, so the same experiment overwrites itself and another one never
does; two ledgers are merged by copying files. `python -m experiments.ledger RUN ...` adds runs to `results/`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.config import Settings
from ebpl.config.presets import STEP_SETTINGS
from ebpl.errors import DataError
from ebpl.io import write_json
from ebpl.runs import DETAILS, Run

Record = dict[str, Any]
SEED_WITH_DETAILS = 0
"""The records of this seed carry what single images and samples are drawn from; of all seeds it would be much."""

INCIDENTAL = {"checkpoint_seconds", "tensorboard", "device"}
"""Where and how often a run was written does not change what it computes."""

_DEFAULTS = Settings().to_dict()
GUARD = {"guard_gap", "guard_tries", "guard_every"}
"""Of no effect on a run that was not healed."""


def record_of(run: Run) -> Record:
    """What the ledger keeps of a finished run."""
    data = {key: run.source[key] for key in ("name", "fingerprint")}
    environment = run.environment()
    environment.pop("command", None)
    record: Record = {
        "data": data,
        "settings": run.settings.to_dict(),
        "environment": environment,
        "result": run.metrics(),
    }
    packed = run.path / DETAILS
    if run.settings.seed == SEED_WITH_DETAILS and packed.is_file():
        record["details"] = base64.b64encode(packed.read_bytes()).decode()
    return record


def details(record: Record) -> dict[str, NDArray[Any]]:
    """The arrays behind the figures, as `Run.save_details` wrote them; nothing is unpickled."""
    try:
        packed = np.load(io.BytesIO(base64.b64decode(record["details"])), allow_pickle=False)
        return {name: packed[name] for name in packed.files}
    except KeyError:
        return {}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"The details of {name_of(record)} are damaged: {error}") from error


def save(record: Record, folder: Path) -> Path:
    """Write a record into the ledger; returns its path."""
    path = folder / f"{name_of(record)}.json"
    write_json(path, record)
    return path


def name_of(record: Record) -> str:
    """A readable name that is different for every difference in data or settings, and stays as new settings come."""
    settings, data = record["settings"], record["data"]
    chosen = {key: value for key, value in telling(settings).items() if value != _DEFAULTS[key]}
    content = json.dumps([data["fingerprint"], chosen], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    network = f"wrn-{settings['depth']}-{settings['width']}"
    return f"{data['name']}-{settings['method']}-{settings['pseudo_labels']}-{network}-seed{settings['seed']}-{digest}"


def digest(records: Sequence[Record]) -> str:
    """A few letters that change with any result among these records, whatever their order."""
    kept = [[record["data"], record["settings"], record["result"]] for record in records]
    parts = sorted(json.dumps(each, sort_keys=True) for each in kept)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def telling(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that make a result what it is.

    One that came after the record was then as its default is now: the defaults of new settings change nothing.
    """
    whole = {**_DEFAULTS, **settings}
    if whole["pseudo_labels"] == "none":
        whole |= {name: _DEFAULTS[name] for name in STEP_SETTINGS}
    return {key: value for key, value in whole.items() if key not in INCIDENTAL and value is not None}


def load(folder: Path) -> list[Record]:
    """All records of a ledger, in the order of their names."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise DataError(f"{path} is not a record of a run: {error}") from error
    return records


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(save(record_of(Run(path)), Path("results")))
