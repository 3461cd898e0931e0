"""The table of `experiments.unseen`: which score tells images of another kind, from `results/unseen/`."""

from __future__ import annotations

from pathlib import Path

from docs.tools.results import unbroken
from docs.tools.text import mean, records
from ebpl.terminal import markdown_table

LEARNED = {"none": "", "end": ", last block learned", "last": ", end learned", "all": ", encoder learned"}
"""What is said of models whose encoder learned, by `model.fine_tune`."""
SCORE = "reconstruction error"
"""By which images on features are flagged."""


def scores(root: Path) -> str:
    """A row for each training data and other data: AUROC of each score and the share flagged, in percent."""
    groups: dict[tuple[str, str], list[dict[str, dict[str, dict[str, float]]]]] = {}
    for record in records(root, "unseen"):
        learns = LEARNED[record["settings"]["model.fine_tune"]]
        groups.setdefault((record["data"]["name"], learns), []).append(record)
    names = list(dict.fromkeys(name for seeds in groups.values() for each in seeds for name in each["auroc"]))
    lines = []
    for (data, learns), seeds in sorted(groups.items(), key=lambda group: group[0][1]):
        for other in sorted(seeds[0]["flagged"][SCORE], key=lambda name: (name != data, name)):
            known = seeds[0]["auroc"] if other != data else {}
            found = [
                mean([100 * each["auroc"][name][other] for each in seeds]) if name in known else "" for name in names
            ]
            new = f"new images of {data}" if other == data else other
            flagged = mean([100 * each["flagged"][SCORE][other] for each in seeds])
            lines.append([data + learns, new, str(len(seeds)), *found, flagged])
    return unbroken(markdown_table(["trained on", "images", "n", *names, "flagged %"], lines))
