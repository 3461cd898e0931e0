"""The experiments as a grid of cells: one training each, identified by its data and its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebpl.calibration import holdout_counts
from ebpl.config import Settings
from ebpl.config.presets import without_steps
from ebpl.data import BENCHMARK_NAMES
from ebpl.data.benchmarks import labels_of
from ebpl.errors import UsageError, did_you_mean
from ebpl.methods import get_method, method_names
from experiments.results_store import DIVERGENCE, Record, identity, recovered

PSEUDO_LABELS = ("none", "hard", "soft")
PAPER_METHODS = ("curriculum-labeling", "ebpl")
"""The baseline and EBPL, in the order of the paper's table; it has numbers of these two."""
PAPER_DATASETS = ("cifar10", "svhn", "fashion", "blood", "organa", "organc", "organs")
PAST_DATASETS = ("blood", "fashion", "svhn", "cifar10")
"""On which the preset `best` is measured."""
PARTS_METHODS, PARTS_PSEUDO_LABELS = ("ebpl", "ebpl-without-energy"), ("none", "soft")
"""What the parts of the preset `best` are measured by."""
UNSEEN_SEEDS = range(3, 8)
"""Seeds that no choice of settings has seen."""
LEAST_SEEDS = 3
"""Of fewer seeds nothing is said to be the best."""
FEW_LABELS = (1, 2, 3, 4, 5)
LENGTH_OF_STEPS = {"curriculum.steps", "curriculum.epochs"}
"""Without effect where there are no pseudo-labels."""


@dataclass(frozen=True)
class Cell:
    """One training: a benchmark's name and settings."""

    data: str
    settings: Settings

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.curriculum.pseudo_labels == "none":  # how they would have been made is without effect
            settings = without_steps(settings)
        if settings.curriculum.calibration_holdout and not self._holds_labels_out():
            settings = settings.changed({"curriculum.calibration_holdout": 0.0})
        object.__setattr__(self, "settings", settings)

    def _holds_labels_out(self) -> bool:
        """Whether there are enough labels to hold some out, and a method that does."""
        if get_method(self.settings.method).reinitialise:
            return False
        labels = labels_of(self.data)
        if self.settings.data.labels_per_class:
            labels = [self.settings.data.labels_per_class] * len(labels)
        return any(holdout_counts(labels, self.settings.curriculum.calibration_holdout))

    @property
    def trunk(self) -> Cell:
        """The cell without pseudo-labels whose initial training this one shares."""
        return Cell(self.data, self.settings.changed(pseudo_labels="none"))

    def is_in(self, record: Record) -> bool:
        """Whether the record is of this cell.

        What counts as divergence is without effect on a run that did not have to recover, the fraction of labels to
        hold out on one that held out none, and the length of steps on one that had none.
        """
        if record["data"]["name"] != self.data:
            return False
        ignored = set() if recovered(record) else set(DIVERGENCE)
        if self.settings.curriculum.pseudo_labels == "none":
            ignored |= LENGTH_OF_STEPS
        held_out = {} if record.get("result", {}).get("check") else {"curriculum.calibration_holdout": 0.0}
        mine, other = (
            {name: value for name, value in identity(settings).items() if name not in ignored}
            for settings in (self.settings.to_dict(), {**record["settings"], **held_out})
        )
        return mine == other

    def __str__(self) -> str:
        settings = self.settings
        few = f", {settings.data.labels_per_class} labels per class" if settings.data.labels_per_class else ""
        title = get_method(settings.method).title
        return f"{self.data}, {title}, {settings.curriculum.pseudo_labels}, seed {settings.seed}{few}"


Found = list[tuple[Cell, Record]]


def found(cells: Sequence[Cell], records: Sequence[Record]) -> Found:
    """The cells that have a record, with it."""
    alike: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        settings = record["settings"]
        key = (record["data"]["name"], settings.get("method", "ebpl"), settings.get("seed", 0))
        alike.setdefault(key, []).append(record)
    pairs = []
    for cell in cells:
        own = alike.get((cell.data, cell.settings.method, cell.settings.seed), ())
        pairs += [(cell, record) for record in own if cell.is_in(record)][:1]
    return pairs


def forms(method: str) -> tuple[str, ...]:
    """The forms of pseudo-labels that a method can be trained with."""
    return PSEUDO_LABELS if get_method(method).pseudo_labels else PSEUDO_LABELS[:1]


def settings_of(method: str, settings: Settings) -> Settings:
    """Settings to compare a method with others.

    One that begins every curriculum step with fresh weights trains in each step as long as in its initial training,
    where its steps would be shorter than the paper's.
    """
    lengthened = get_method(method).reinitialise and settings.curriculum.epochs < Settings().curriculum.epochs
    steps = settings.optim.epochs if lengthened else settings.curriculum.epochs
    return settings.changed(method=method, curriculum__epochs=steps)


def table1(datasets: Sequence[str], seeds: Sequence[int], settings: Settings, methods: Sequence[str]) -> list[Cell]:
    """Every dataset, every method, all three forms of pseudo-labels.

    The baseline reinitialises its weights at every step, so its steps are as long as its initial training.
    """
    return [
        Cell(data, settings_of(method, settings).changed(seed=seed, pseudo_labels=kind))
        for data in datasets
        for method in methods
        for kind in forms(method)
        for seed in seeds
    ]


def labels(datasets: Sequence[str], seeds: Sequence[int], settings: Settings, methods: Sequence[str]) -> list[Cell]:
    """One to five labels per class, every method, soft pseudo-labels and none; steps are as long as in `table1`."""
    return [
        Cell(data, settings_of(method, settings).changed(seed=seed, pseudo_labels=kind, labels_per_class=few))
        for data in datasets
        for few in FEW_LABELS
        for method in methods
        for kind in forms(method)
        if kind != "hard"
        for seed in seeds
    ]


def best(datasets: Sequence[str], seeds: Sequence[int], settings: Settings, _: Sequence[str]) -> list[Cell]:
    """EBPL with soft pseudo-labels."""
    return [
        Cell(data, settings.changed(method="ebpl", seed=seed, pseudo_labels="soft"))
        for data in datasets
        for seed in seeds
    ]


def parts(datasets: Sequence[str], seeds: Sequence[int], settings: Settings, _: Sequence[str]) -> list[Cell]:
    """With and without energies, with and without pseudo-labels; weights are kept between steps in all four."""
    return [
        Cell(data, settings.changed(method=method, seed=seed, pseudo_labels=kind))
        for data in datasets
        for method in PARTS_METHODS
        for kind in PARTS_PSEUDO_LABELS
        for seed in seeds
    ]


def ablation(datasets: Sequence[str], seeds: Sequence[int], settings: Settings, _: Sequence[str]) -> list[Cell]:
    """The settings as they are, and with one thing changed at a time, if that changes anything."""
    from experiments.ablation import VARIANTS, cell_of

    made = [cell_of(data, settings, name, seed) for data in datasets for name in VARIANTS for seed in seeds]
    return list(dict.fromkeys(made))


Experiment = Callable[[Sequence[str], Sequence[int], Settings, Sequence[str]], list[Cell]]
EXPERIMENTS: dict[str, Experiment] = {
    "table1": table1,
    "labels": labels,
    "best": best,
    "parts": parts,
    "ablation": ablation,
}
OF_METHODS = ("table1", "labels")
"""Experiments that compare methods."""
DEFAULT_DATASETS = {
    "table1": PAPER_DATASETS,
    "labels": ("blood",),
    "best": PAST_DATASETS,
    "parts": PAST_DATASETS,
    "ablation": ("blood", "cifar10"),
}


def cells(
    experiment: str,
    datasets: Sequence[str] | None,
    seeds: Sequence[int],
    settings: Settings,
    methods: Sequence[str] | None = None,
) -> list[Cell]:
    """All cells of an experiment by name, in the order in which they are run; of the paper's methods unless told."""
    if experiment not in EXPERIMENTS:
        raise UsageError(f"There is no experiment {experiment!r}. {did_you_mean(experiment, EXPERIMENTS)}")
    if methods and experiment not in OF_METHODS:
        raise UsageError(f"{experiment} does not compare methods; {' and '.join(OF_METHODS)} do.")
    chosen = datasets or DEFAULT_DATASETS[experiment]
    checked(chosen, methods or ())
    return EXPERIMENTS[experiment](chosen, seeds, settings, methods or PAPER_METHODS[::-1])


def checked(datasets: Sequence[str], methods: Sequence[str]) -> None:
    """Names that are not known are an error that suggests the right ones."""
    for name in datasets:
        if name not in BENCHMARK_NAMES:
            raise UsageError(f"There is no benchmark {name!r}. {did_you_mean(name, BENCHMARK_NAMES)}")
    for method in methods:
        get_method(method)


def shown_cells(
    experiment: str,
    datasets: Sequence[str] | None,
    seeds: Sequence[int],
    settings: Settings,
    methods: Sequence[str] | None,
    records: Sequence[Record],
) -> list[Cell]:
    """What tables show of an experiment: the paper's methods, those asked for, and every other that has a record."""
    if experiment not in OF_METHODS:
        return cells(experiment, datasets, seeds, settings, methods)
    made = cells(experiment, datasets, seeds, settings)
    for method in method_names():
        if method not in PAPER_METHODS:
            more = cells(experiment, datasets, seeds, settings, [method])
            made += more if method in (methods or ()) or found(more, records) else []
    return made


def methods_of(cells: Sequence[Cell]) -> list[str]:
    """The methods of these cells, the paper's first and in its order."""
    there = dict.fromkeys(cell.settings.method for cell in cells)
    return [name for name in PAPER_METHODS if name in there] + [name for name in there if name not in PAPER_METHODS]
