"""The numbers in README.md, made from the ledger: `python -m ebpl.experiments.readme` writes them anew.

Each table stands between two comments that name it; everything else in the file is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ebpl.errors import DataError
from ebpl.experiments.ledger import INCIDENTAL, Record, load
from ebpl.experiments.table import METRICS
from ebpl.files import write_text
from ebpl.methods import METHODS
from ebpl.reporting.text import between, markdown_table

TITLES = {name: method.title for name, method in reversed(METHODS.items())}
NOT_COMPARED = {"guard_gap", "guard_tries", "guard_every"}  # no effect on a run that was not healed


def comparison(records: Sequence[Record], data: str, pseudo_labels: str) -> str:
    """Both methods side by side for each seed, as Markdown, with their cost and hardware below."""
    chosen = [r for r in records if r["data"]["name"] == data and r["settings"]["pseudo_labels"] == pseudo_labels]
    by_cell = {(r["settings"]["seed"], r["settings"]["method"]): r for r in chosen}
    varied = {key for r in chosen for key, value in r["settings"].items() if value != chosen[0]["settings"].get(key)}
    if len(by_cell) < len(chosen) or varied - {"seed", "method", *NOT_COMPARED, *INCIDENTAL}:
        raise DataError(f"The ledger's runs on {data} differ in {', '.join(sorted(varied))}; a table may not mix them.")
    seeds = sorted({seed for seed, _ in by_cell})
    heads = [f"{title}, {name}" for title in TITLES.values() for name in METRICS.values()]
    lines = []
    for seed in seeds:
        cells = [_number(by_cell.get((seed, method)), key) for method in TITLES for key in METRICS]
        lines.append([str(seed), *cells])
    return f"{markdown_table(['seed', *heads], lines)}\n\n{_provenance(chosen)}"


def _number(record: Record | None, key: str) -> str:
    return f"{100 * record['result']['metrics'][key]:.1f}" if record else "not measured"


def _provenance(records: Sequence[Record]) -> str:
    """What was run, on what, for how long."""
    parts = []
    for method, title in TITLES.items():
        own = [r for r in records if r["settings"]["method"] == method]
        for together in sorted({r["environment"].get("runs_together", 1) for r in own}):
            seconds = [r["result"]["seconds"] for r in own if r["environment"].get("runs_together", 1) == together]
            shared = f", {together} runs together on one GPU" if together > 1 else ""
            parts.append(f"{title} {min(seconds):.0f} to {max(seconds):.0f} s of training{shared}")
    if not records:
        return "Not measured."
    first = records[0]
    network = f"WRN-{first['settings']['depth']}-{first['settings']['width']}"
    hardware = sorted({r["environment"]["gpu"] or f"{r['environment']['threads']} CPU threads" for r in records})
    torch = sorted({r["environment"]["torch"] for r in records})
    return f"({network}; {', '.join(parts)}; {' and '.join(hardware)}; PyTorch {' and '.join(torch)}.)"


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "digits": lambda records: comparison(records, "digits", "hard"),
    "blood": lambda records: comparison(records, "blood", "none"),
}


def fill(text: str, records: Sequence[Record]) -> str:
    """The text with every table between its comments made anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- results: {name} -->", f"<!-- end: {name} -->"
        if begin in text:
            text = between(text, begin, end, table(records))
    return text


def main(root: Path) -> None:
    """Write the tables of `root/README.md` anew from `root/results`."""
    readme = root / "README.md"
    write_text(readme, fill(readme.read_text(encoding="utf-8"), load(root / "results")))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
