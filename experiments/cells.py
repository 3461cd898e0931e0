"""The paper's experiments as cells: one training each, told by its data and its settings alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebpl.calibration import share_to_wait, waiting_of_each
from ebpl.config import Settings
from ebpl.config.presets import without_steps
from ebpl.data import BENCHMARK_NAMES
from ebpl.data.benchmarks import labels_of
from ebpl.errors import UsageError, did_you_mean
from ebpl.methods import METHODS
from experiments.ablation import VARIANTS, varied
from experiments.ledger import GUARD, Record, telling

PSEUDO_LABELS = ("none", "hard", "soft")
PAPER_DATASETS = ("cifar10", "svhn", "fashion", "blood", "organa", "organc", "organs")
PAST_DATASETS = ("blood", "fashion", "svhn", "cifar10")
"""On which the preset `best` is measured."""
FEW_LABELS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Cell:
    """One training: a benchmark's name and settings."""

    data: str
    settings: Settings

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.curriculum.pseudo_labels == "none":  # how they would have been made is of no effect
            settings = without_steps(settings)
        if settings.curriculum.calibration_holdout and not self._labels_wait():
            settings = settings.changed(curriculum__calibration_holdout=0.0)
        object.__setattr__(self, "settings", settings)

    def _labels_wait(self) -> bool:
        """Whether there are labels enough for some of them to wait, and a method that lets them."""
        labels = labels_of(self.data)
        if self.settings.data.labels_per_class:
            labels = [self.settings.data.labels_per_class] * len(labels)
        return any(waiting_of_each(labels, share_to_wait(self.settings)))

    @property
    def trunk(self) -> Cell:
        """The cell without pseudo-labels whose initial training this one shares."""
        return Cell(self.data, without_steps(self.settings))

    def is_in(self, record: Record) -> bool:
        """Whether the record is of this cell.

        How the guard was set is of no effect on a run that was not healed, nor what share of the labels was to wait
        on one in which none did.
        """
        if record["data"]["name"] != self.data:
            return False
        result = record.get("result", {})
        ignored = () if result.get("healed_divergences") else GUARD
        waited = {} if result.get("check") else {"held_back": 0.0}
        mine, other = (
            {name: value for name, value in telling(settings).items() if name not in ignored}
            for settings in (self.settings.to_dict(), {**record["settings"], **waited})
        )
        return mine == other

    def __str__(self) -> str:
        settings = self.settings
        few = f", {settings.data.labels_per_class} a class" if settings.data.labels_per_class else ""
        title = METHODS[settings.method].title
        return f"{self.data}, {title}, {settings.curriculum.pseudo_labels}, seed {settings.seed}{few}"


Found = list[tuple[Cell, Record]]


def found(cells: Sequence[Cell], records: Sequence[Record]) -> Found:
    """The cells that have a record, with it."""
    pairs = ((cell, next((record for record in records if cell.is_in(record)), None)) for cell in cells)
    return [(cell, record) for cell, record in pairs if record is not None]


Experiment = Callable[[Sequence[str], Sequence[int], Settings], list[Cell]]


def table1(datasets: Sequence[str], seeds: Sequence[int], settings: Settings) -> list[Cell]:
    """Every dataset, both methods, all three forms of pseudo-labels."""
    return [
        Cell(data, settings.changed(method=method, seed=seed, pseudo_labels=kind))
        for data in datasets
        for method in METHODS
        for kind in PSEUDO_LABELS
        for seed in seeds
    ]


def labels(datasets: Sequence[str], seeds: Sequence[int], settings: Settings) -> list[Cell]:
    """One to five labels a class, both methods, soft pseudo-labels and none."""
    return [
        Cell(data, settings.changed(method=method, seed=seed, pseudo_labels=kind, labels_per_class=few))
        for data in datasets
        for few in FEW_LABELS
        for method in METHODS
        for kind in ("none", "soft")
        for seed in seeds
    ]


def best(datasets: Sequence[str], seeds: Sequence[int], settings: Settings) -> list[Cell]:
    """EBPL with soft pseudo-labels alone."""
    return [
        Cell(data, settings.changed(method="ebpl", seed=seed, pseudo_labels="soft"))
        for data in datasets
        for seed in seeds
    ]


def ablation(datasets: Sequence[str], seeds: Sequence[int], settings: Settings) -> list[Cell]:
    """The settings as they are, and with one thing changed at a time, if that changes anything."""
    made = [Cell(data, varied(settings, name, seed=seed)) for data in datasets for name in VARIANTS for seed in seeds]
    return list(dict.fromkeys(made))


EXPERIMENTS: dict[str, Experiment] = {"table1": table1, "labels": labels, "best": best, "ablation": ablation}
DEFAULT_DATASETS = {
    "table1": PAPER_DATASETS,
    "labels": ("blood",),
    "best": PAST_DATASETS,
    "ablation": ("blood", "cifar10"),
}


def cells(experiment: str, datasets: Sequence[str] | None, seeds: Sequence[int], settings: Settings) -> list[Cell]:
    """All cells of an experiment by name, in the order in which they are run."""
    if experiment not in EXPERIMENTS:
        raise UsageError(f"There is no experiment {experiment!r}. {did_you_mean(experiment, EXPERIMENTS)}")
    chosen = datasets or DEFAULT_DATASETS[experiment]
    for name in chosen:
        if name not in BENCHMARK_NAMES:
            raise UsageError(f"There is no benchmark {name!r}. {did_you_mean(name, BENCHMARK_NAMES)}")
    return EXPERIMENTS[experiment](chosen, seeds, settings)
