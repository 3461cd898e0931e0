"""Files of a run directory, read with suspicion: they may be foreign, of another version, or damaged.

What passes here can be used without looking again; what does not is a `RunError` with the file and what to do.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration import updates_of as updates_of
from ebpl.calibration import warnings_of as warnings_of
from ebpl.config.compat import modern_result, modern_row, settings_of_run
from ebpl.config.presets import flat, read_toml
from ebpl.errors import RunError, UsageError
from ebpl.io import Object, Rule, damaged, is_number, is_object, is_text, is_whole, wrong_entry
from ebpl.metrics import METRICS

SETTINGS, ENVIRONMENT, SEEDS = "settings.toml", "environment.json", "seeds.json"
WEIGHTS, TEST_METRICS, DETAILS = "best.safetensors", "test_metrics.json", "details.npz"
METRICS_TABLE, LOG, PSEUDO_LABELS = "metrics.csv", "train.log", "pseudo_labels"
LARGEST = 512 * 2**20
LARGEST_DETAILS = 64 * 2**20
MOST_SAMPLES = 100
MOST_EPOCHS = 20_000
MOST_STEPS = 1000
LOG_LINES = 12
MOST = 1_000_000
"""Threads or processes; no machine has more."""
LONGEST = 100 * 365.25 * 86400
"""Seconds of a time limit; a longer one is none."""

Row = dict[str, Any]


def read_settings(path: Path) -> tuple[Object, Object]:
    """The settings of a run, still to be checked one by one, and where its data came from."""
    advice = "Put the file back as it was, or start a new run."
    allowed = {
        "fingerprint": is_text,
        "test_fingerprint": is_text,
        "path": is_text,
        "data_dir": is_text,
        "image_size": is_whole,
        "skip_unreadable": lambda value: isinstance(value, bool),
    }
    try:
        stored = read_toml(path)
    except UsageError as error:
        raise RunError(f"{error} {advice}") from error
    source = "data" if "data" in stored else "source"  # version 0.1 called it data
    reason = wrong_entry(stored, {"settings": is_object, source: is_object}, {})
    reason = reason or wrong_entry(stored[source], {"name": is_text}, allowed)
    if reason:
        raise damaged(path, reason, advice)
    return settings_of_run(flat(stored["settings"])), stored[source]


def read_environment(path: Path) -> Object:
    """What a run was started on."""
    rules = dict.fromkeys(("threads", "processes", "runs_together"), lambda value: is_whole(value) and value <= MOST)
    rules |= {"settings": is_object, "fingerprint": is_text}
    rules["time_limit"] = lambda value: is_number(value) and 0 < value <= LONGEST
    rules["time_spent"] = lambda value: is_number(value) and 0 <= value <= LONGEST
    advice = "Put it back, or write {} into it to continue without it."
    return _read_json(path, {}, rules, advice)


def read_metrics(path: Path) -> Object:
    """What a finished run came to."""
    needed: dict[str, Rule] = {"metrics": lambda value: value is None or is_object(value), "chosen": is_object}
    allowed: dict[str, Rule] = {
        **dict.fromkeys(("training_energies", "training_reconstruction_errors"), _is_numbers),
        "reliability": lambda value: isinstance(value, list) and all(map(is_object, value)),
        "intervals": lambda value: is_object(value) and all(_is_numbers(ends, 2) for ends in value.values()),
        **dict.fromkeys(("class_mix", "prediction_sets"), lambda value: value is None or is_object(value)),
    }
    advice = f"Remove it, and it is made anew by: ebpl resume {path.parent}"
    stored = _read_json(path, needed, allowed, advice)
    reason = wrong_entry(stored["chosen"], {"phase": is_text, "epoch": is_number, "by": is_text}, {})
    if stored["metrics"] is not None:
        reason = reason or wrong_entry(
            stored["metrics"], {"accuracy": is_number}, dict.fromkeys(METRICS, _is_number_or_null)
        )
        # a metric that came after the run is null, and one that nobody knows here is left out
        stored["metrics"] = {name: stored["metrics"].get(name) for name in METRICS}
    for row in stored.get("reliability", ()):
        sides = dict.fromkeys(("above", "up_to", "images"), is_number)
        means = dict.fromkeys(("accuracy", "confidence"), _is_number_or_null)
        reason = reason or wrong_entry(row, {**sides, **means}, {})
    if reason:
        raise damaged(path, reason, advice)
    return modern_result(stored)


def _is_numbers(value: Any, count: int | None = None) -> bool:
    return isinstance(value, list) and value != [] and all(map(is_number, value)) and count in (None, len(value))


def _is_number_or_null(value: Any) -> bool:
    return value is None or is_number(value)


def _read_json(path: Path, needed: Mapping[str, Rule], allowed: Mapping[str, Rule], advice: str) -> Object:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing. {advice}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error), advice) from error
    if reason := wrong_entry(stored, needed, allowed):
        raise damaged(path, reason, advice)
    found: Object = stored
    return found


@dataclass(frozen=True)
class Step:
    """The pseudo-labels of one curriculum step."""

    step: int
    images: int
    confidence: float | None
    """Mean confidence: the share of right labels that the model promised."""
    known: int
    """Images whose true class is known."""
    right: int
    again: int
    """Images that had a pseudo-label in the step before too."""
    changed: int
    """Those of them whose label is another now."""
    counts: dict[str, int] = field(default_factory=dict)
    """Pseudo-labels of each class."""


@dataclass
class Stored:
    """All that is in the directory, as far as it can be read."""

    history: list[Row] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    result: Row = field(default_factory=dict)
    environment: Row = field(default_factory=dict)
    samples: NDArray[np.uint8] | None = None
    log: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def energies(self) -> NDArray[np.float64] | None:
        """Quantiles of the training images' energies, ascending; None where the run has none."""
        return self.training_scores("energies")

    def training_scores(self, score: str) -> NDArray[np.float64] | None:
        """The same of another score."""
        values = self.result.get(f"training_{score}")
        found = [value for value in map(finite, values) if value is not None] if isinstance(values, list) else []
        return np.sort(np.array(found)) if len(found) > 1 else None

    @property
    def healed(self) -> list[Row]:
        """The divergences that training recovered from, as far as they are recorded."""
        events = self.result.get("healed_divergences")
        if isinstance(events, list):
            return [event for event in events if isinstance(event, dict)]
        counts = [0.0, *[row.get("healed") or 0.0 for row in self.history]]
        pairs = zip(counts, counts[1:], self.history, strict=False)
        return [{"phase": row.get("phase"), "epoch": row.get("epoch")} for before, now, row in pairs if now > before]


def read(folder: Path) -> Stored:
    """Read what is there in a run directory."""
    stored = Stored()
    reader = _Reader(folder, stored.problems)
    stored.result = modern_result(reader.json(TEST_METRICS))
    stored.environment = reader.json(ENVIRONMENT)
    stored.history = [_epoch(row) for row in reader.table(METRICS_TABLE, MOST_EPOCHS)]
    stored.steps = _steps(reader, folder)
    stored.samples = reader.samples()
    stored.log = reader.last_lines(LOG)
    return stored


def finite(value: Any) -> float | None:
    """A number that can be drawn, or None: foreign files may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def leads_out(root: Path, name: str) -> bool:
    """Whether a name in this directory is a link to somewhere else."""
    try:
        return not (root / name).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return True


class _Reader:
    """Reads files of one directory, and notes what cannot be read."""

    def __init__(self, root: Path, problems: list[str]) -> None:
        self.root, self.problems = root, problems

    def path(self, name: str) -> Path | None:
        """The file, if it may be read; None without a word where there is none."""
        path = self.root / name
        if leads_out(self.root, name):
            self.problems.append(f"{name} is a link that leads out of the run directory, so it was not read.")
            return None
        if not path.exists():
            return None
        if not path.is_file() or path.stat().st_size > LARGEST:
            self.problems.append(f"{name} is not a file, or far too large to be one of a run, so it was not read.")
            return None
        return path

    def json(self, name: str) -> Row:
        """An object from JSON; empty where there is none."""
        path = self.path(name)
        if path is None:
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{name} is damaged: {error}")
            return {}
        if not isinstance(found, dict):
            self.problems.append(f"{name} is damaged: it holds no object.")
            return {}
        return found

    def table(self, name: str, most: int | None = None) -> Iterator[dict[str, str]]:
        """The rows of a CSV, one at a time."""
        path = self.path(name)
        if path is None:
            return
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for count, row in enumerate(csv.DictReader(file)):
                    if count == most:
                        self.problems.append(f"Of {name} only the first {most} lines are shown.")
                        return
                    yield {key: value for key, value in row.items() if isinstance(key, str) and isinstance(value, str)}
        except (OSError, ValueError, csv.Error) as error:
            self.problems.append(f"{name} is damaged: {error}")

    def details(self, *names: str) -> list[NDArray[Any]]:
        """Arrays of details.npz; none where one of them is missing or cannot be read."""
        import zipfile

        path = self.path(DETAILS)
        if path is None:
            return []
        try:
            with zipfile.ZipFile(path) as packed:
                sizes = {info.filename: info.file_size for info in packed.infolist()}
            if any(f"{name}.npy" not in sizes for name in names):
                return []
            if any(sizes[f"{name}.npy"] > LARGEST_DETAILS for name in names):
                raise ValueError(f"its {' and '.join(names)} are far too large")
            with np.load(path, allow_pickle=False) as arrays:
                return [arrays[name] for name in names]
        except Exception as error:
            self.problems.append(f"{DETAILS} is damaged: {error}")
            return []

    def samples(self) -> NDArray[np.uint8] | None:
        """Samples from the energy model, as images (N, H, W, C)."""
        found = self.details("samples")
        if not found:
            return None
        samples = found[0]
        if samples.ndim != 4 or samples.dtype != np.uint8 or samples.shape[3] not in (1, 3) or 0 in samples.shape:
            self.problems.append(f"{DETAILS} is damaged: its samples are no images.")
            return None
        return samples[:MOST_SAMPLES]

    def last_lines(self, name: str) -> list[str]:
        """The end of a text file."""
        path = self.path(name)
        if path is None:
            return []
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 20_000))
                return file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:]
        except OSError as error:
            self.problems.append(f"{name} cannot be read: {error}")
            return []


def _epoch(row: dict[str, str]) -> Row:
    return modern_row({name: value if name == "phase" else finite(value) for name, value in row.items()})


def read_table(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a CSV of a run directory; none where it is missing or damaged."""
    return list(_Reader(folder, []).table(name))


def read_answers(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """The confidence in each labelled test image and whether the answer was right; None where a run holds no such."""
    found = _Reader(folder, []).details("test_confidences", "test_labels", "test_truth")
    if not found or len({each.shape for each in found}) > 1 or found[0].ndim != 1:
        return None
    if found[0].dtype.kind != "f" or any(each.dtype.kind not in "iu" for each in found[1:]):
        return None
    confidences, said, truth = (each.astype(np.float64) for each in found)
    known = truth >= 0
    return (confidences[known], (said == truth)[known]) if known.any() else None


def read_training_digests(folder: Path) -> NDArray[np.uint64] | None:
    """Short digests of the images that a run was trained on; None where it holds none."""
    found = _Reader(folder, []).details("training_digests")
    return found[0] if found and found[0].ndim == 1 and found[0].dtype == np.uint64 else None


def _steps(reader: _Reader, root: Path) -> list[Step]:
    """Each step beside the one before it; of each, no more than image names and labels are held."""
    if leads_out(root, PSEUDO_LABELS):
        reader.problems.append(f"{PSEUDO_LABELS} is a link that leads out of the run directory, so it was not read.")
        return []
    names = [path.name for path in (root / PSEUDO_LABELS).glob("step-*.csv")]
    numbers = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-([0-9]{1,6})\.csv", name)))
    found, before = [], dict[str, str]()
    for number in numbers[:MOST_STEPS]:
        step, before = _step(number, reader.table(f"{PSEUDO_LABELS}/step-{number}.csv"), before)
        found.append(step)
    return found


def _step(number: int, rows: Iterator[dict[str, str]], before: dict[str, str]) -> tuple[Step, dict[str, str]]:
    labels, classes = dict[str, str](), dict[str, str]()
    total, known, right, again, changed = 0.0, 0, 0, 0, 0
    for row in rows:
        image, label, truth = row.get("image", ""), row.get("label", ""), row.get("truth", "")
        labels[image] = classes.setdefault(label, label)  # one string a class, not one an image
        total += finite(row.get("confidence")) or 0.0
        known += truth != ""
        right += truth != "" and truth == label
        again += image in before
        changed += before.get(image, label) != label
    mean = total / len(labels) if labels else None
    return Step(number, len(labels), mean, known, right, again, changed, dict(Counter(labels.values()))), labels


def reliability_bins(rows: Any) -> list[dict[str, Any]]:
    """The bins of the reliability diagram that the run wrote; none where they are no such bins."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return []
    bins = []
    for row in rows[:100]:
        images, low, high = (finite(row.get(name)) for name in ("images", "above", "up_to"))
        right, said = finite(row.get("accuracy")), finite(row.get("confidence"))
        if images is None or low is None or high is None or not 0 <= low < high <= 1 or images < 0:
            return []
        if images and (right is None or said is None or not (0 <= right <= 1 and 0 <= said <= 1)):
            return []
        bins.append({"above": low, "up_to": high, "images": int(images), "accuracy": right, "confidence": said})
    return bins if any(each["images"] for each in bins) else []


def seed_folders(folder: Path) -> list[Path]:
    """The runs of several seeds in this folder, in the order of their seeds."""
    found = [path for path in folder.glob("seed-*") if is_of_a_seed(path) and (path / SETTINGS).is_file()]
    return sorted(found, key=seed_of)


def seed_of(path: Path) -> int:
    """The seed of a run in a folder of several."""
    return int(path.name.removeprefix("seed-"))


def is_of_a_seed(path: Path) -> bool:
    """Whether a folder is named as the run of a seed among several."""
    return re.fullmatch(r"seed-[0-9]+", path.name) is not None


def lost_seeds(folder: Path) -> list[int]:
    """Seeds that were to be trained in this folder and have no run directory any more."""
    try:
        wanted = json.loads((folder / SEEDS).read_text(encoding="utf-8"))["seeds"]
        return [seed for seed in wanted if not (folder / f"seed-{int(seed)}" / SETTINGS).is_file()]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
