"""The table of `experiments.unseen`: which score tells images of another kind, from `results/unseen/`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from docs.tools.results import unbroken
from ebpl.terminal import markdown_table

LEARNED = {"none": "", "end": ", last block learned", "last": ", end learned", "all": ", encoder learned"}
"""What is said of models whose encoder learned, by `model.fine_tune`."""
SCORE = "reconstruction error"
"""By which images on features are flagged."""


def scores(root: Path) -> str:
    """A row for each training data and other data: AUROC of each score and the share flagged, in percent."""
    groups: dict[tuple[str, str], list[dict[str, dict[str, dict[str, float]]]]] = {}
    for path in sorted((root / "results/unseen").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        learns = LEARNED[record["settings"]["model.fine_tune"]]
        groups.setdefault((record["data"]["name"], learns), []).append(record)
    names = list(dict.fromkeys(name for seeds in groups.values() for each in seeds for name in each["auroc"]))
    lines = []
    for (data, learns), seeds in sorted(groups.items(), key=lambda group: group[0][1]):
        for other in sorted(seeds[0]["flagged"][SCORE], key=lambda name: (name != data, name)):
            known = seeds[0]["auroc"] if other != data else {}
            found = [_shown([each["auroc"][name][other] for each in seeds]) if name in known else "" for name in names]
            new = f"new images of {data}" if other == data else other
            lines.append(
                [data + learns, new, str(len(seeds)), *found, _shown([each["flagged"][SCORE][other] for each in seeds])]
            )
    return unbroken(markdown_table(["trained on", "images", "n", *names, "flagged %"], lines))


def _shown(shares: Sequence[float]) -> str:
    spread = f" ± {100 * stdev(shares):.1f}" if len(shares) > 1 else ""
    return f"{100 * fmean(shares):.1f}{spread}"
