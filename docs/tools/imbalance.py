"""The table of `experiments.imbalance`: what the class mix is worth, from `results/imbalance/`."""

from __future__ import annotations

from pathlib import Path

from docs.tools.results import unbroken
from docs.tools.text import records
from ebpl.metrics import spread
from ebpl.terminal import markdown_table

METRICS = ("accuracy", "balanced_accuracy", "ece", "ece_by_chance")
TITLES = ("accuracy %", "balanced accuracy %", "ECE %", "ECE % by chance", "mix off by, points")


def comparison(root: Path) -> str:
    """A row for each dataset, preset, imbalance, kind of labels and class mix: means and deviations over seeds."""
    groups: dict[tuple[str, str, float, str, str], list[dict[str, float | None]]] = {}
    largest: dict[tuple[str, str, float, str], list[float]] = {}
    for record in records(root, "imbalance"):
        case = (record["data"]["name"], record["preset"], record["ratio"], record["labels"])
        largest.setdefault(case, []).append(max(record["mix"]))
        for mix, found in record["trained"].items():
            measured = {name: 100 * found["metrics"][name] for name in METRICS}
            groups.setdefault((*case, mix), []).append({**measured, "distance": 100 * found["distance"]})
    lines = []
    for (data, preset, ratio, labels, mix), seeds in sorted(groups.items(), key=lambda group: group[0][:4]):
        shares = largest[data, preset, ratio, labels]
        numbers = [f"{mean:.1f} ± {deviation:.1f}" for mean, deviation in spread(seeds).values()]
        share = f"{100 * sum(shares) / len(shares):.0f}"
        lines.append([data, preset, f"1:{ratio:g}", share, labels, mix, str(len(seeds)), *numbers])
    return unbroken(
        markdown_table(["data", "preset", "imbalance", "largest class %", "labels", "class mix", "n", *TITLES], lines)
    )
