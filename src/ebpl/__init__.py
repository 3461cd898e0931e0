"""Pseudo-label learning with calibrated confidence using an energy-based model (EBPL).

>>> import ebpl
>>> data = ebpl.load("digits")
>>> data.shape
(1, 8, 8)

The names below are loaded when they are first used, so that `import ebpl` and `ebpl --help` are quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ebpl.api import evaluate as evaluate
    from ebpl.api import resume as resume
    from ebpl.api import resume_all as resume_all
    from ebpl.api import train as train
    from ebpl.api import train_seeds as train_seeds
    from ebpl.data.images import Images as Images
    from ebpl.data.images import ImageSet as ImageSet
    from ebpl.data.images import from_arrays as from_arrays
    from ebpl.data.load import load as load
    from ebpl.data.split import Split as Split
    from ebpl.data.split import split as split
    from ebpl.errors import EbplError as EbplError
    from ebpl.estimator import EBPLClassifier as EBPLClassifier
    from ebpl.exporting import export as export
    from ebpl.inspecting import Inspection as Inspection
    from ebpl.inspecting import inspect as inspect
    from ebpl.labeling.adding import add_labels as add_labels
    from ebpl.labeling.suggesting import suggest as suggest
    from ebpl.learning.prediction import Predictions as Predictions
    from ebpl.learning.prediction import predict as predict
    from ebpl.measuring.summary import measure as measure
    from ebpl.reporting.page.make import report as report
    from ebpl.runs import Run as Run
    from ebpl.settings import Settings as Settings
    from ebpl.settings import preset as preset

_HOME = {
    "evaluate": "ebpl.api",
    "resume": "ebpl.api",
    "resume_all": "ebpl.api",
    "train": "ebpl.api",
    "train_seeds": "ebpl.api",
    "Images": "ebpl.data.images",
    "ImageSet": "ebpl.data.images",
    "from_arrays": "ebpl.data.images",
    "load": "ebpl.data.load",
    "Split": "ebpl.data.split",
    "split": "ebpl.data.split",
    "EbplError": "ebpl.errors",
    "Inspection": "ebpl.inspecting",
    "inspect": "ebpl.inspecting",
    "add_labels": "ebpl.labeling.adding",
    "suggest": "ebpl.labeling.suggesting",
    "EBPLClassifier": "ebpl.estimator",
    "export": "ebpl.exporting",
    "Predictions": "ebpl.learning.prediction",
    "predict": "ebpl.learning.prediction",
    "measure": "ebpl.measuring.summary",
    "report": "ebpl.reporting.page.make",
    "Run": "ebpl.runs",
    "Settings": "ebpl.settings",
    "preset": "ebpl.settings",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ebpl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
