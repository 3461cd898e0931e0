"""A run's model as an ONNX file that needs no PyTorch and no ebpl, with a model card beside it."""

from __future__ import annotations

import io
import json
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ebpl import __version__
from ebpl.calibration import CalibrationCheck
from ebpl.errors import RunError, UsageError, number_of
from ebpl.inference.evaluate import opened
from ebpl.io import check_output, write_bytes, write_text
from ebpl.methods import get_method
from ebpl.metrics import METRICS, confidence_direction, in_words
from ebpl.models import HybridModel
from ebpl.models.predictions import predict
from ebpl.runs import Run
from ebpl.runs.reader import updates_of, warnings_of
from ebpl.terminal import duration, literal, markdown_table
from ebpl.training import shortened
from ebpl.training.relabel import described_counts

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
    if not all(np.isfinite(each).all() for each in (probabilities, energies, *asdict(expected).values())):
        raise RunError(
            "The run's model computes numbers that are not finite, so its weights are damaged or training diverged. "
            "Nothing was written."
        )
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


MOST_CLASSES = 50
SHOWN_ENVIRONMENT = ("ebpl", "commit", "python", "torch", "numpy", "platform", "gpu", "device", "dtype", "processes")
"""Of the machine only what computes; no names, paths or command lines of people."""


def model_card(run: Run, description: dict[str, Any], facts: dict[str, Any], file: str) -> str:
    """The card of a run's model in Markdown; `facts` come from the export into `file`."""
    result = run.metrics()
    images: dict[str, Any] = result.get("images") or {}
    sections = {
        "What it is": _what(run, description, facts, result["chosen"]["phase"]),
        "The file": _file(description, facts, file),
        "Data": _data(run, description, images),
        "How well it does": _measures(result),
        "Intended use": [
            "Research, and sorting images of the same kind as the training images: from the same source, prepared the "
            "same way. Have a person look at what matters, first at labels with a low confidence and at outliers.",
        ],
        "Limits": _limits(images, facts),
        "Training": _training(result),
        "Settings": [_table(["setting", "value"], [(name, _value(v)) for name, v in run.settings.to_dict().items()])],
        "Environment": [
            _table(["what", "value"], [(n, _value(v)) for n, v in run.environment().items() if n in SHOWN_ENVIRONMENT])
        ],
    }
    made = f"Written by ebpl {__version__} on {time.strftime('%Y-%m-%d')} from the run {literal(run.path.name)}."
    parts = [f"# Model card: {literal(run.data_name)}, {get_method(run.settings.method).title}", made]
    if told := warnings_of(result):
        parts += ["**Before you use this model:**", "\n".join(f"- {literal(text)}" for text in told)]
    for title, paragraphs in sections.items():
        parts += [f"## {title}", *paragraphs]
    return "\n\n".join(parts) + "\n"


def _what(run: Run, description: dict[str, Any], facts: dict[str, Any], phase: str) -> list[str]:
    channels, height, width = description["image_shape"]
    settings, classes = run.settings, description["classes"]
    kind = "gray" if channels == 1 else "colour"
    method = get_method(settings.method)
    learned = "from the labelled images"
    if settings.curriculum.pseudo_labels != "none" and phase != "initial":
        given = "the predicted class" if settings.curriculum.pseudo_labels == "hard" else "the whole posterior"
        learned += f" and from labels that it gave to unlabelled images itself ({given})"
    return [
        f"A classifier of {kind} images of {width} x {height} pixels (width x height) into {len(classes)} classes: "
        f"{settings.model.network}, {facts['parameters']:,} parameters. It learned the classes {learned}"
        + (", and from all images what the data looks like (an energy-based model)." if method.density else "."),
        f"Method: {method.title} ({method.summary}), after *Pseudo-label Learning with Calibrated Confidence Using an "
        "Energy-based Model* (Toba, Uchida, Hayashi).",
    ]


def _file(description: dict[str, Any], facts: dict[str, Any], file: str) -> list[str]:
    channels, height, width = description["image_shape"]
    rows = [
        ("input `images`", f"uint8, (batch, {height}, {width}, {channels}): pixels from 0 to 255, as read from a file"),
        ("output `probabilities`", f"float32, (batch, {len(description['classes'])}): one for each class"),
        ("output `energy`", "float32, (batch): the higher, the less an image looks like the training images"),
    ]
    return [
        f"{literal(file)} is an ONNX model that takes any number of images at once. Its metadata holds the names of "
        "the classes, the shape of the images and these facts.",
        markdown_table(["name", "what"], rows),
        f"Computed with {literal(facts['runtime'])}, the largest difference to PyTorch on {facts['compared']} random "
        f"images was {facts['probability_difference']:.1e} in a probability and {facts['energy_difference']:.1e} in an "
        "energy.",
    ]


def _data(run: Run, description: dict[str, Any], images: dict[str, Any]) -> list[str]:
    parts = [f"{literal(run.data_name)} (fingerprint of images and labels: {literal(run.source['fingerprint'])})."]
    if not images:
        return [*parts, f"Classes: {', '.join(map(literal, description['classes']))}. How many labels there were was "
                "not recorded."]  # fmt: skip
    labelled: dict[str, int] = images["labelled"]
    chosen = f"{images['validation']} more labelled images chose the weights" if images["validation"] else (
        "no image was set apart to choose the weights"
    )  # fmt: skip
    parts.append(
        f"{sum(labelled.values())} labelled and {images['unlabelled']} unlabelled images were trained on; {chosen}; "
        f"{images['test'] or 'no'} labelled images tested it"
        + ("." if not images.get("test_in_training") else f"{_seen_before(images)}.")
    )
    rows = [(literal(name), str(count)) for name, count in list(labelled.items())[:MOST_CLASSES]]
    if len(labelled) > MOST_CLASSES:
        rows.append((f"{len(labelled) - MOST_CLASSES} more classes", str(sum([*labelled.values()][MOST_CLASSES:]))))
    return [*parts, markdown_table(["class", "labels used"], rows)]


def _measures(result: dict[str, Any]) -> list[str]:
    measures = result["metrics"]
    if not measures:
        return [
            "Not known: there were no labelled test images. Measure it on labelled images of your own before you rely "
            "on it: `ebpl evaluate RUN DATA`."
        ]
    over, rows = measures.get("overconfidence"), result.get("reliability") or []
    word = confidence_direction(over, rows)
    table = markdown_table(
        ["measure", "value"], [(METRICS[n].title, in_words(n, measures[n], word)) for n in METRICS if n in measures]
    )
    bins = [
        (f"{100 * row['above']:.0f} to {100 * row['up_to']:.0f} %", str(row["images"]), *_percent(row)) for row in rows
    ]
    said = "" if over is None else f" its confidence was {abs(100 * over):.1f} % too {'high' if over > 0 else 'low'}"
    said += " on average" + (", no more than chance explains." if word == "neither" else ".") if said else ""
    images = measures.get("images")
    return [
        f"On {'the' if images is None else f'{images:.0f}'} test images{_seen_before(result.get('images'))}:",
        table,
        *_by_class(result.get("by_class")),
        f"Reliability:{said} By confidence (a dash where there were no images):",
        markdown_table(["confidence", "images", "mean confidence", "accuracy"], bins),
    ]


def _seen_before(images: Any) -> str:
    """Whether test images were trained on; nothing where that was not counted."""
    count = images.get("test_in_training") if isinstance(images, dict) else None
    if not isinstance(count, int):
        return ""
    if not count:
        return " that it has not seen"
    return f", of which {number_of(count, 'is', 'are')} also among the training images"


def _by_class(rows: Any) -> list[str]:
    """The table of classes, where the run holds one."""
    if not rows:
        return []
    heads = ["class", "images", "precision", "recall", "95 % interval", "F-score"]
    lines = []
    for row in rows[:MOST_CLASSES]:
        low, high = row["recall_interval"]
        ends = f"{100 * low:.0f} to {100 * high:.0f} %" if row["images"] else "-"
        precision, recall, score = (_share(row[name]) for name in ("precision", "recall", "f_score"))
        lines.append([literal(row["class"]), f"{row['images']:.0f}", precision, recall, ends, score])
    more = f" (the first {MOST_CLASSES} of {len(rows)})" if len(rows) > MOST_CLASSES else ""
    return [f"By class{more}; the interval is that of the recall:", markdown_table(heads, lines)]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _percent(row: dict[str, Any]) -> Sequence[str]:
    return [_share(row[key]) if row["images"] else "-" for key in ("confidence", "accuracy")]


def _limits(images: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    limits = [
        "It is not a medical device. It must not be used for diagnosis, treatment or any other decision about a "
        "person's health.",
        "It always answers with one of its classes, also for images of something else.",
        "Measures and confidence hold for images like those it was measured on. Another camera, scanner, clinic or "
        "preparation can make both wrong; how it does for groups within the data was not examined.",
        "It is one training with one seed; another gives other weights and other numbers.",
    ]
    if facts["outlier_energy"] is not None:
        limits[1] += (
            f" Do not trust it where the energy is higher than {facts['outlier_energy']:.6g}: 99 % of the training "
            "images are below (`outlier_energy` in the metadata)."
        )
    else:
        limits[1] += " It has no density, so its energy is a weak sign of such images."
    if images and min(images["labelled"].values()) < 5:
        limits.append("Some classes had fewer than 5 labels; what it knows of them comes from very few images.")
    return ["\n".join(f"- {limit}" for limit in limits)]


def _training(result: dict[str, Any]) -> list[str]:
    chosen = result["chosen"]
    healed = len(result.get("healed_divergences") or ())
    parts = [
        f"The weights are those of {literal(chosen['phase'])}, epoch {chosen['epoch']} (chosen by "
        f"{literal(chosen['by'])}). Training took {duration(result['seconds'])}"
        + (f" and healed {healed} divergence{'s' * (healed > 1)}." if healed else ".")
    ]
    parts += [less] if (less := shortened(*updates_of(result))) else []
    if check := CalibrationCheck.stored(result.get("check")):
        parts.append(str(check))
    if steps := result.get("pseudo_labels"):
        rows = [
            (
                str(s["step"]),
                str(s["images"]),
                literal(described_counts(s["classes"])) if s.get("classes") else "not known",
                "not known" if s["accuracy"] is None else f"{100 * s['accuracy']:.1f} %",
            )
            for s in steps
        ]
        heads = ["step", "images", "by class", "of them right"]
        parts += ["Labels that it gave itself:", markdown_table(heads, rows)]
    return parts


def _table(heads: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    return markdown_table(heads, [(f"`{name}`", value) for name, value in rows])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else literal(value)
