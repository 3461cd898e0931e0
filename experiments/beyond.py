"""What goes past the paper, shown on real data: images that do not belong, and suggestions of what to label.

Both take a benchmark apart and put it together as a practitioner would meet it. A record for each seed is kept in
`results/beyond/`; a seed that is there is not run again.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebpl import api
from ebpl.config import Settings
from ebpl.data import load
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.formats import resized
from ebpl.data.split import PAPER_VALIDATION, split_for
from ebpl.devices import describe_environment, device_and_dtype
from ebpl.errors import DataError, UsageError
from ebpl.io import write_json
from ebpl.labeling import suggest
from ebpl.models.outliers import familiar
from ebpl.models.predictions import predict, predict_with_features
from ebpl.runs import Run
from ebpl.training.run_summary import PSEUDO_LABELS
from experiments.ledger import Record, telling
from experiments.reproduce import Bars, Brief, clear_half
from experiments.table import averaged

if TYPE_CHECKING:
    import torch

    from ebpl.models import HybridModel

FOLDER = "beyond"
STRANGERS = 0.2
"""Share of the unlabelled images that are another dataset's."""
REJECTED_ABOVE = 0.99
SUGGESTED = 40
OTHERS = {"blood": "cifar10", "digits": "fashion"}
"""Where the images that do not belong come from."""
UNSEEN = {"blood": ("fashion", "svhn")}
"""Whose images are met only when the model is used."""
MOST_COLUMNS = 8
MOST = 2000
"""So many test images of each dataset are compared."""

Say = Callable[[str], None]


def mixed(data: ImageSet, other: ImageSet, share: float, seed: int) -> tuple[ImageSet, NDArray[np.bool_]]:
    """A benchmark some of whose training images are another's, without a label, and which these are."""
    random = np.random.default_rng(seed)
    # strangers are never labelled nor among the validation images, so that all of them are unlabelled
    labels = (data.labels_per_class or 0) * len(data.classes)
    kept = 1 - PAPER_VALIDATION
    count = round(share * (kept * len(data.train) - labels) / (1 - PAPER_VALIDATION * share))
    if count > len(other.train):
        raise DataError(f"{other.name} has {len(other.train)} images, of which {count} are wanted.")
    places = random.permutation(len(data.train))[:count]
    taken = random.permutation(len(other.train))[:count]
    pixels, given = data.train.pixels.copy(), data.train.labels.copy()
    strangers = other.train.take(taken).with_channels(data.shape[0])
    pixels[places] = resized(strangers.pixels, data.shape[1:])
    given[places] = UNLABELED
    strange = np.zeros(len(given), bool)
    strange[places] = True
    return replace(data, name=f"{data.name}+{other.name}", train=Images(pixels, given)), strange


class Beyond:
    """An experiment of several trainings for each seed, resumed where it was stopped."""

    def __init__(
        self, settings: Settings, results: Path, runs: Path, bars: Bars, say: Say, data_dir: Path | None
    ) -> None:
        self.settings, self.results, self.runs, self.bars, self.say = settings, results / FOLDER, runs, bars, say
        self.data_dir = data_dir
        self.deadline = float("inf")

    def outliers(self, name: str, seeds: Sequence[int]) -> bool:
        """Train with strangers among the unlabelled images, as they are and with rejection; False if time ran out."""
        data, other = (load(each, data_dir=self.data_dir) for each in (name, OTHERS[name]))
        for seed in self._missing("outliers", name, seeds):
            self.say(f"outliers, {name}, seed {seed}")
            images, strange = mixed(data, other, STRANGERS, seed)
            base = self.settings.changed(method="ebpl", seed=seed)
            arms = {"kept": base, "rejected": base.changed(curriculum__reject_outliers=REJECTED_ABOVE)}
            runs = self._trained({f"outliers-{name}-{arm}": each for arm, each in arms.items()}, images)
            if runs is None:
                return False
            unseen = [load(each, data_dir=self.data_dir) for each in UNSEEN.get(name, ())]
            found = {arm: _of_outliers(run, images, strange, unseen) for arm, run in zip(arms, runs, strict=True)}
            self._save("outliers", name, base, {"other": other.name, "share": STRANGERS, "arms": found})
        return True

    def suggestions(self, name: str, seeds: Sequence[int]) -> bool:
        """Label what is suggested, or as many images at random, and train anew; False if time ran out."""
        data = load(name, data_dir=self.data_dir)
        for seed in self._missing("suggestions", name, seeds):
            base = self.settings.changed(method="ebpl", seed=seed)
            parts = split_for(data, base)
            first = _labelled(data, parts.labeled, parts.validation)
            begun = self._trained({f"suggestions-{name}-before": base.changed(validation_fraction=0.0)}, first)
            if begun is None:
                return False
            chosen = np.array([each.index for each in suggest(begun[0], SUGGESTED, data=first)])
            rest = np.flatnonzero(~first.train.labeled)
            chance = np.random.default_rng(seed).choice(rest, len(chosen), replace=False)
            truth = np.delete(data.train.labels, parts.validation)
            arms = {"suggested": chosen, "random": chance}
            found = {"before": _of_labels(begun[0], truth, np.zeros(0, int), len(data.classes))}
            for arm, added in arms.items():
                more = first.train.labels.copy()
                more[added] = truth[added]
                images = replace(first, train=Images(first.train.pixels, more))
                again = self._trained({f"suggestions-{name}-{arm}": base.changed(validation_fraction=0.0)}, images)
                if again is None:
                    return False
                found[arm] = _of_labels(again[0], truth, added, len(data.classes))
            self._save("suggestions", name, base, {"added": len(chosen), "arms": found})
        return True

    def _missing(self, experiment: str, name: str, seeds: Sequence[int]) -> list[int]:
        return [seed for seed in seeds if not self._place(experiment, name, seed).is_file()]

    def _place(self, experiment: str, name: str, seed: int) -> Path:
        network = f"wrn-{self.settings.model.depth}-{self.settings.model.width}"
        return self.results / f"{experiment}-{name}-{network}-seed{seed}.json"

    def _trained(self, wanted: dict[str, Settings], images: ImageSet) -> list[Run] | None:
        """Finished runs by these names, trained now if need be; None if the time was over before."""
        runs = []
        for name, settings in wanted.items():
            path = self.runs / f"{name}-seed{settings.seed}"
            clear_half(path)
            runs.append(Run(path) if path.is_dir() else Run.create(path, settings, images, {}))
            if telling(runs[-1].settings.to_dict()) != telling(settings.to_dict()):
                raise UsageError(f"{path} was trained with other settings. Remove it, or choose another --runs folder.")
        going = [run for run in runs if not run.finished]
        if going:
            self.say(f"training {', '.join(run.path.name for run in going)}")
            with self.bars([run.path.name for run in going]) as bars:
                errors = api.go_on(going, images, [Brief(bar) for bar in bars], self.deadline)
            for error in errors.values():
                raise error
        return runs if all(run.finished for run in runs) and time.monotonic() < self.deadline else None

    def _save(self, experiment: str, name: str, settings: Settings, found: dict[str, Any]) -> None:
        record = {
            "experiment": experiment,
            "data": name,
            "settings": settings.to_dict(),
            "environment": describe_environment(settings),
            **found,
        }
        write_json(self._place(experiment, name, settings.seed), record)


def _of_outliers(run: Run, images: ImageSet, strange: NDArray[np.bool_], unseen: Sequence[ImageSet]) -> dict[str, Any]:
    """How well energy and distance tell strangers, seen in training or not, and what they did to the labels."""
    device, dtype = device_and_dtype(run.settings)
    model = run.load_model()[0].to(device)
    parts = split_for(images, run.settings)
    _, known = predict_with_features(model, images.train.pixels[parts.labeled], dtype)
    predictions, unknown = predict_with_features(model, images.train.pixels[parts.unlabeled], dtype)
    distances = familiar(known, images.train.labels[parts.labeled]).distances(unknown)
    stranger = strange[parts.unlabeled]
    steps = []
    for step in range(1, run.settings.curriculum.steps + 1):
        rows = _rows(run, f"step-{step}.csv")
        inside = sum(strange[int(row["image"])] for row in rows)
        right = sum(row["truth"] == row["label"] for row in rows)  # a stranger's truth is empty: no label is right
        left_out = [strange[int(row["image"])] for row in _rows(run, f"outliers-{step}.csv")]
        steps.append(
            {
                "step": step,
                "images": len(rows),
                "strangers": int(inside),
                "right": right / max(1, len(rows)),
                "rejected_strangers": sum(left_out) / strange.sum(),
                "rejected_others": (len(left_out) - sum(left_out)) / (~stranger).sum(),
            }
        )
    result = run.metrics()
    return {
        "auroc": _told(predictions.energies[~stranger], predictions.energies[stranger]),
        "auroc_distance": _told(distances[~stranger], distances[stranger]),
        "unseen": {other.name: _of_unseen(model, images, other, dtype) for other in unseen},
        "metrics": result["metrics"],
        "last": result["last"]["metrics"],
        "pseudo_labels": steps,
        "seconds": result["seconds"],
    }


def _of_unseen(model: HybridModel, images: ImageSet, other: ImageSet, dtype: torch.dtype) -> dict[str, float]:
    """How well the energy, and for comparison the confidence, tells test images from those of another dataset."""
    assert images.test is not None
    assert other.test is not None
    strangers = other.test.with_channels(images.shape[0]).pixels[:MOST]
    mine = predict(model, images.test.pixels[:MOST], dtype)
    theirs = predict(model, resized(strangers, images.shape[1:]), dtype)
    return {
        "energy": _told(mine.energies, theirs.energies),
        "confidence": _told(-mine.confidences, -theirs.confidences),
    }


def _told(belonging: NDArray[np.float64], strangers: NDArray[np.float64]) -> float:
    """The area under the ROC curve: how often a stranger has the higher value."""
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([0, 1], [len(belonging), len(strangers)])
    return float(roc_auc_score(truth, np.concatenate([belonging, strangers])))


def _rows(run: Run, name: str) -> list[dict[str, str]]:
    """A table of pseudo-labels, without rows if the run has none such."""
    path = run.path / PSEUDO_LABELS / name
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _of_labels(run: Run, truth: NDArray[Any], added: NDArray[Any], classes: int) -> dict[str, Any]:
    result = run.metrics()
    counts = np.bincount(truth[added], minlength=classes)
    return {"metrics": result["metrics"], "added": counts.tolist(), "seconds": result["seconds"]}


def _labelled(data: ImageSet, labeled: NDArray[Any], left_out: NDArray[Any]) -> ImageSet:
    """The benchmark as own data: few labels, the rest unlabelled, and no validation images."""
    labels = np.full(len(data.train), UNLABELED)
    labels[labeled] = data.train.labels[labeled]
    train = Images(np.delete(data.train.pixels, left_out, axis=0), np.delete(labels, left_out))
    return replace(data, train=train, labels_per_class=None)


def summary(found: Sequence[Record]) -> list[list[str]]:
    """A line for each experiment, dataset, network and arm: means over seeds."""
    lines = [["experiment", "data", "network", "arm", "n", "accuracy %", "ECE %", *COLUMNS]]
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for record in found:
        network = "WRN-{depth}-{width}".format(**record["settings"])
        for arm, values in record["arms"].items():
            groups.setdefault((record["experiment"], record["data"], network, arm), []).append(values)
    for key, arms in groups.items():
        measured = [_mean([arm["metrics"][name] for arm in arms]) for name in ("accuracy", "ece")]
        more = [_mean([column(arm) for arm in arms]) if "auroc" in arms[0] else "" for column in COLUMNS.values()]
        lines.append([*key, str(len(arms)), *measured, *more])
    return lines


def compact(lines: list[list[str]]) -> list[list[str]]:
    """The lines without empty columns; turned, if there are still too many to be read: a line for each measure."""
    kept = [column for column in zip(*lines, strict=True) if any(column[1:])]
    if len(kept) > MOST_COLUMNS:
        data, network, arm = (
            next(column for column in kept if column[0] == name) for name in ("data", "network", "arm")
        )
        heads = ["", *(", ".join(names) for names in zip(data[1:], network[1:], arm[1:], strict=True))]
        return [
            heads,
            *([*column] for column in kept if column not in (data, network, arm) and column[0] != "experiment"),
        ]
    return [[*line] for line in zip(*kept, strict=True)]


def _last(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda arm: arm["pseudo_labels"][-1][name] if any(s[name] for s in arm["pseudo_labels"]) else None


def _unseen(name: str) -> Callable[[dict[str, Any]], float | None]:
    """The mean over datasets that were not seen in training."""
    return lambda arm: fmean(each[name] for each in arm["unseen"].values()) if arm["unseen"] else None


COLUMNS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "AUROC of the energy %": lambda arm: arm["auroc"],
    "of the distance %": lambda arm: arm["auroc_distance"],
    "of the energy, unseen datasets %": _unseen("energy"),
    "of the confidence, unseen datasets %": _unseen("confidence"),
    "strangers left out %": _last("rejected_strangers"),
    "others left out %": _last("rejected_others"),
    "right in the last step %": _last("right"),
}
"""What is shown of outliers, each a share or None."""


def _mean(values: Sequence[float | None]) -> str:
    there = [{"x": value} for value in values if value is not None]
    return str(averaged(there)["x"]) if there else ""


def records(folder: Path) -> list[Record]:
    """All that is kept of these experiments."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / FOLDER).glob("*.json"))]
