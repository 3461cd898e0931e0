"""Open set: classes that nobody has labelled are among the unlabelled images, and are to be told from the known ones.

The protocol of OpenMatch (Saito et al. 2021) and IOMatch (Li et al. 2023): of CIFAR-10 the six animals are known, with
25 labels each; the four vehicles have no label, in training as when the model is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebpl.config import Settings
from ebpl.data.dataset import UNLABELED, Images, ImageSet
from ebpl.data.split import split_for
from ebpl.devices import device_and_dtype
from ebpl.errors import UsageError
from ebpl.models.outliers import fit_detector
from ebpl.models.predictions import predict_with_features
from ebpl.runs import Run
from experiments.field import with_updates
from experiments.multi_run import Arm, MultiRun
from experiments.outliers import REJECTED_ABOVE, auroc

KNOWN = {
    "cifar10": ("bird", "cat", "deer", "dog", "frog", "horse"),
    "digits": ("0", "1", "2", "3", "4", "5"),
}
LABELS = 25
"""Of each known class."""


def open_set(data: ImageSet, known: Sequence[str]) -> tuple[ImageSet, Images]:
    """A benchmark in which only these classes are known, and the test images of the others.

    Training images of the others have no label, and never get one.
    """
    assert data.test is not None
    numbers = np.full(len(data.classes) + 1, UNLABELED)  # the last one is for images without a label
    numbers[[data.classes.index(name) for name in known]] = np.arange(len(known))
    train, test = (Images(part.pixels, numbers[part.labels]) for part in (data.train, data.test))
    mine, others = (test.take(np.flatnonzero(which)) for which in (test.labeled, ~test.labeled))
    return replace(data, name=f"{data.name}-open", classes=tuple(known), train=train, test=mine), others


class OpenSet(MultiRun):
    """EBPL as it is and with outliers rejected, and FixMatch with as many updates; no image is for validation."""

    name = "open_set"
    datasets = ("cifar10",)
    columns = {  # noqa: RUF012
        "AUROC of the energy, unknown classes %": lambda arm: arm["auroc"]["energy"],
        "of the Mahalanobis distance %": lambda arm: arm["auroc"]["distance"],
        "of the confidence %": lambda arm: arm["auroc"]["confidence"],
    }

    def measure(self, data: str, settings: Settings) -> dict[str, Any] | None:
        images, unknown = self._images(data)
        runs = self.trained(self._wanted(data, settings), images)
        if runs is None:
            return None
        found = {arm: measured(run, images, unknown) for arm, run in zip(_arms(settings), runs, strict=True)}
        return {"known": list(images.classes), "labels_per_class": LABELS, "arms": found}

    def prepare(self, data: str, every: Sequence[Settings]) -> bool:
        """Train all seeds at once: the images are the same for all."""
        return (
            self.trained([each for settings in every for each in self._wanted(data, settings)], self._images(data)[0])
            is not None
        )

    def _images(self, data: str) -> tuple[ImageSet, Images]:
        if data not in KNOWN:
            raise UsageError(f"It is not said which classes of {data} are known. Use {' or '.join(KNOWN)}.")
        return open_set(self.load(data), KNOWN[data])

    def _wanted(self, data: str, settings: Settings) -> list[tuple[str, Settings]]:
        return [
            (f"open-set-{data}-{arm.replace(',', '').replace(' ', '-')}", each) for arm, each in _arms(settings).items()
        ]


EXPERIMENT = OpenSet


def _arms(settings: Settings) -> dict[str, Settings]:
    few = settings.changed({"data.labels_per_class": LABELS, "data.validation_fraction": 0.0})
    return {
        "EBPL": few,
        "EBPL, outliers rejected": few.changed({"curriculum.reject_outliers": REJECTED_ABOVE}),
        "FixMatch": with_updates(few, "fixmatch"),
    }


def measured(run: Run, images: ImageSet, unknown: Images) -> Arm:
    """Accuracy and calibration on known classes, and how well each score tells test images of unknown ones."""
    assert images.test is not None
    device, dtype = device_and_dtype(run.settings.runtime)
    model = run.load_model()[0].to(device)
    labeled = split_for(images, run.settings).labeled
    _, seen = predict_with_features(model, images.train.pixels[labeled], dtype)
    detector = fit_detector(seen, images.train.labels[labeled])
    (mine, near), (theirs, far) = (predict_with_features(model, part.pixels, dtype) for part in (images.test, unknown))
    result = run.metrics()
    return {
        "metrics": result["metrics"],
        "auroc": {
            "energy": auroc(mine.energies, theirs.energies),
            "distance": auroc(detector.distances(near), detector.distances(far)),
            "confidence": auroc(-mine.confidences, -theirs.confidences),
        },
        "seconds": result["seconds"],
    }
