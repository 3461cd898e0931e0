"""Tables of results, generated from the records in `results/` and `benchmarks/records/`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ebpl.config import Settings
from ebpl.config.compat import OLD_NAMES, RETIRED
from ebpl.config.presets import preset
from ebpl.terminal import markdown_table
from experiments import ablation as ablations
from experiments import multi_run as multi_runs
from experiments import parts, readme, selection
from experiments import table as tables
from experiments.grid import PAPER_DATASETS, PAST_DATASETS, UNSEEN_SEEDS, Cell, cells
from experiments.overview import reported
from experiments.readme import SEEDS, SHOWN, TABLES
from experiments.results_store import Record, load


def table(root: Path, name: str) -> str:
    """A table of `experiments.readme`."""
    return TABLES[name](_records(root))


def table1(root: Path, name: str = "table1") -> str:
    """The paper's table, with the three metrics of a cell below each other."""
    return unbroken(table(root, name).replace(" / ", "<br>"))


def unbroken(text: str) -> str:
    """A table in which a mean and its deviation stay on one line."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def parts_of_best(root: Path) -> str:
    """What energies and pseudo-labels are worth in the preset `best`."""
    chosen = cells("parts", None, UNSEEN_SEEDS, preset("best"))
    return unbroken(parts.markdown(chosen, _records(root)))


def few_labels(root: Path) -> str:
    """Both of the paper's methods with one to five labels per class."""
    chosen = cells("labels", None, UNSEEN_SEEDS, preset("standard"))
    return unbroken(tables.markdown(tables.few_labels(chosen, _records(root))))


def stopping_points(root: Path) -> str:
    """What it costs to choose weights without labels."""
    rows = selection.rows(_reported(root), _records(root))
    return markdown_table(rows[0], rows[1:]) if rows else "Not measured yet."


def distances(root: Path) -> str:
    """Our numbers minus the paper's, for the datasets that were measured."""
    measured = tables.measured(_reported(root), _records(root))
    datasets = [name for name in PAPER_DATASETS if any(key[-1] == name for key in measured)]
    return tables.markdown(tables.distances(datasets, measured))


def ablation(root: Path) -> str:
    """One change at a time, on the short schedule."""
    return _ablation(root, ablations.base())


def ablation_of_a_small_network(root: Path) -> str:
    """The same with a small network."""
    return _ablation(root, preset("best", ablations.SMALL))


def ablation_at_full_length(root: Path) -> str:
    """The same at the full length of the preset, on all datasets that it was measured on."""
    return _ablation(root, preset("best"), PAST_DATASETS)


def _ablation(root: Path, settings: Settings, datasets: Sequence[str] | None = None) -> str:
    chosen = cells("ablation", datasets, range(3), settings)
    return unbroken(ablations.markdown(ablations.rows(chosen, _records(root), settings)))


def explored(root: Path, search: str) -> str:
    """Single runs of one search for improvements: accuracy and ECE of the last weights."""
    tried = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((root / "results/explored" / search).glob("*.json"))
    ]
    names = list(dict.fromkeys(name for each in tried for name in each["variants"]))
    heads = ["changed", *(f"{each['data']}, seed {each['seed']}" for each in tried)]
    lines = [
        [_changed(name, tried), *(_accuracy_and_ece(each["variants"].get(name, {})) for each in tried)]
        for name in names
    ]
    start = f"From `{tried[0]['preset']}` with {_settings(tried[0]['base'])}, {tried[0]['updates']:,} updates:"
    return f"{start}\n\n{markdown_table(heads, lines)}"


def likelihood(root: Path) -> str:
    """Single runs whose energy model has no penalty: what the classifier and the samples are like."""
    tried = json.loads((root / "results/explored/likelihood/blood.json").read_text(encoding="utf-8"))
    lines = [
        [
            _settings(variant["changes"]) or "nothing",
            _accuracy_and_ece(variant),
            f"{100 * variant['energy_gap'] / variant['energy_spread']:.1f}",
            f"{100 * variant['frechet_share_of_noise']:.2f}",
            f"{100 * variant['frechet_share_of_start']:.1f}",
            " / ".join(f"{100 * variant[f'auroc_{other}']:.1f}" for other in ("cifar10", "svhn", "fashion")),
            " / ".join(f"{variant[name][1]:.1f}" for name in ("nearest_samples", "nearest_test_images")),
        ]
        for variant in tried["variants"].values()
    ]
    heads = [
        "changed",
        "accuracy / ECE %, validation",
        "gap, % of the spread",
        "Fréchet distance, % of noise's",
        "% of the start's",
        "AUROC % of CIFAR-10 / SVHN / Fashion",
        "nearest training image: samples / test images",
    ]
    start = (
        f"From `{tried['preset']}` with {_settings(tried['base'])}, {tried['updates']:,} updates, seed {tried['seed']}:"
    )
    return f"{start}\n\n{markdown_table(heads, lines)}"


def _changed(name: str, tried: Sequence[dict[str, Any]]) -> str:
    variant = next(each["variants"][name] for each in tried if name in each["variants"])
    longer = f", {variant['updates']:,} updates" if "updates" in variant else ""
    return (_settings(variant["changes"]) or "nothing") + longer


def _settings(changes: Mapping[str, Any]) -> str:
    """Changes under today's names; those without one were removed."""
    return ", ".join(f"{_name(name)} {value}" for name, value in changes.items())


def _name(name: str) -> str:
    removed = " (removed)" if name in RETIRED else ""
    return f"`{OLD_NAMES.get(name, name)}`{removed}"


def _accuracy_and_ece(variant: Mapping[str, Any]) -> str:
    if not variant:
        return ""
    more = [variant["on"]] if "on" in variant else []
    if "overconfidence" in variant:
        more.append("over-confident" if variant["overconfidence"] > 0 else "under-confident")
    remark = f" ({', '.join(more)})" if more else ""
    return f"{100 * variant['accuracy']:.1f} / {100 * variant['ece']:.1f}{remark}"


def field(root: Path) -> str:
    """EBPL beside the methods of other papers, with the figures that are there."""
    text = readme.beside_other_methods(_records(root))
    shown = [
        f"![Accuracy and ECE of EBPL and FixMatch against minutes on {path.stem.removeprefix('field-curve-')}]"
        f"(../reproduced/{path.name})"
        for path in sorted((root / "reproduced").glob("field-curve-*.png"))
    ]
    return "\n\n".join([unbroken(text), *shown]) if text else "Not measured yet."


def multi_run(root: Path, experiment: str) -> str:
    """The results of an experiment beyond the paper."""
    heads, *rows = multi_runs.shown(root / "results", experiment)
    return unbroken(markdown_table(heads, rows)) if rows else "Not measured yet."


def speed(root: Path) -> str:
    """How fast training is, in short."""
    from benchmarks import record
    from benchmarks.report import summary

    return summary(record.load(root / "benchmarks/records"))


def torture(root: Path) -> str:
    """What `make torture` found when it was last recorded."""
    path = root / "results/torture/torture.json"
    if not path.is_file():
        return "Not measured yet."
    counts = json.loads(path.read_text(encoding="utf-8"))["counts"]
    rows = [[each["attack"], str(each["attacks"]), str(each["wrong"])] for each in counts]
    return markdown_table(["attack", "attacks", "found something wrong"], rows)


def duplicates(root: Path) -> str:
    """How many test images of each benchmark are also among its training images."""
    found = json.loads((root / "results/data/duplicates.json").read_text(encoding="utf-8"))
    names = ("train_images", "test_images", "copies", "copies_with_another_label")
    rows = [[name, *(f"{counts[each]:,}" for each in names)] for name, counts in found.items()]
    return markdown_table(["data", "training images", "test images", "copies", "with another label"], rows)


@cache
def _records(root: Path) -> list[Record]:
    return load(root / "results")


def _reported(root: Path) -> list[Cell]:
    return reported(cells("table1", SHOWN, SEEDS, preset("standard")), _records(root))
