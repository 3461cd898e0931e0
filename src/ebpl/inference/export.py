"""A run's model as an ONNX file that needs no PyTorch and no ebpl, with a model card beside it."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ebpl import __version__
from ebpl.errors import RunError, UsageError
from ebpl.inference.evaluate import opened
from ebpl.inference.model_card import model_card
from ebpl.io import write_bytes, write_text
from ebpl.models import HybridModel
from ebpl.models.predictions import predict
from ebpl.runs import Run

NAME = "model.onnx"
OPSET = 17
"""Old enough for runtimes of some years; the graph needs nothing newer."""
COMPARED = 64
LARGEST_DIFFERENCE = 1e-4
"""In a probability, and in an energy relative to its size: float32 sums in another order stay far below."""
OUTLIER_QUANTILE = 0.99


class Whole(nn.Module):
    """All from the pixels of a file to probabilities and energies, as the exported graph holds it."""

    def __init__(self, model: HybridModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (N, H, W, C) as uint8 in; probabilities (N, classes) and energies (N) out."""
        scores, energy = self.model(self.model.features.scale(images.permute(0, 3, 1, 2)))
        return torch.softmax(scores, 1), energy


def export(run: Run | str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write a finished run's model as ONNX, and a model card beside it; returns the path of the model.

    The default is `model.onnx` and `model_card.md` in the run directory. The file is written when ONNX Runtime has
    computed with it what the run's model computes.
    """
    onnx, runtime = _packages()
    run = opened(run)
    path = run.path / NAME if output is None else Path(output)
    if path.suffix != ".onnx":
        raise UsageError(f"{path} is no name for an ONNX model: give one that ends in .onnx.")
    if not run.finished:
        raise RunError(f"{run.path} is not finished. Continue it with: ebpl resume {run.path}")
    model, description = run.load_model()
    graph = onnx.load_from_string(_traced(model, description["image_shape"]))
    facts = _differences(graph.SerializeToString(), model, description["image_shape"], runtime)
    try:
        facts |= {"parameters": model.parameter_count(), "outlier_energy": run.energy_limit(OUTLIER_QUANTILE)}
        card = model_card(run, description, facts, path.name)
        _describe(graph, onnx, _metadata(run, description, facts))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"What {run.path} tells of itself is damaged or of another version: {error!r}") from error
    write_bytes(path, graph.SerializeToString())
    write_text(card_path(path), card)
    return path


def card_path(path: Path) -> Path:
    """Where the card of a model is: `blood.onnx` has `blood_card.md`."""
    return path.with_name(f"{path.stem}_card.md")


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UsageError("Exporting needs the extra: pip install 'ebpl[export]'") from error
    return onnx, onnxruntime


def _traced(model: HybridModel, shape: list[int]) -> bytes:
    channels, height, width = shape
    example = torch.zeros(2, height, width, channels, dtype=torch.uint8)
    names = ["images", "probabilities", "energy"]
    made = io.BytesIO()
    with warnings.catch_warnings():
        # PyTorch's newer exporter needs onnxscript and takes twenty times as long for the same graph
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            Whole(model).eval(),
            (example,),
            made,  # type: ignore[arg-type] # this exporter takes a file too
            dynamo=False,
            opset_version=OPSET,
            input_names=names[:1],
            output_names=names[1:],
            dynamic_axes={name: {0: "batch"} for name in names},
        )
    return made.getvalue()


def _differences(graph: bytes, model: HybridModel, shape: list[int], runtime: Any) -> dict[str, Any]:
    """What ONNX Runtime computes with the graph, against what ebpl predicts; an error where they differ."""
    channels, height, width = shape
    images = np.random.default_rng(0).integers(0, 256, (COMPARED, height, width, channels), dtype=np.uint8)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    probabilities, energies = session.run(["probabilities", "energy"], {"images": images})
    expected = predict(model, images)
    probability = float(np.abs(probabilities - expected.probabilities).max())
    energy = float(np.abs(energies - expected.energies).max())
    if not max(probability, energy / (1 + float(np.abs(expected.energies).max()))) <= LARGEST_DIFFERENCE:
        raise RunError(
            f"The exported model does not compute what the run's does: probabilities differ by {probability:.1e}, "
            f"energies by {energy:.1e}. Nothing was written. Try other versions of torch and onnxruntime "
            f"(here: {torch.__version__} and {runtime.__version__})."
        )
    return {
        "compared": COMPARED,
        "probability_difference": probability,
        "energy_difference": energy,
        "runtime": f"onnxruntime {runtime.__version__}",
    }


def _metadata(run: Run, description: dict[str, Any], facts: dict[str, Any]) -> dict[str, str]:
    """What a program needs to use the model, and where it comes from; values are texts, some of them JSON."""
    channels, height, width = description["image_shape"]
    result, settings = run.metrics(), run.settings
    training = {
        "data": run.data_name,
        "fingerprint": run.source["fingerprint"],
        "images": result.get("images"),
        "method": settings.method,
        "pseudo_labels": settings.curriculum.pseudo_labels,
        "network": settings.model.network,
        "seed": settings.seed,
        "chosen": result["chosen"],
        "metrics": result["metrics"],
        "ebpl": run.environment().get("ebpl"),
        "commit": run.environment().get("commit"),
    }
    made = {
        "classes": json.dumps(description["classes"], ensure_ascii=False),
        "image_shape": json.dumps([height, width, channels]),
        "input": "images: uint8 pixels 0 to 255, (batch, height, width, channels); all else happens inside",
        "outputs": "probabilities: (batch, classes); energy: (batch), higher = less like the training images",
        "training": json.dumps(training, ensure_ascii=False),
        "limits": "For research. Not a medical device.",
    }
    if facts["outlier_energy"] is not None:
        made["outlier_energy"] = repr(facts["outlier_energy"])
    return made


def _describe(graph: Any, onnx: Any, metadata: dict[str, str]) -> None:
    graph.producer_name, graph.producer_version = "ebpl", __version__
    graph.graph.name = "ebpl"
    onnx.helper.set_model_props(graph, metadata)
    onnx.checker.check_model(graph, full_check=True)
