"""The numbers in README.md, made from the records: `python -m experiments.readme` writes them anew.

Each table stands between two comments that name it; everything else in the file is left alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ebpl.config import Settings
from ebpl.config.presets import PRESETS, preset
from ebpl.errors import DataError
from ebpl.io import write_text
from ebpl.methods import get_method
from ebpl.terminal import markdown_table
from experiments import field, parts, table
from experiments.grid import PAPER_METHODS, PSEUDO_LABELS, UNSEEN_SEEDS, Cell, cells, found, methods_of, shown_cells
from experiments.output import past_the_paper
from experiments.overview import reported
from experiments.photos import LAST_BLOCK, ON_FEATURES, PROBES, RECOMMENDED, TRAINED, advised_ways, recorded
from experiments.results_store import DIVERGENCE, Record, identity, load, network_of, recovered
from experiments.table import PAPER_METRICS, title_of


def comparison(records: Sequence[Record], data: str, pseudo_labels: str) -> str:
    """The paper's two methods side by side for each seed, as Markdown, with their cost and hardware below."""
    wanted = (data, pseudo_labels)
    chosen = [
        record
        for record in records
        if (record["data"]["name"], identity(record["settings"])["curriculum.pseudo_labels"]) == wanted
        and record["settings"]["method"] in PAPER_METHODS
    ]
    by_cell = {(record["settings"]["seed"], record["settings"]["method"]): record for record in chosen}
    if not chosen:
        return "Not measured yet."
    different = _different([identity(record["settings"]) for record in chosen])
    if len(by_cell) < len(chosen) or different - {"seed", "method", *DIVERGENCE}:
        raise DataError(f"The runs on {data} differ in {', '.join(sorted(different))}; a table may not mix them.")
    seeds = sorted({seed for seed, _ in by_cell})
    heads = [f"{get_method(name).title}, {title_of(metric)}" for name in PAPER_METHODS for metric in PAPER_METRICS]
    lines = []
    for seed in seeds:
        numbers = [_number(by_cell.get((seed, name)), metric) for name in PAPER_METHODS for metric in PAPER_METRICS]
        lines.append([str(seed), *numbers])
    return f"{markdown_table(['seed', *heads], lines)}\n\n{_provenance(chosen)}"


def _different(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    """The settings in which some of these differ."""
    return {name for each in settings for name, value in each.items() if value != settings[0].get(name)}


def _number(record: Record | None, key: str) -> str:
    return f"{100 * record['result']['metrics'][key]:.1f}" if record else "not measured"


def _provenance(records: Sequence[Record]) -> str:
    """What was run, on what, for how long."""
    if not records:
        return "Not measured."
    parts = []
    for method in dict.fromkeys([*PAPER_METHODS, *(r["settings"]["method"] for r in records)]):
        own, title = [r for r in records if r["settings"]["method"] == method], get_method(method).title
        for shared in (False, True):
            seconds = [r["result"]["seconds"] for r in own if (_company(r) > 1) == shared]
            most = max((_company(r) for r in own), default=1)
            together = f" with up to {most} runs together on one GPU" if shared else ""
            if seconds:
                parts.append(f"{title} {min(seconds):.0f} to {max(seconds):.0f} s of training{together}")
    torch = sorted({r["environment"]["torch"] for r in records})
    healed = sum(map(recovered, records))
    if healed:
        parts.append(f"{healed} run{'s' * (healed > 1)} recovered from divergence")
    network = network_of(records[0]["settings"])
    return f"({network}; {', '.join(parts)}; {_hardware(records)}; PyTorch {' and '.join(torch)}.)"


def _company(record: Record) -> int:
    """How many runs shared the device, itself among them."""
    return int(record["environment"].get("runs_together", 1))


def _hardware(records: Sequence[Record]) -> str:
    every = [record["environment"] for record in records]
    names = {each["gpu"] or f"{each['threads']} CPU thread{'s' * (each['threads'] != 1)}" for each in every}
    return " and ".join(sorted(names))


ROOT = Path(__file__).parents[1]
WAYS = {"features": ON_FEATURES, "fine-tuned-end": LAST_BLOCK}
"""Presets that photographs were learned with."""
FEW = 10
"""Labels a class of photographs."""
SHOWN = ("blood", "fashion", "cifar10", "svhn", "organa", "organc", "organs", "organa-sample")
SEEDS = range(8)
"""Of the paper's table; a cell says how many of them it is of."""


def table1(records: Sequence[Record]) -> str:
    """The paper's table at a glance: the methods with the standard preset beside the paper's numbers."""
    return _summary(records, SHOWN, SEEDS, preset("standard"))


def paper_configuration(records: Sequence[Record]) -> str:
    """The same with the preset `paper` and a network of width 2, where that was trained."""
    return _summary(records, ("blood", "cifar10"), UNSEEN_SEEDS, preset("paper", width=2))


def _summary(records: Sequence[Record], datasets: Sequence[str], seeds: Sequence[int], settings: Settings) -> str:
    chosen = reported(shown_cells("table1", datasets, seeds, settings, None, records), records)
    first, last = (table.measured(chosen, records, which) for which in ("chosen", "last"))
    lines = table.summary(datasets, first, last, methods_of(chosen))
    own = [record for _, record in found(chosen, records)]
    return f"{table.markdown(lines)}\n\n{_provenance(own)}"


def digits(records: Sequence[Record]) -> str:
    """The paper's two methods with hard pseudo-labels and the current preset `quick`, as `ebpl train` trains them."""
    settings = preset("quick", pseudo_labels="hard")
    chosen = [
        Cell("digits", settings.changed(method=method, seed=seed)) for method in PAPER_METHODS for seed in range(5)
    ]
    return comparison([record for _, record in found(chosen, records)], "digits", "hard")


def best(records: Sequence[Record]) -> str:
    """The preset `best` beside the paper's own best."""
    return past_the_paper(cells("best", None, SEEDS, preset("best")), records)


def parts_of_best(records: Sequence[Record]) -> str:
    """What energies and pseudo-labels change in the preset `best`, paired by seed."""
    made = parts.measured(cells("parts", None, UNSEEN_SEEDS, preset("best")), records)
    names = ("energies, with pseudo-labels", "pseudo-labels, with energies")
    return (
        table.markdown(parts.differences(made, names, ("accuracy", "ece", "nll", "aurc"))) if made else "Not measured."
    )


def beside_other_methods(records: Sequence[Record]) -> str:
    """EBPL beside the methods of other papers; nothing where none was measured."""
    text = field.published().markdown(records)
    return f"{field.INTRODUCTION}\n\n{text}" if text else ""


def photographs(results: Path) -> str:
    """EBPL on the features of an encoder beside logistic regression and the most accurate probe, with few labels."""
    found, recommendations, lines = recorded(results), advised_ways(results), []
    for data in dict.fromkeys(name for name, labels, _ in found if labels == FEW):
        own = {way: found[data, FEW, way] for way in (*PROBES, *TRAINED) if (data, FEW, way) in found}
        shown = {way: table.averaged(each) for way, each in own.items()}
        probes = [way for way in shown if way in PROBES]
        best = max(probes, key=lambda way: shown[way]["accuracy"].mean or 0.0)
        ways = ["logistic regression", best, ON_FEATURES, LAST_BLOCK, RECOMMENDED]
        if advised := recommendations.get((data, FEW)):
            shown[RECOMMENDED] = table.averaged(found[data, FEW, RECOMMENDED])
        numbers = [
            f"{shown[way]['accuracy']} / {shown[way]['ece']}" if way in shown else "not measured" for way in ways
        ]
        numbers[1] += f" ({best})"
        if 0 < (count := len(own.get(LAST_BLOCK, []))) < len(own[best]):
            numbers[3] += f" (n = {count})"
        if advised:
            numbers[-1] += f" (last block in {advised.count(LAST_BLOCK)} of {len(advised)})"
        lines.append([data, str(len(own[best])), *numbers])
    heads = ["logistic regression", "most accurate probe", "EBPL", "EBPL, last block learned", "EBPL as recommended"]
    return markdown_table(["data", "n", *heads], lines)


def presets(records: Sequence[Record]) -> str:
    """What a whole EBPL training with pseudo-labels costs with each preset, where it was measured."""
    lines, photos = [], recorded(ROOT / "results/photos")
    for name in PRESETS:
        settings = preset(name)
        network = settings.model.encoder or network_of(settings.to_dict())
        for data in ("pbc", "trashnet"):
            if each := photos.get((data, FEW, WAYS.get(name, ""))):
                minutes = fmean(metrics["seconds"] for metrics in each) / 60
                lines.append([name, network, data, f"{minutes:.1f}", "one run, images encoded before", "1 CPU thread"])
        for data in ("blood", "cifar10", "digits"):
            wanted = [
                Cell(data, settings.changed(seed=seed, pseudo_labels=kind))
                for seed in SEEDS
                for kind in PSEUDO_LABELS[1:]
            ]
            own = [record for _, record in found(wanted, records)]
            if own:
                minutes = fmean(record["result"]["seconds"] for record in own) / 60
                runs = max(map(_company, own))
                together = f"{runs} runs together" if runs > 1 else "one run"
                lines.append([name, network, data, f"{minutes:.1f}", together, _hardware(own)])
        if not any(line[0] == name for line in lines):
            lines.append([name, network, "", "not measured", "", ""])
    return markdown_table(["preset", "network", "data", "minutes", "for", "on"], lines)


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "digits": lambda records: digits(records),
    "table1": lambda records: table1(records),
    "paper configuration": lambda records: paper_configuration(records),
    "best": lambda records: best(records),
    "parts": lambda records: parts_of_best(records),
    "field": lambda records: beside_other_methods(records),
    "photos": lambda _: photographs(ROOT / "results/photos"),
    "presets": lambda records: presets(records),
}


def between(text: str, begin: str, end: str, made: str) -> str:
    """The text with something else between two comments."""
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise DataError(f"There is no {begin} ... {end} to put a table into.")
    return pattern.sub(lambda _: f"{begin}\n{made}\n{end}", text)


def fill(text: str, records: Sequence[Record]) -> str:
    """The text with every table between its comments made anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- results: {name} -->", f"<!-- end: {name} -->"
        if begin in text:
            text = between(text, begin, end, make(records))
    return text


def main(root: Path) -> None:
    """Write the tables of `root/README.md` anew from `root/results`."""
    readme = root / "README.md"
    write_text(readme, fill(readme.read_text(encoding="utf-8"), load(root / "results")))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
