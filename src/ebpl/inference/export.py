"""A run's model as an ONNX file that needs no PyTorch and no ebpl, with a model card beside it."""

from __future__ import annotations

import io
import json
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ebpl import __version__
from ebpl.errors import RunError, UsageError, is_memory
from ebpl.inference.class_mix import used_mix
from ebpl.inference.model_card import encoder_name, model_card
from ebpl.inference.sources import opened
from ebpl.io import check_output, write_bytes, write_text
from ebpl.models import HybridModel
from ebpl.models.encoder import EncodedImages, Preparation
from ebpl.models.fine_tuned_encoder import FineTunedEncoder, Pixels
from ebpl.models.predictions import predict
from ebpl.runs import Run

NAME = "model.onnx"
OPSET = 17
"""Old enough for runtimes of some years; the graph needs nothing newer."""
COMPARED, COMPARED_ENCODED = 64, 8
"""Random images that are computed both ways; fewer for an encoder, which takes about a tenth of a second an image."""
LARGEST_DIFFERENCE, LARGEST_ENCODED_DIFFERENCE = 1e-4, 1e-3
"""In a probability, and in an energy relative to its size: float32 sums in another order stay far below.

An encoder's features are rounded to 16 bits, in the graph as well. Where a feature is as near to one such number as to
the next, another order of additions can round it to the other: of about one in a hundred features the last digit
differs. In probabilities of photographs that was up to 4e-5; a sharper classifier makes more of it.
"""
OUTLIER_QUANTILE = 0.99


class Whole(nn.Module):
    """All from the pixels of a file to probabilities and energies, as the exported graph holds it."""

    def __init__(self, model: HybridModel) -> None:
        super().__init__()
        self.model = model
        _, height, width = model.architecture.image_shape
        self.prepare: nn.Module = ChannelsFirst()
        if isinstance(model.features, EncodedImages):
            self.prepare = Preparation(model.features.load(), height, width)
        elif isinstance(model.features, FineTunedEncoder):
            self.prepare = Pixels(height, width, model.features.size)
        elif not model.features.takes_images:
            raise UsageError("The model takes rows of numbers, not images, and cannot be exported. Pickle it.")

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (N, H, W, C) as uint8 in; probabilities (N, classes) and energies (N) out."""
        scores, energy = self.model(self.model.features.scale(self.prepare(images)))
        return torch.softmax(scores, 1), energy


class ChannelsFirst(nn.Module):
    """What `Backbone.prepare` does with images."""

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, H, W, C) in, (N, C, H, W) out."""
        return images.permute(0, 3, 1, 2)


def export(
    run: Run | str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *, force: bool = False
) -> Path:
    """Write a finished run's model as ONNX, and a model card beside it; returns the path of the model.

    The default is `model.onnx` and `model_card.md` in the run directory, which are replaced; other files that exist
    are replaced only with `force`. The file is written when ONNX Runtime has computed with it what the run's model
    computes.
    """
    onnx, runtime = _packages()
    run = opened(run)
    path = run.path / NAME if output is None else Path(output)
    if path.suffix != ".onnx":
        raise UsageError(f"{path} is no name for an ONNX model: give one that ends in .onnx.")
    for place in (path, card_path(path)) if output is not None else ():
        own = path.absolute() == (run.path / NAME).absolute()
        check_output(place, force or own, inside=run.path)
    if not run.finished:
        raise RunError(f"{run.path} is not finished. Continue it with: ebpl resume {run.path}")
    model, description = run.load_model()
    whole = Whole(model).eval()
    graph = onnx.load_from_string(_traced(whole, description["image_shape"]))
    facts = _differences(graph.SerializeToString(), model, description["image_shape"], runtime)
    facts["encoder"] = _encoder_facts(whole)
    try:
        facts |= {"parameters": model.parameter_count(), "outlier_energy": _outlier_energy(run)}
        card = model_card(run, description, facts, path.name)
        _describe(graph, onnx, _metadata(run, description, facts))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise RunError(f"The metadata of {run.path} is damaged or of another version: {error!r}") from error
    write_bytes(path, graph.SerializeToString())
    write_text(card_path(path), card)
    return path


def _outlier_energy(run: Run) -> float | None:
    """The energy that outliers are above; None where they are not judged by the energy."""
    limit = run.outlier_limit(OUTLIER_QUANTILE)
    return limit.value if limit and limit.score == "energies" else None


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


def _encoder_facts(whole: Whole) -> dict[str, Any] | None:
    """What is known of the encoder that the file holds; None where it holds none."""
    features, prepare = whole.model.features, whole.prepare
    if isinstance(features, FineTunedEncoder):
        options, network = features.options, features.network
    elif isinstance(features, EncodedImages) and isinstance(prepare, Preparation):
        options, network = {**asdict(features.load().info), **whole.model.architecture.options}, prepare.network
    else:
        return None
    assert isinstance(prepare, Preparation | Pixels)
    return {
        "name": encoder_name(options["encoder"]),
        **{name: options[name] for name in ("title", "licence", "source", "size", "digest")},
        "resizes": prepare.resize.needed,
        "fine_tuned": isinstance(features, FineTunedEncoder),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
    }


def _traced(whole: Whole, shape: list[int]) -> bytes:
    channels, height, width = shape
    example = torch.zeros(2, height, width, channels, dtype=torch.uint8)
    names = ["images", "probabilities", "energy"]
    made = io.BytesIO()
    try:
        with warnings.catch_warnings():
            # PyTorch's newer exporter needs onnxscript and takes twenty times as long for the same graph
            warnings.simplefilter("ignore", DeprecationWarning)
            # sizes of images are constants in the graph; that batches of another size are not is compared
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            torch.onnx.export(
                whole,
                (example,),
                made,  # type: ignore[arg-type] # this exporter takes a file too
                dynamo=False,
                opset_version=OPSET,
                input_names=names[:1],
                output_names=names[1:],
                dynamic_axes={name: {0: "batch"} for name in names},
            )
    except RuntimeError as error:  # a network that is not ours may hold what ONNX has not
        if is_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"The network cannot be written as ONNX, opset {OPSET}: {reason} Predict with `ebpl predict` instead."
        ) from error
    return made.getvalue()


def _differences(graph: bytes, model: HybridModel, shape: list[int], runtime: Any) -> dict[str, Any]:
    """What ONNX Runtime computes with the graph, against what ebpl predicts; an error where they differ."""
    channels, height, width = shape
    encoded = isinstance(model.features, EncodedImages | FineTunedEncoder)
    compared = COMPARED_ENCODED if encoded else COMPARED
    allowed = LARGEST_ENCODED_DIFFERENCE if encoded else LARGEST_DIFFERENCE
    images = np.random.default_rng(0).integers(0, 256, (compared, height, width, channels), dtype=np.uint8)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    probabilities, energies = session.run(["probabilities", "energy"], {"images": images})
    expected = predict(model, images)
    both = (probabilities, energies, expected.probabilities, expected.energies)
    if not all(np.isfinite(each).all() for each in both):
        raise RunError(
            "The run's model computes numbers that are not finite, so its weights are damaged or training diverged. "
            "Nothing was written."
        )
    probability = float(np.abs(probabilities - expected.probabilities).max())
    energy = float(np.abs(energies - expected.energies).max())
    if not max(probability, energy / (1 + float(np.abs(expected.energies).max()))) <= allowed:
        raise RunError(
            f"The exported model does not compute what the run's does: probabilities differ by {probability:.1e}, "
            f"energies by {energy:.1e}. Nothing was written. Try other versions of torch and onnxruntime "
            f"(here: {torch.__version__} and {runtime.__version__})."
        )
    return {
        "compared": compared,
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
        "network": encoder_name(settings.model.network),
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
    if mix := used_mix(result, settings.data.class_mix):
        made["class_mix"] = json.dumps(mix.shares)
    if sets := result.get("prediction_sets"):
        made["prediction_sets"] = json.dumps({name: sets[name] for name in ("wanted", "least_probability")})
    if facts["encoder"] is not None:
        made["encoder"] = json.dumps(facts["encoder"], ensure_ascii=False)
    if facts["outlier_energy"] is not None:
        made["outlier_energy"] = repr(facts["outlier_energy"])
    return made


def _describe(graph: Any, onnx: Any, metadata: dict[str, str]) -> None:
    graph.producer_name, graph.producer_version = "ebpl", __version__
    graph.graph.name = "ebpl"
    onnx.helper.set_model_props(graph, metadata)
    onnx.checker.check_model(graph, full_check=True)
