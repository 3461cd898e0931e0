"""What each part of a preset is worth, and what was tried beside it: the preset with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ebpl.config import Settings
from ebpl.config.presets import PRESETS, preset
from ebpl.errors import UsageError, did_you_mean
from ebpl.terminal import markdown_table
from experiments.grid import Cell, found
from experiments.overview import seeds_there
from experiments.results_store import Record, recovered
from experiments.table import PAPER_METRICS, averaged, count, title_of

SHORT: dict[str, Any] = {"optim.epochs": 8, "curriculum.epochs": 2, "optim.updates_per_epoch": 128}
"""A schedule on which all variants can be afforded: a fifth of the updates of `best`."""
SMALL: dict[str, Any] = {
    "model.depth": 10,
    "model.width": 1,
    "optim.learning_rate": 4e-3,
    "optim.ema_decay": 0.99,
    "consistency.weight": 0.0,
    "optim.warmup_updates": 50,
    "optim.epochs": 8,
    "curriculum.epochs": 2,
    "optim.updates_per_epoch": 48,
}
"""A network and a schedule for a CPU, without the consistency loss, which is too much for both."""
AS_IT_IS = "unchanged"
VARIANTS: dict[str, dict[str, Any]] = {
    AS_IT_IS: {},
    "no consistency": {"consistency.weight": 0.0},
    "consistency with hard targets above 0.95": {
        "consistency.confidence_threshold": 0.95,
        "consistency.temperature": 0.0,
    },
    "consistency weight 1": {"consistency.weight": 1.0},
    "consistency batch 128": {"consistency.batch_size": 128},
    "color jitter 0.4": {"data.color_jitter": 0.4},
    "no color jitter": {"data.color_jitter": 0.0},
    "no mixup": {"data.mixup_probability": 0.0},
    "mixup of all images": {"data.mixup_probability": 1.0},
    "no fixed fraction of true labels": {"curriculum.labeled_batch_fraction": 0.0},
    "half of a batch with true labels": {"curriculum.labeled_batch_fraction": 0.5},
    "no calibration holdout": {"curriculum.calibration_holdout": 0.0},
    "pseudo-label temperature 1": {"curriculum.pseudo_label_temperature": 1.0},
    "pseudo-label temperature 0.6": {"curriculum.pseudo_label_temperature": 0.6},
    "hard pseudo-labels": {"curriculum.pseudo_labels": "hard"},
    "no pseudo-labels": {"curriculum.pseudo_labels": "none"},
    "selection over all classes": {"curriculum.selection": "all"},
    "selection over all classes, temperature 0.6": {
        "curriculum.selection": "all",
        "curriculum.pseudo_label_temperature": 0.6,
    },
    "twice as many steps of half the length": {
        "curriculum.steps": lambda base: 2 * base.curriculum.steps,
        "curriculum.epochs": lambda base: base.curriculum.epochs // 2,
    },
    "steps twice as long": {"curriculum.epochs": lambda base: 2 * base.curriculum.epochs},
    "initial training twice as long": {"optim.epochs": lambda base: 2 * base.optim.epochs},
    "as long as the preset": {name: PRESETS["best"][name] for name in SHORT},
    "no augmentation": {"data.augment": "none"},
    "shifts of two pixels": {"data.max_shift": 2},
    "no weight averaging": {"optim.ema_decay": 0.0},
    "cosine learning rate": {"optim.final_lr_factor": 0.1},
    "no warm-up": {"optim.warmup_updates": 0},
    "no gradient clipping": {"optim.gradient_clip": 0.0},
    "energy weight 1": {"energy.weight": 1.0, "energy.penalty": 0.5},
    "energy weight 0": {
        "energy.weight": 0.0,
        "energy.penalty": 0.0,
        "energy.coupling_weight": 0.0,
        "divergence.max_energy_gap": 1e9,  # what nothing holds may go where it likes, and is no divergence
    },
    "energy centre 0": {"energy.center": 0.0},
    "energy centre 2": {"energy.center": 2.0},
    "1 sampling step": {"sgld.steps": 1},
    "20 sampling steps": {"sgld.steps": 20},
    "ten times the coupling": {"energy.coupling_weight": 0.01},
    "curriculum labelling": {"method": "curriculum-labeling"},
    "no energy model": {"method": "ebpl-without-energy"},
}
"""Names and changes, some of which depend on the settings that they change. The last two are classifiers with all that
helps in them: the baseline, which starts every step with fresh weights, and EBPL without its energy model."""
Rows = list[list[str]]


def base(changes: Mapping[str, Any] | None = None) -> Settings:
    """What the variants are variants of: the preset `best` on the short schedule, with changes."""
    return preset("best", SHORT).changed(changes)


def cell_of(data: str, settings: Settings, name: str, seed: int) -> Cell:
    """The cell of a variant of these settings."""
    changes = {key: value(settings) if callable(value) else value for key, value in VARIANTS[name].items()}
    return Cell(data, settings.changed(changes, seed=seed))


def rows(cells: Sequence[Cell], records: Sequence[Record], settings: Settings) -> Rows:
    """A line for each dataset and variant that was measured: metrics of the last weights, no validation label used."""
    results: dict[tuple[str, str], list[Record]] = {}
    for cell, record in found(cells, records):
        if record["result"].get("last"):
            results.setdefault((cell.data, name_of(cell, settings)), []).append(record)
    lines = [["data", "variant", "n", *map(title_of, PAPER_METRICS), "accuracy, above or below it"]]
    for (data, variant), own in results.items():
        values = averaged(_measured(own))
        shown = [str(values[key]) for key in PAPER_METRICS]
        whole = results.get((data, AS_IT_IS), [])
        lines.append([data, variant, count(len(own), sum(map(recovered, own))), *shown, _difference(own, whole)])
    return lines


def _measured(records: Sequence[Record]) -> list[dict[str, float]]:
    return [record["result"]["last"]["metrics"] for record in records]


def _difference(own: Sequence[Record], whole: Sequence[Record]) -> str:
    """How much more accurate a variant is than the preset, if both have the same number of seeds."""
    if own is whole or len(own) != len(whole):
        return ""
    pairs = zip(_measured(own), _measured(whole), strict=True)
    mean = sum(one["accuracy"] - other["accuracy"] for one, other in pairs) / len(whole)
    return f"{100 * mean:+.1f}"


def name_of(cell: Cell, base: Settings) -> str:
    """Which variant of the base a cell is."""
    return _names(base, cell.data, cell.settings.seed)[cell]


@cache
def _names(base: Settings, data: str, seed: int) -> dict[Cell, str]:
    """The variants by their cells; of two that are the same on these data, the first gives the name."""
    names: dict[Cell, str] = {}
    for name in VARIANTS:
        names.setdefault(cell_of(data, base, name, seed), name)
    return names


def overview(cells: Sequence[Cell], records: Sequence[Record], settings: Settings) -> Rows:
    """For each dataset and variant how many seeds are there, and which are missing."""
    return seeds_there(["data", "variant"], cells, records, lambda cell: (cell.data, name_of(cell, settings)))


def only(cells: Sequence[Cell], names: Sequence[str], settings: Settings) -> list[Cell]:
    """The cells of some variants, by name."""
    named = {cell: name_of(cell, settings) for cell in cells}
    for name in names:
        if name not in VARIANTS:
            raise UsageError(f"There is no variant {name!r}. {did_you_mean(name, VARIANTS)}")
        if name not in named.values():
            raise UsageError(f"The variant {name!r} changes nothing about these settings and data. Leave it out.")
    return [cell for cell, own in named.items() if own in names]


def markdown(lines: Rows) -> str:
    """The lines as a Markdown table, or that there are none."""
    return markdown_table(lines[0], lines[1:]) if len(lines) > 1 else "Not measured yet."
