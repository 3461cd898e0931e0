"""Result records: one small JSON for each finished run, with everything needed to know where its numbers come from.

A record's name is a function of its settings and data, so the same experiment overwrites itself and another one never
does; two folders of records are merged by copying files. Records of version 0.1 are read under today's names of
settings. `python -m experiments.results_store RUN ...` adds runs to `results/`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.config import Settings, fields
from ebpl.config.compat import OLD_NAMES, modern_names, modern_result
from ebpl.config.presets import STEP_SETTINGS
from ebpl.errors import DataError
from ebpl.io import write_json
from ebpl.metrics import METRICS
from ebpl.runs import Run
from ebpl.runs.reader import DETAILS

Record = dict[str, Any]
SEED_WITH_DETAILS = 0
"""Records of this seed carry what single images and samples are drawn from; for all seeds it would be much."""
INCIDENTAL = {"runtime.checkpoint_seconds", "runtime.tensorboard", "runtime.device"}
"""Where and how often a run was written does not change what it computes."""
DIVERGENCE = {name for name, setting in fields().items() if setting.group == "divergence"}
"""Without effect on a run that did not have to recover."""
_DEFAULTS = Settings().to_dict()
_FIRST_NAMES = {new: old for old, new in OLD_NAMES.items()}
_STORED = "as stored"
"""A record that was read keeps the form it has on disk under this key."""


def record_of(run: Run) -> Record:
    """What is kept of a finished run."""
    data = {key: run.source[key] for key in ("name", "fingerprint")}
    environment = run.environment()
    for name in ("command", "settings", "fingerprint"):  # not for others, or in the record already
        environment.pop(name, None)
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


def without_details(record: Record) -> Record:
    """The record without those arrays, which are nine tenths of its size."""
    kept = {name: part for name, part in record.items() if name != "details"}
    return {**kept, _STORED: without_details(record[_STORED])} if _STORED in record else kept


def save(record: Record, folder: Path) -> Path:
    """Write a record into the folder; returns its path."""
    path = folder / f"{name_of(record)}.json"
    write_json(path, record.get(_STORED, record))
    return path


def load(folder: Path) -> list[Record]:
    """All records of a folder under today's names, in the order of their file names."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(modern_record(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} is not a record of a run: {error!r}") from error
    return records


def modern_record(stored: Record) -> Record:
    """A record under today's names of settings and curves; a metric that came after it is null."""
    result = _with_all_metrics(modern_result(stored["result"]))
    if result.get("last"):
        result["last"] = _with_all_metrics(result["last"])
    return {**stored, "settings": modern_names(stored["settings"]), "result": result, _STORED: stored}


def _with_all_metrics(result: Mapping[str, Any]) -> dict[str, Any]:
    measured = result.get("metrics")
    return {**result, **({"metrics": {**dict.fromkeys(METRICS), **measured}} if measured else {})}


def name_of(record: Record) -> str:
    """A readable name that is different for every difference in data or settings, and stays as new settings come.

    Settings of version 0.1 count under the names that they had then, so that names have not changed with them.
    """
    settings, data = identity(record["settings"]), record["data"]
    chosen = {_FIRST_NAMES.get(key, key): value for key, value in settings.items() if value != _DEFAULTS.get(key)}
    content = json.dumps([data["fingerprint"], chosen], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    kind, network = settings["curriculum.pseudo_labels"], network_of(settings).lower()
    return f"{data['name']}-{settings['method']}-{kind}-{network}-seed{settings['seed']}-{digest}"


def network_of(settings: Mapping[str, Any]) -> str:
    """The network that settings by full name ask for, in short."""
    whole = {**_DEFAULTS, **settings}
    backbone = whole["model.backbone"]
    return f"WRN-{whole['model.depth']}-{whole['model.width']}" if backbone == "wide_resnet" else str(backbone)


def digest(records: Sequence[Record]) -> str:
    """A few letters that change with any result among these records, whatever their order."""
    stored = (record.get(_STORED, record) for record in records)
    parts = sorted(json.dumps([each["data"], each["settings"], each["result"]], sort_keys=True) for each in stored)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make a result what it is, by full name.

    One that came after the record was then as its default is now: the defaults of new settings change nothing. One
    that is gone is there under its old name where it had an effect.
    """
    whole = {**_DEFAULTS, **settings}
    if whole["curriculum.pseudo_labels"] == "none":
        whole |= {name: _DEFAULTS.get(name) for name in STEP_SETTINGS}
    return {key: value for key, value in whole.items() if key not in INCIDENTAL and value is not None}


def recovered(record: Record) -> bool:
    """Whether the run went back from a divergence and went on with other settings than it was started with."""
    return bool(record.get("result", {}).get("healed_divergences"))


def in_doubt(record: Record) -> str | None:
    """Why it is not certain which code a record comes from; None where it is."""
    commit = record.get("environment", {}).get("commit")
    if not commit:
        return "no commit"
    return "uncommitted changes" if str(commit).endswith("-dirty") else None


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(save(record_of(Run(path)), Path("results")))
