"""Table 1 from the ledger, beside the paper's own numbers: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from ebpl.methods import METHODS
from ebpl.metrics import spread
from ebpl.reporting.model_card import markdown_table
from experiments.cells import PAPER_DATASETS, PSEUDO_LABELS, Cell, found
from experiments.ledger import Record

METRICS = {"accuracy": "accuracy %", "f_score": "F-score %", "ece": "ECE %"}
NAMES = {"curriculum-labeling": "baseline", "ebpl": "ebpl"}
"""Our methods as the file of the paper's numbers calls them."""
NOT_MEASURED = "not measured"
NOT_IN_THE_PAPER = "not in the paper"


@dataclass(frozen=True)
class Entry:
    """Mean and standard deviation, in per cent, over so many seeds."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.deviation:.1f}" if self.seeds > 1 else f"{self.mean:.1f}"


def averaged(all_seeds: Sequence[dict[str, float]]) -> dict[str, Entry]:
    """Each measure, a share, in per cent over all seeds."""
    return {
        name: Entry(100 * mean, 100 * deviation, len(all_seeds))
        for name, (mean, deviation) in spread(all_seeds).items()
    }


Key = tuple[str, str, str, str]
"""Metric, method, form of the pseudo-labels, dataset."""


def paper() -> dict[Key, Entry]:
    """The paper's Table 1, mean and standard deviation over five seeds."""
    text = resources.files("ebpl.experiments").joinpath("paper_table1.csv").read_text(encoding="utf-8")
    ours = {theirs: method for method, theirs in NAMES.items()}
    numbers = {}
    for row in csv.DictReader(io.StringIO(text)):
        for data in PAPER_DATASETS:
            key = (row["metric"], ours[row["method"]], row["pseudo_label"], data)
            numbers[key] = Entry(float(row[data]), float(row[f"{data}_std"]), 5)
    return numbers


def measured(cells: Sequence[Cell], records: Sequence[Record], which: str = "chosen") -> dict[Key, Entry]:
    """Our numbers of these cells; `which`: the weights chosen by validation labels, or the `last` ones, without any."""
    results: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for cell, record in found(cells, records):
        result = record["result"] if which == "chosen" else record["result"].get("last")
        if result and result["metrics"]:
            key = (cell.settings.method, cell.settings.curriculum.pseudo_labels, cell.data)
            results.setdefault(key, []).append(result["metrics"])
    entries = {}
    for (method, kind, data), all_seeds in results.items():
        for name, entry in averaged(all_seeds).items():
            entries[name, method, kind, data] = entry
    return entries


Rows = list[list[str]]


def rows(datasets: Sequence[str], entries: dict[Key, Entry], bold: tuple[str, str] = ("**", "**")) -> Rows:
    """A line for each metric, method and form: ours, with the number of seeds, and the paper's in brackets.

    The best of ours for each metric and dataset stands out.
    """
    theirs = paper()

    def shown(key: Key) -> str:
        own, other = entries.get(key), theirs.get(key)
        text = NOT_MEASURED
        if own:
            best = own.mean == _best(entries, key[0], key[3])
            text = f"{bold[0]}{own}{bold[1]}" if best else str(own)
            text = f"{text}, n = {own.seeds}"
        return text + (f" ({other})" if other else "")

    return _lines(datasets, shown)


def distances(datasets: Sequence[str], entries: dict[Key, Entry]) -> Rows:
    """A line for each metric, method and form: how far ours is above the paper's, in percentage points."""
    theirs = paper()

    def shown(key: Key) -> str:
        own, other = entries.get(key), theirs.get(key)
        if other is None:
            return NOT_IN_THE_PAPER
        return f"{own.mean - other.mean:+.1f}" if own else NOT_MEASURED

    return _lines(datasets, shown)


def _lines(datasets: Sequence[str], shown: Callable[[Key], str]) -> Rows:
    """A head, and a line for each metric, method and form."""
    lines = [["metric", "method", "pseudo-labels", *datasets]]
    for metric, title in METRICS.items():
        for method in reversed(METHODS):
            for kind in PSEUDO_LABELS:
                cells = [shown((metric, method, kind, data)) for data in datasets]
                lines.append([title, METHODS[method].title, kind, *cells])
    return lines


def summary(datasets: Sequence[str], chosen: dict[Key, Entry], last: dict[Key, Entry]) -> Rows:
    """A line for each dataset and form: accuracy / F-score / ECE of both methods, ours and the paper's.

    Where EBPL is better than the baseline in all three it stands out.
    """
    theirs = paper()
    heads = ["data", "pseudo-labels", "n", "baseline", "EBPL", "EBPL, no validation labels"]
    lines = [[*heads, "paper's baseline", "paper's EBPL"]]
    for data in datasets:
        measured = any(key[3] == data for key in chosen)
        for kind in PSEUDO_LABELS if measured else PSEUDO_LABELS[-1:]:
            baseline, ebpl = (_triple(chosen, method, kind, data) for method in reversed(METHODS))
            if _ahead(chosen, kind, data):
                ebpl = f"**{ebpl}**"
            others = [_triple(theirs, method, kind, data, NOT_IN_THE_PAPER) for method in reversed(METHODS)]
            seeds = sorted({entry.seeds for key, entry in chosen.items() if key[2:] == (kind, data)})
            count = " and ".join(map(str, seeds)) or "0"
            lines.append([data, kind, count, baseline, ebpl, _triple(last, "ebpl", kind, data), *others])
    return lines


def against_the_paper(datasets: Sequence[str], entries: dict[Key, Entry]) -> Rows:
    """A line for each dataset: ours with soft pseudo-labels, and the best of the paper's EBPL in each measure.

    The paper's may be those of different forms of pseudo-labels.
    """
    theirs = {key: entry for key, entry in paper().items() if key[1] == "ebpl"}
    known = {key[3] for key in theirs}
    lines = [["data", "n", *METRICS.values(), *(f"paper's best {title}" for title in METRICS.values())]]
    for data in datasets:
        own = [entries.get((metric, "ebpl", "soft", data)) for metric in METRICS]
        others = [f"{_best(theirs, metric, data):.1f}" if data in known else NOT_IN_THE_PAPER for metric in METRICS]
        seeds = str(next((entry.seeds for entry in own if entry), 0))
        lines.append([data, seeds, *(str(entry or NOT_MEASURED) for entry in own), *others])
    return lines


def _triple(entries: dict[Key, Entry], method: str, kind: str, data: str, missing: str = NOT_MEASURED) -> str:
    values = [entries.get((metric, method, kind, data)) for metric in METRICS]
    return " / ".join(str(value) for value in values) if all(values) else missing


def _ahead(entries: dict[Key, Entry], kind: str, data: str) -> bool:
    """Whether EBPL is above the baseline in accuracy and F-score and below it in ECE."""
    for metric in METRICS:
        ebpl, other = (entries.get((metric, method, kind, data)) for method in METHODS)
        if ebpl is None or other is None or (ebpl.mean < other.mean) != (metric == "ece"):
            return False
    return True


def _best(entries: dict[Key, Entry], metric: str, data: str) -> float:
    values = [entry.mean for key, entry in entries.items() if key[0] == metric and key[3] == data]
    return min(values) if metric == "ece" else max(values)


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
    return text.replace("%", r"\%").replace("±", r"$\pm$").replace("_", r"\_")


def as_csv(datasets: Sequence[str], entries: dict[Key, Entry]) -> str:
    """A line for each number: ours and the paper's."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "method", "pseudo_labels", "dataset", "mean", "std", "seeds", "paper_mean", "paper_std"])
    theirs = paper()
    for metric in METRICS:
        for method in reversed(METHODS):
            for kind in PSEUDO_LABELS:
                for data in datasets:
                    key = (metric, method, kind, data)
                    own, other = entries.get(key), theirs.get(key)
                    numbers = [f"{own.mean:.4f}", f"{own.deviation:.4f}", own.seeds] if own else ["", "", 0]
                    writer.writerow([*key, *numbers, *([other.mean, other.deviation] if other else ["", ""])])
    return text.getvalue()
