"""EBPL beside the methods of other papers: same trainer, network and split, at equal updates and at equal minutes.

All methods have the settings of `best`; each has the loss of its paper. Where EBPL has curriculum steps, methods
without them have as many more updates. Minutes are those of a training that has the device for itself: the time of an
update is measured first, because the trainings themselves share a GPU.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet
from ebpl.devices import describe_environment
from ebpl.io import write_json, write_text
from ebpl.methods import get_method
from ebpl.metrics import METRICS
from ebpl.terminal import markdown_table
from ebpl.training.trainer import Trainer
from experiments.grid import LEAST_SEEDS, PAST_DATASETS, UNSEEN_SEEDS, Cell, Found, checked, found
from experiments.overview import seeds_there
from experiments.results_store import Record, digest, identity, network_of, recovered
from experiments.table import averaged, count, title_of

FIELD_METHODS = (
    "ebpl", "supervised", "pseudo-label", "mixmatch", "fixmatch", "freematch", "softmatch", "jem",
)  # fmt: skip
VARIANTS = {
    "updates": "At equal updates",
    "minutes": "At equal minutes",
    "calibration": "Calibration added afterwards, at equal updates",
}
TRAINED = ("updates", "minutes")
"""What is trained unless told otherwise."""
HELD_OUT = 0.3
"""Fraction of the labels that is held out where calibration is added afterwards; 100 labels or more of CIFAR-10's."""
SHOWN = ("accuracy", "ece", "nll", "aurc")
LENGTH = ("optim.epochs", "optim.updates_per_epoch", "data.labels_per_class", "data.validation_fraction")
"""Settings, with those of the curriculum, that the time of an update does not depend on."""
EPOCHS, UPDATES = 3, 50
"""How long an update is timed; the first epoch does not count."""
Times = dict[str, dict[str, float]]
"""Seconds of an update by dataset and method."""
Rows = list[list[str]]


RESULTS = Path(__file__).resolve().parents[1] / "results"
"""The records of this checkout."""


def field_settings(given: Mapping[str, Any] | None = None, name: str = "best") -> Settings:
    """What all methods have; every label is learned from."""
    return preset(name, {"curriculum.calibration_holdout": 0.0}).changed(given)


def with_updates(settings: Settings, method: str, scale: float = 1.0) -> Settings:
    """A method with as many updates as EBPL has under these settings with its steps, or with so many times as many."""
    steps = settings.curriculum.steps * settings.curriculum.epochs
    total = max(steps + 1, round(scale * (settings.optim.epochs + steps)))
    if get_method(method).pseudo_labels:
        return settings.changed(method=method, pseudo_labels="soft", epochs=total - steps)
    return settings.changed(method=method, pseudo_labels="none", epochs=total)


@dataclass(frozen=True)
class Field:
    """Methods to compare on some datasets and seeds, and the time of an update of each, where it is known."""

    settings: Settings = field(default_factory=field_settings)
    datasets: Sequence[str] = PAST_DATASETS
    seeds: Sequence[int] = UNSEEN_SEEDS
    methods: Sequence[str] = FIELD_METHODS
    times: Times = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked(self.datasets, self.methods)

    def cell(self, variant: str, data: str, method: str, seed: int) -> Cell | None:
        """One training; None where its length is not known because nothing was timed."""
        settings, scale = self.settings.changed(seed=seed), 1.0
        if variant == "minutes":
            own, ours = (self.times.get(data, {}).get(name) for name in (method, "ebpl"))
            if not own or not ours:
                return None
            scale = ours / own
        if variant == "calibration":
            settings = settings.changed({"curriculum.calibration_holdout": HELD_OUT})
        return Cell(data, with_updates(settings, method, scale))

    def cells(self, variants: Sequence[str] = tuple(VARIANTS)) -> list[Cell]:
        """All trainings; those of a method on a dataset come together, so that they share a GPU."""
        made = [
            self.cell(variant, data, method, seed)
            for data in self.datasets
            for method in self.methods
            for variant in variants
            for seed in self.seeds
        ]
        return list(dict.fromkeys(cell for cell in made if cell))

    def measured(self, variant: str, data: str, method: str, records: Sequence[Record]) -> Found:
        """The cells of a method that have a record with last weights."""
        own = [self.cell(variant, data, method, seed) for seed in self.seeds]
        pairs = found([cell for cell in own if cell], records)
        return [(cell, record) for cell, record in pairs if record["result"].get("last")]

    def minutes(self, data: str, method: str, pairs: Found) -> float | None:
        """How long such a training takes alone."""
        seconds = self.times.get(data, {}).get(method)
        return seconds * fmean(_updates(record) for _, record in pairs) / 60 if seconds else None

    def rows(self, variant: str, records: Sequence[Record]) -> Rows:
        """A line for each dataset and method: metrics of the last averaged weights over its seeds, the best in bold."""
        lines = [["data", "method", "updates", "minutes", "n", *map(title_of, SHOWN)]]
        for data in self.datasets:
            pairs = {method: self.measured(variant, data, method, records) for method in self.methods}
            pairs = {method: own for method, own in pairs.items() if own}
            values = {
                method: averaged([record["result"]["last"]["metrics"] for _, record in own])
                for method, own in pairs.items()
            }
            enough = [method for method, own in pairs.items() if len(own) >= LEAST_SEEDS]
            for method, own in pairs.items():
                minutes = self.minutes(data, method, own)
                cells = [
                    f"**{values[method][metric]}**"
                    if len(enough) > 1 and method == _best(metric, {name: values[name] for name in enough})
                    else str(values[method][metric])
                    for metric in SHOWN
                ]
                lines.append(
                    [
                        data,
                        get_method(method).title,
                        f"{fmean(_updates(record) for _, record in own):,.0f}",
                        "not timed" if minutes is None else f"{minutes:.1f}",
                        count(len(own), sum(recovered(record) for _, record in own)),
                        *cells,
                    ]
                )
        return lines

    def calibrated(self, records: Sequence[Record]) -> Rows:
        """A line for each dataset and method whose labels were held out: metrics before and after calibration."""
        ways, metrics = ("none", "temperature", "histogram binning"), ("ece", "nll")
        heads = [f"{title_of(metric)}, {way}" for metric in metrics for way in ways]
        lines = [["data", "method", "n", title_of("accuracy"), *heads]]
        for data in self.datasets:
            for method in self.methods:
                pairs = self.measured("calibration", data, method, records)
                own = [each for _, record in pairs if (each := record["result"].get("calibrations"))]
                if own:
                    values = {way: averaged([each[way] for each in own]) for way in ways}
                    cells = [str(values[way][metric]) for metric in metrics for way in ways]
                    accuracy = str(values["none"]["accuracy"])
                    lines.append([data, get_method(method).title, str(len(own)), accuracy, *cells])
        return lines

    def markdown(self, records: Sequence[Record]) -> str:
        """All tables in which methods can be compared; nothing where there are none."""
        parts = []
        for variant in TRAINED:
            heads, *lines = self.rows(variant, records)
            shared = {data for data in self.datasets if len([line for line in lines if line[0] == data]) > 1}
            if lines := [line for line in lines if line[0] in shared]:
                parts.append(f"{VARIANTS[variant]}:\n\n{markdown_table(heads, lines)}")
        heads, *lines = self.calibrated(records)
        if lines:
            parts.append(f"{VARIANTS['calibration']}:\n\n{markdown_table(heads, lines)}")
        return "\n\n".join(parts)

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        """The page of tables by its file name; none where nothing was measured."""
        text = self.markdown(records)
        return {"field.md": f"# EBPL beside other methods\n\n{INTRODUCTION}\n\n{text}\n"} if text else {}

    def write(self, folder: Path, records: Sequence[Record]) -> list[Path]:
        """Tables and figures from the records; returns the paths."""
        made = self.pages(records)
        for name, text in made.items():
            write_text(folder / name, text)
        from experiments.figures import minutes_curve, save

        written = [folder / name for name in made]
        for data in self.datasets:
            lines = {}
            for method in ("ebpl", "fixmatch"):
                pairs = self.measured("minutes", data, method, records)
                if minutes := self.minutes(data, method, pairs) if pairs else None:
                    lines[method] = (minutes, [record["result"].get("curves", {}) for _, record in pairs])
            if len(lines) == 2 and (figure := minutes_curve(data, lines)):
                source = digest([record for cell, record in found(self.cells(), records) if cell.data == data])
                written += save(figure, folder / f"field-curve-{data}", source)
        return written

    def overview(self, variants: Sequence[str], records: Sequence[Record]) -> Rows:
        """For each dataset, method and variant how many seeds are there, and which are missing."""
        lines: Rows = []
        for variant in variants:

            def told(cell: Cell, variant: str = variant) -> tuple[str, ...]:
                return (
                    cell.data,
                    get_method(cell.settings.method).title,
                    variant if variant == "calibration" else f"equal {variant}",
                )

            head, *own = seeds_there(["data", "method", "variant"], self.cells([variant]), records, told)
            lines = lines or [head[:5]]
            lines += [line[:5] for line in own]
        return lines


INTRODUCTION = (
    "All methods have the network, optimiser, augmentation and labels of the preset `best`, and the loss of their "
    "paper. The metrics are those of the last averaged weights, mean ± standard deviation over n seeds; the best of a "
    f"column is bold where at least two methods have {LEAST_SEEDS} seeds. Minutes are those of a training that has the "
    "GPU for itself."
)


def published() -> Field:
    """What README and the documentation show: seeds that no choice has seen."""
    settings = field_settings()
    return Field(settings, times=read_times(RESULTS, settings))


def _updates(record: Record) -> float:
    found: float = record["result"]["updates"]["of"]
    return found


def _best(metric: str, values: Mapping[str, Mapping[str, Any]]) -> str | None:
    means = {method: own[metric].mean for method, own in values.items() if own[metric].mean is not None}
    pick = min if METRICS[metric].lower_is_better else max
    return pick(means, key=lambda method: means[method]) if means else None


# --- the time of an update -------------------------------------------------------------------------------------------


def times_path(results: Path, settings: Settings) -> Path:
    """Where the times of updates under these settings are, whatever their length and method."""
    kept = {
        name: value
        for name, value in identity(settings.to_dict()).items()
        if name not in (*LENGTH, "method", "seed") and not name.startswith("curriculum.")
    }
    letters = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
    return results / "field" / f"update-times-{network_of(kept).lower()}-{letters}.json"


def read_times(results: Path, settings: Settings) -> Times:
    """The times that were measured."""
    path = times_path(results, settings)
    stored: Times = json.loads(path.read_text(encoding="utf-8"))["seconds"] if path.is_file() else {}
    return stored


def measure_times(work: Field, results: Path, load: Callable[[str], ImageSet], say: Callable[[str], None]) -> Times:
    """Measure the times that are missing, one method after the other, and keep them; returns all."""
    times = read_times(results, work.settings)
    for data in work.datasets:
        for method in dict.fromkeys(["ebpl", *work.methods]):
            if method not in times.setdefault(data, {}):
                times[data][method] = time_update(load(data), work.settings.changed(method=method), UPDATES)
                say(f"{data}, {get_method(method).title}: {1000 * times[data][method]:.1f} ms an update")
                path = times_path(results, work.settings)
                path.parent.mkdir(parents=True, exist_ok=True)
                environment = describe_environment(work.settings.runtime)
                write_json(path, {"settings": work.settings.to_dict(), "environment": environment, "seconds": times})
    return times


def time_update(images: ImageSet, settings: Settings, updates: int) -> float:
    """Seconds of an update on this device, without evaluation."""
    length = {"optim.epochs": EPOCHS, "optim.updates_per_epoch": updates, "curriculum.pseudo_labels": "none"}
    method = get_method(settings.method)
    trainer = Trainer(settings.changed(length, validation_fraction=0.0), images, method.terms)
    trainer.train()
    first, *_, last = trainer.state.progress.history
    seconds: float = (last["seconds"] - first["seconds"]) / ((EPOCHS - 1) * updates)
    return seconds
