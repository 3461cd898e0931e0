"""What each part of a preset is worth, and what was tried beside it: the preset with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ebpl.config import Settings
from ebpl.config.presets import PRESETS, preset
from ebpl.errors import UsageError, did_you_mean
from ebpl.reporting.model_card import markdown_table
from experiments.ledger import Record

if TYPE_CHECKING:
    from experiments.cells import Cell

SHORT = {"epochs": 8, "step_epochs": 2, "epoch_updates": 128}
"""A schedule on which all variants can be afforded: a fifth of the updates of `best`."""
SMALL = {
    "depth": 10,
    "width": 1,
    "learning_rate": 4e-3,
    "weight_average": 0.99,
    "consistency": 0.0,
    "warm_up": 50,
    "epochs": 8,
    "step_epochs": 2,
    "epoch_updates": 48,
}
"""A network and a schedule for a CPU, without the agreement of views, which is too much for both."""
AS_IT_IS = "as it is"
VARIANTS: dict[str, dict[str, Any]] = {
    AS_IT_IS: {},
    "no agreement of views": {"consistency": 0.0},
    "agreement with confident classes alone": {"gate": 0.95, "consistency_sharpening": 0.0},
    "agreement counts a third": {"consistency": 1.0},
    "agreement of half as many images": {"consistency_batch": 128},
    "strong views in milder colours": {"strong_colors": 0.4},
    "strong views in the same colours": {"strong_colors": 0.0},
    "no images mixed": {"mix": 0.0},
    "all images mixed": {"mix": 1.0},
    "images with pseudo-labels not mixed": {"mixed": "labeled"},
    "not mixed and sharpened less": {"mixed": "labeled", "sharpening": 0.9},
    "not mixed and not sharpened": {"mixed": "labeled", "sharpening": 1.0},
    "true labels as they come": {"labeled_share": 0.0},
    "half of a batch with true labels": {"labeled_share": 0.5},
    "no labels wait": {"held_back": 0.0},
    "pseudo-labels not sharpened": {"sharpening": 1.0},
    "pseudo-labels sharpened more": {"sharpening": 0.6},
    "hard pseudo-labels": {"pseudo_labels": "hard"},
    "no pseudo-labels": {"pseudo_labels": "none"},
    "the most confident of all classes": {"selection": "all"},
    "of all classes and sharpened more": {"selection": "all", "sharpening": 0.6},
    "twice as many steps of half the length": {
        "steps": lambda base: 2 * base.curriculum.steps,
        "step_epochs": lambda base: base.curriculum.epochs // 2,
    },
    "steps twice as long": {"step_epochs": lambda base: 2 * base.curriculum.epochs},
    "initial training twice as long": {"epochs": lambda base: 2 * base.optim.epochs},
    "as long as the preset": {name: PRESETS["best"][name] for name in SHORT},
    "no augmentation": {"augment": "none"},
    "shifts of two pixels": {"max_shift": 2},
    "half of the images seen strongly": {"strong": 0.5},
    "no average of the weights": {"weight_average": 0.0},
    "a rate that falls": {"final_rate": 0.1},
    "no warm-up": {"warm_up": 0},
    "gradients not clipped": {"gradient_clip": 0.0},
    "energies count five times": {"density_weight": 1.0, "energy_penalty": 0.5},
    "energies do not count": {
        "density_weight": 0.0,
        "energy_penalty": 0.0,
        "coupling_weight": 0.0,
        "guard_gap": 1e9,  # what nothing holds may go where it likes, and is no divergence
    },
    "energies around 0": {"energy_center": 0.0},
    "energies around 2": {"energy_center": 2.0},
    "1 sampling step": {"sgld_steps": 1},
    "20 sampling steps": {"sgld_steps": 20},
    "ten times the coupling": {"coupling_weight": 0.01},
    "the classifier alone": {"method": "curriculum-labeling"},
}
"""Names and changes, some of which are told by the settings that they change. The last is the baseline, with all that
helps in it."""
Rows = list[list[str]]


def base(**changes: Any) -> Settings:
    """What the variants are variants of: the preset `best` on the short schedule, with changes."""
    return preset("best", **{**SHORT, **changes})


def varied(settings: Settings, name: str, **more: Any) -> Settings:
    """The settings with what a variant changes, and more."""
    changes = {key: value(settings) if callable(value) else value for key, value in VARIANTS[name].items()}
    return settings.changed(**{**more, **changes})


def rows(cells: Sequence[Cell], records: Sequence[Record], settings: Settings) -> Rows:
    """A line for each dataset and variant that was measured: the last weights' measures, no validation label used."""
    from experiments.cells import found
    from experiments.table import METRICS, averaged

    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    for cell, record in found(cells, records):
        if last := record["result"].get("last"):
            results.setdefault((cell.data, name_of(cell, settings)), []).append(last["metrics"])
    lines = [["data", "variant", "n", *METRICS.values(), "accuracy, above or below it"]]
    for (data, variant), measured in results.items():
        values = averaged(measured)
        shown = [str(values[key]) for key in METRICS]
        whole = results.get((data, AS_IT_IS), [])
        lines.append([data, variant, str(len(measured)), *shown, _difference(measured, whole)])
    return lines


def _difference(measured: Sequence[dict[str, float]], whole: Sequence[dict[str, float]]) -> str:
    """How much more accurate a variant is than the preset, if both have the same number of seeds."""
    if measured is whole or len(measured) != len(whole):
        return ""
    mean = sum(one["accuracy"] - other["accuracy"] for one, other in zip(measured, whole, strict=True)) / len(whole)
    return f"{100 * mean:+.1f}"


def name_of(cell: Cell, base: Settings) -> str:
    """Which variant of the base a cell is."""
    return _names(base, cell.data, cell.settings.seed)[cell]


@cache
def _names(base: Settings, data: str, seed: int) -> dict[Cell, str]:
    """The variants by their cells; of two that are the same on these data, the first gives the name."""
    from experiments.cells import Cell

    names: dict[Cell, str] = {}
    for name in VARIANTS:
        names.setdefault(Cell(data, varied(base, name, seed=seed)), name)
    return names


def overview(cells: Sequence[Cell], records: Sequence[Record], settings: Settings) -> Rows:
    """For each dataset and variant how many seeds are there, and which are missing."""
    from experiments.output import seeds_there

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
