"""Table 1 from the records, beside the paper's own numbers: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ebpl.errors import UsageError, did_you_mean
from ebpl.methods import get_method
from ebpl.metrics import METRICS, spread
from ebpl.terminal import markdown_table
from experiments.grid import (
    FEW_LABELS,
    LEAST_SEEDS,
    PAPER_DATASETS,
    PAPER_METHODS,
    PSEUDO_LABELS,
    Cell,
    forms,
    found,
    methods_of,
)
from experiments.results_store import Record, recovered

PAPER_METRICS = ("accuracy", "f_score", "ece")
SHORT_TITLES = {"f_score": "F-score", "ece": "ECE"}
"""As the paper calls them."""
PAPER_NAMES = {"baseline": "curriculum-labeling", "ebpl": "ebpl"}
"""Methods as the file of the paper's numbers calls them, and as we do."""
NOT_MEASURED = "not measured"
NOT_IN_THE_PAPER = "not in the paper"


@dataclass(frozen=True)
class Entry:
    """Mean and standard deviation over so many seeds, in per cent where the metric is a fraction.

    The mean is None where not all of the runs have the metric.
    """

    mean: float | None
    deviation: float
    seeds: int
    recovered: int = 0
    """How many of the runs recovered from a divergence."""
    decimals: int = 1

    def __str__(self) -> str:
        if self.mean is None:
            return "–"
        shown = f"{self.mean:.{self.decimals}f}"
        return f"{shown} ± {self.deviation:.{self.decimals}f}" if self.seeds > 1 else shown


def count(seeds: int, recovered: int) -> str:
    """How many runs are behind a number.

    >>> count(5, 0), count(5, 1)
    ('5', '5, 1 recovered')
    """
    return f"{seeds}, {recovered} recovered" if recovered else str(seeds)


def averaged(all_seeds: Sequence[Mapping[str, float | None]], recovered: int = 0) -> dict[str, Entry]:
    """Each metric over all seeds; one that is not a registered metric is taken for a fraction."""
    found = spread([dict(each) for each in all_seeds])
    entries = {}
    for name in {**METRICS, **found}:
        scale, decimals = (1, 3) if name in METRICS and not METRICS[name].percent else (100, 1)
        mean, deviation = found.get(name, (None, 0.0))
        scaled = None if mean is None else scale * mean
        entries[name] = Entry(scaled, scale * deviation, len(all_seeds), recovered, decimals)
    return entries


def title_of(metric: str) -> str:
    """A metric as the head of a column."""
    if metric not in METRICS:
        raise UsageError(f"There is no metric {metric!r}. {did_you_mean(metric, METRICS)}")
    return SHORT_TITLES.get(metric, METRICS[metric].title) + (" %" if METRICS[metric].percent else "")


Key = tuple[str, str, str, str]
"""Metric, method, form of the pseudo-labels, dataset."""
Entries = dict[Key, Entry]


def paper() -> Entries:
    """The paper's Table 1, mean and standard deviation over five seeds."""
    text = Path(__file__).with_name("paper_table1.csv").read_text(encoding="utf-8")
    numbers = {}
    for row in csv.DictReader(io.StringIO(text)):
        for data in PAPER_DATASETS:
            key = (row["metric"], PAPER_NAMES[row["method"]], row["pseudo_label"], data)
            numbers[key] = Entry(float(row[data]), float(row[f"{data}_std"]), 5)
    return numbers


def measured(cells: Sequence[Cell], records: Sequence[Record], which: str = "chosen") -> Entries:
    """Our numbers of these cells; `which`: the weights chosen by validation labels, or the `last` ones, without any."""
    results: dict[tuple[str, str, str], list[tuple[dict[str, float | None], bool]]] = {}
    for cell, record in found(cells, records):
        result = record["result"] if which == "chosen" else record["result"].get("last")
        if result and result["metrics"]:
            key = (cell.settings.method, cell.settings.curriculum.pseudo_labels, cell.data)
            results.setdefault(key, []).append((result["metrics"], recovered(record)))
    entries: Entries = {}
    for (method, kind, data), runs in results.items():
        own = averaged([metrics for metrics, _ in runs], sum(healed for _, healed in runs))
        entries |= {(name, method, kind, data): entry for name, entry in own.items()}
    return entries


Rows = list[list[str]]


def few_labels(cells: Sequence[Cell], records: Sequence[Record]) -> Rows:
    """A line for each dataset, number of labels per class, method and form of pseudo-labels that was measured.

    Metrics are those of the weights chosen by validation labels and, in the last two columns, of the last ones.
    """
    last = ("accuracy", "ece")
    heads = [*map(title_of, PAPER_METRICS), *(f"{title_of(metric)}, last weights" for metric in last)]
    lines = [["data", "labels per class", "method", "pseudo-labels", "n", *heads]]
    for few in FEW_LABELS:
        own = [cell for cell in cells if cell.settings.data.labels_per_class == few]
        chosen, without = (measured(own, records, which) for which in ("chosen", "last"))
        for data, method in product(dict.fromkeys(cell.data for cell in own), methods_of(own)):
            for kind in forms(method):
                if first := chosen.get((PAPER_METRICS[0], method, kind, data)):
                    numbers = [chosen[metric, method, kind, data] for metric in PAPER_METRICS]
                    numbers += [without[metric, method, kind, data] for metric in last]
                    n = count(first.seeds, first.recovered)
                    lines.append([data, str(few), get_method(method).title, kind, n, *map(str, numbers)])
    return lines


def rows(
    datasets: Sequence[str],
    entries: Entries,
    bold: tuple[str, str] = ("**", "**"),
    methods: Sequence[str] = PAPER_METHODS,
    metrics: Sequence[str] = PAPER_METRICS,
) -> Rows:
    """A line for each metric, method and form: ours, with the number of seeds, and the paper's in brackets.

    The best of ours for each metric and dataset stands out, if it is of enough seeds.
    """
    theirs = paper()

    def shown(key: Key) -> str:
        own, other = entries.get(key), theirs.get(key)
        text = NOT_MEASURED
        if own:
            best = own.seeds >= LEAST_SEEDS and own.mean is not None and own.mean == _best(entries, key[0], key[3])
            text = f"{bold[0]}{own}{bold[1]}" if best else str(own)
            text = f"{text}, n = {count(own.seeds, own.recovered)}"
        return text + (f" ({other})" if other else "")

    return _lines(datasets, methods, metrics, shown)


def distances(
    datasets: Sequence[str],
    entries: Entries,
    methods: Sequence[str] = PAPER_METHODS,
    metrics: Sequence[str] = PAPER_METRICS,
) -> Rows:
    """A line for each metric, method and form: how far ours is above the paper's, in percentage points."""
    theirs = paper()

    def shown(key: Key) -> str:
        own, other = entries.get(key), theirs.get(key)
        if other is None or other.mean is None:
            return NOT_IN_THE_PAPER
        return f"{own.mean - other.mean:+.1f}" if own and own.mean is not None else NOT_MEASURED

    return _lines(datasets, methods, metrics, shown)


def _lines(
    datasets: Sequence[str], methods: Sequence[str], metrics: Sequence[str], shown: Callable[[Key], str]
) -> Rows:
    """A head, and a line for each metric, method and form."""
    lines = [["metric", "method", "pseudo-labels", *datasets]]
    for metric in metrics:
        for method in methods:
            for kind in forms(method):
                cells = [shown((metric, method, kind, data)) for data in datasets]
                lines.append([title_of(metric), get_method(method).title, kind, *cells])
    return lines


def summary(datasets: Sequence[str], chosen: Entries, last: Entries, methods: Sequence[str] = PAPER_METHODS) -> Rows:
    """A line for each dataset and form: accuracy / F-score / ECE of the methods, ours and the paper's.

    Where EBPL is better than the baseline in all three, over enough seeds, it stands out.
    """
    theirs = paper()
    others = [method for method in methods if method not in PAPER_METHODS]
    heads = ["data", "pseudo-labels", "n", "baseline", "EBPL", "EBPL, no validation labels"]
    heads += [get_method(method).title for method in others]
    lines = [[*heads, "paper's baseline", "paper's EBPL"]]
    for data in datasets:
        there = any(key[3] == data for key in chosen)
        for kind in PSEUDO_LABELS if there else PSEUDO_LABELS[-1:]:
            baseline, ebpl = (_triple(chosen, method, kind, data) for method in PAPER_METHODS)
            if _ahead(chosen, kind, data):
                ebpl = f"**{ebpl}**"
            more = [_triple(chosen, method, kind, data) for method in others]
            papers = [_triple(theirs, method, kind, data, NOT_IN_THE_PAPER) for method in PAPER_METHODS]
            seeds = _seeds({method: chosen.get(("accuracy", method, kind, data)) for method in methods})
            lines.append([data, kind, seeds, baseline, ebpl, _triple(last, "ebpl", kind, data), *more, *papers])
    return lines


def _seeds(entries: Mapping[str, Entry | None]) -> str:
    """How many runs are behind the numbers of each method, in one number where it is the same for all that have any."""
    own = {method: entry for method, entry in entries.items() if entry}
    healed = sum(entry.recovered for entry in own.values())
    if len({entry.seeds for entry in own.values()}) > 1:
        counts = ", ".join(f"{get_method(method).title} {entry.seeds}" for method, entry in own.items())
        return counts + (f"; {healed} recovered" if healed else "")
    return count(next((entry.seeds for entry in own.values()), 0), healed)


def against_the_paper(datasets: Sequence[str], entries: Entries) -> Rows:
    """A line for each dataset: ours with soft pseudo-labels, and the best of the paper's EBPL in each metric.

    The paper's may be those of different forms of pseudo-labels.
    """
    theirs = {key: entry for key, entry in paper().items() if key[1] == "ebpl"}
    known = {key[3] for key in theirs}
    titles = [title_of(metric) for metric in PAPER_METRICS]
    lines = [["data", "n", *titles, *(f"paper's best {title}" for title in titles)]]
    for data in datasets:
        own = [entries.get((metric, "ebpl", "soft", data)) for metric in PAPER_METRICS]
        others = [
            f"{_best(theirs, metric, data):.1f}" if data in known else NOT_IN_THE_PAPER for metric in PAPER_METRICS
        ]
        seeds = next((count(entry.seeds, entry.recovered) for entry in own if entry), "0")
        lines.append([data, seeds, *(str(entry or NOT_MEASURED) for entry in own), *others])
    return lines


def _triple(entries: Entries, method: str, kind: str, data: str, missing: str = NOT_MEASURED) -> str:
    values = [entries.get((metric, method, kind, data)) for metric in PAPER_METRICS]
    return " / ".join(str(value) for value in values) if all(values) else missing


def _ahead(entries: Entries, kind: str, data: str) -> bool:
    """Whether EBPL is above the baseline in accuracy and F-score and below it in ECE, over enough seeds."""
    for metric in PAPER_METRICS:
        other, ebpl = (entries.get((metric, method, kind, data)) for method in PAPER_METHODS)
        if ebpl is None or other is None or ebpl.mean is None or other.mean is None:
            return False
        if min(ebpl.seeds, other.seeds) < LEAST_SEEDS:
            return False
        if (ebpl.mean < other.mean) != METRICS[metric].lower_is_better:
            return False
    return True


def _best(entries: Entries, metric: str, data: str) -> float:
    own = [entry.mean for key, entry in entries.items() if key[0] == metric and key[3] == data]
    values = [mean for mean in own if mean is not None]
    return min(values) if METRICS[metric].lower_is_better else max(values)


def markdown(lines: Rows) -> str:
    """The lines as a Markdown table."""
    return markdown_table(lines[0], lines[1:])


def latex(lines: Rows) -> str:
    """The lines as a LaTeX tabular."""
    heads, *others = lines
    body = [r" & ".join(_escaped(cell) for cell in line) + r" \\" for line in others]
    top = r" & ".join(_escaped(cell) for cell in heads) + r" \\"
    return "\n".join(
        [rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\hline", top, r"\hline", *body, r"\hline", r"\end{tabular}"]
    )


def _escaped(text: str) -> str:
    return text.replace("%", r"\%").replace("±", r"$\pm$").replace("_", r"\_").replace("–", "--")


def as_csv(
    datasets: Sequence[str],
    entries: Entries,
    methods: Sequence[str] = PAPER_METHODS,
    metrics: Sequence[str] = PAPER_METRICS,
) -> str:
    """A line for each number: ours and the paper's."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = ["metric", "method", "pseudo_labels", "dataset", "mean", "std", "seeds", "paper_mean", "paper_std"]
    writer.writerow([*heads, "recovered"])
    theirs = paper()
    for metric in metrics:
        for method in methods:
            for kind in forms(method):
                for data in datasets:
                    key = (metric, method, kind, data)
                    own, other = entries.get(key), theirs.get(key)
                    numbers = ["", "", own.seeds if own else 0]
                    if own and own.mean is not None:
                        numbers = [f"{own.mean:.4f}", f"{own.deviation:.4f}", own.seeds]
                    papers = [other.mean, other.deviation] if other else ["", ""]
                    writer.writerow([*key, *numbers, *papers, own.recovered if own else 0])
    return text.getvalue()
