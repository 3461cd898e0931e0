"""The table of `experiments.unseen`: which score tells images of another kind, from `results/unseen/`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from docs.tools.results import unbroken
from ebpl.terminal import markdown_table

SCORE = "reconstruction error"
"""By which images on features are flagged."""


def scores(root: Path) -> str:
    """A row for each training data and other data: AUROC of each score and the share flagged, in percent."""
    groups: dict[str, list[dict[str, dict[str, dict[str, float]]]]] = {}
    for path in sorted((root / "results/unseen").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        groups.setdefault(record["data"]["name"], []).append(record)
    names = list(dict.fromkeys(name for seeds in groups.values() for each in seeds for name in each["auroc"]))
    lines = []
    for data, seeds in groups.items():
        for other in sorted(seeds[0]["flagged"][SCORE], key=lambda name: (name != data, name)):
            found = [_shown([each["auroc"][name][other] for each in seeds]) if other != data else "" for name in names]
            new = f"new images of {data}" if other == data else other
            lines.append(
                [data, new, str(len(seeds)), *found, _shown([each["flagged"][SCORE][other] for each in seeds])]
            )
    return unbroken(markdown_table(["trained on", "images", "n", *names, "flagged %"], lines))


def _shown(shares: Sequence[float]) -> str:
    spread = f" ± {100 * stdev(shares):.1f}" if len(shares) > 1 else ""
    return f"{100 * fmean(shares):.1f}{spread}"
