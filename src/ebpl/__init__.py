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

__version__ = "0.2.0"

if TYPE_CHECKING:
    from ebpl.api import resume as resume
    from ebpl.api import train as train
    from ebpl.config import Settings as Settings
    from ebpl.config.presets import preset as preset
    from ebpl.data import load as load
    from ebpl.data.dataset import Images as Images
    from ebpl.data.dataset import ImageSet as ImageSet
    from ebpl.data.dataset import from_arrays as from_arrays
    from ebpl.data.split import Split as Split
    from ebpl.data.split import split as split
    from ebpl.errors import DataError as DataError
    from ebpl.errors import DivergedError as DivergedError
    from ebpl.errors import EbplError as EbplError
    from ebpl.errors import RunError as RunError
    from ebpl.errors import SomeFailedError as SomeFailedError
    from ebpl.errors import UsageError as UsageError
    from ebpl.errors import WriteError as WriteError
    from ebpl.estimator import EBPLClassifier as EBPLClassifier
    from ebpl.inference.evaluate import evaluate as evaluate
    from ebpl.inference.export import export as export
    from ebpl.inference.predict import predict as predict
    from ebpl.inference.predict import predict_set as predict_set
    from ebpl.inspection import Inspection as Inspection
    from ebpl.inspection import inspect as inspect
    from ebpl.labeling import add_labels as add_labels
    from ebpl.labeling import suggest as suggest
    from ebpl.labeling.label_errors import label_errors as label_errors
    from ebpl.metrics import measure as measure
    from ebpl.reporting import report as report
    from ebpl.runs import Run as Run

_HOME = {
    "resume": "ebpl.api",
    "train": "ebpl.api",
    "Settings": "ebpl.config",
    "preset": "ebpl.config.presets",
    "load": "ebpl.data",
    "Images": "ebpl.data.dataset",
    "ImageSet": "ebpl.data.dataset",
    "from_arrays": "ebpl.data.dataset",
    "Split": "ebpl.data.split",
    "split": "ebpl.data.split",
    "DataError": "ebpl.errors",
    "DivergedError": "ebpl.errors",
    "EbplError": "ebpl.errors",
    "RunError": "ebpl.errors",
    "SomeFailedError": "ebpl.errors",
    "UsageError": "ebpl.errors",
    "WriteError": "ebpl.errors",
    "EBPLClassifier": "ebpl.estimator",
    "evaluate": "ebpl.inference.evaluate",
    "export": "ebpl.inference.export",
    "predict": "ebpl.inference.predict",
    "predict_set": "ebpl.inference.predict",
    "Inspection": "ebpl.inspection",
    "inspect": "ebpl.inspection",
    "suggest": "ebpl.labeling",
    "add_labels": "ebpl.labeling",
    "label_errors": "ebpl.labeling.label_errors",
    "measure": "ebpl.metrics",
    "report": "ebpl.reporting",
    "Run": "ebpl.runs",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ebpl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
