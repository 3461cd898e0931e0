"""The card of a model in Markdown: what it is, what it was trained on, how well it does, and where its limits are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebpl import __version__
from ebpl.calibration import CalibrationCheck
from ebpl.calibration.abstention import choose_threshold
from ebpl.errors import number_of
from ebpl.inference.class_mix import mix_name, used_mix
from ebpl.methods import get_method
from ebpl.metrics import METRICS, confidence_direction, in_words
from ebpl.metrics.classification import wilson_interval
from ebpl.metrics.intervals import interval_in_words
from ebpl.runs import Run
from ebpl.runs.reader import read_answers, updates_of, warnings_of
from ebpl.terminal import duration, literal, markdown_table
from ebpl.training import shortened
from ebpl.training.relabel import described_counts

MOST_CLASSES = 50
ACCURACIES = (0.9, 0.95, 0.99)
"""That the card says from which confidence on they are promised."""
SHOWN_ENVIRONMENT = ("ebpl", "commit", "python", "torch", "numpy", "platform", "gpu", "device", "dtype", "processes")
"""Of the machine only what computes; no names, paths or command lines of people."""
PAPER = "*Pseudo-label Learning with Calibrated Confidence Using an Energy-based Model* (Toba, Uchida, Hayashi)"


def model_card(run: Run, description: dict[str, Any], facts: dict[str, Any], file: str) -> str:
    """The card of a run's model in Markdown; `facts` come from the export into `file`."""
    result = run.metrics()
    images: dict[str, Any] = result.get("images") or {}
    sections = {
        "What it is": _what(run, description, facts, result["chosen"]["phase"]),
        "The file": _file(description, facts, file),
        "Data": _data(run, description, images),
        "Class mix": _mix(run, result),
        "How well it does": _measures(result),
        "Prediction sets and abstention": [*_sets(result.get("prediction_sets")), *_abstention(run)],
        "Intended use": [
            "Research, and sorting images of the same kind as the training images: from the same source, prepared the "
            "same way. Have a person look at what matters, first at labels with a low confidence and at outliers.",
        ],
        "Limits": _limits(images, facts),
        "Training": _training(result),
        "Settings": [_table(["setting", "value"], _settings(run))],
        "Environment": [
            _table(["what", "value"], [(n, _value(v)) for n, v in run.environment().items() if n in SHOWN_ENVIRONMENT])
        ],
    }
    made = f"Written by ebpl {__version__} on {time.strftime('%Y-%m-%d')} from the run {literal(run.path.name)}."
    parts = [f"# Model card: {literal(run.data_name)}, {get_method(run.settings.method).title}", made]
    if told := warnings_of(result):
        parts += ["**Before you use this model:**", "\n".join(f"- {literal(text)}" for text in told)]
    for title, paragraphs in sections.items():
        parts += [f"## {title}", *paragraphs] if paragraphs else []
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
    if not method.pseudo_labels and any(term.stream == "unlabeled" for term in method.terms(settings)):
        learned += " and from what it predicted for unlabelled images"
    network = f"{settings.model.network}, {facts['parameters']:,} parameters"
    encoder = facts.get("encoder")
    if encoder:
        heads = "two heads" if method.density else "a linear classifier"
        network = f"{heads} with {facts['parameters']:,} parameters on the features of a pretrained encoder"
        if encoder["fine_tuned"]:
            network = f"a pretrained encoder that was fine-tuned, with {heads}: {facts['parameters']:,} parameters"
    return [
        f"A classifier of {kind} images of {width} x {height} pixels (width x height) into {len(classes)} classes: "
        f"{network}. It learned the classes {learned}"
        + (", and from all images what the data looks like (an energy-based model)." if method.density else "."),
        *(_encoder(encoder) if encoder else []),
        f"Method: {method.title} ({method.summary})" + (f", after {PAPER}." if method.pseudo_labels else "."),
    ]


def _encoder(encoder: dict[str, Any]) -> list[str]:
    """What a reader must know of an encoder whose weights are in the file."""
    size = f"{encoder['size']} x {encoder['size']} pixels"
    rows = [
        ("name", literal(encoder["name"])),
        ("network", f"{literal(encoder['title'])}, {encoder['parameters']:,} parameters"),
        ("input", f"{size}; the file resizes its images to that" if encoder["resizes"] else size),
        ("licence of the weights", literal(encoder["licence"])),
        ("source of the weights", literal(encoder["source"])),
        ("digest", literal(encoder["digest"])),
    ]
    learned = "has learned more from these" if encoder["fine_tuned"] else "has not been changed"
    return [
        f"The encoder was trained on other images and {learned}. Its weights are part of the file, so their "
        "licence applies to whoever passes the file on:",
        markdown_table(["encoder", "what"], rows),
    ]


def encoder_name(network: str) -> str:
    """A network without the folders of somebody's machine, which are in the name of an encoder that is a file.

    >>> encoder_name("/home/ada/scans.toml"), encoder_name("timm:resnet50")
    ('scans.toml', 'timm:resnet50')
    """
    return Path(network).name if network.lower().endswith(".toml") else network


def _settings(run: Run) -> list[tuple[str, str]]:
    """All settings, with files by their names alone."""
    values = run.settings.to_dict()
    short = {"model.encoder": encoder_name, "data.class_mix": mix_name}
    return [(name, _value(short[name](value) if name in short and value else value)) for name, value in values.items()]


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
    return parts


def _mix(run: Run, result: dict[str, Any]) -> list[str]:
    """Which mix the labels have, and which one probabilities are for."""
    mix = used_mix(result, run.settings.data.class_mix)
    if mix is None:
        return []
    heads, rows = ["class", "labels used", "share of the labels", "probabilities are for"], []
    for i, name in enumerate(mix.classes[:MOST_CLASSES]):
        ends = [_ends(mix.interval[i])] if mix.interval else []
        rows.append([literal(name), str(mix.labels[i]), _share(mix.label_shares[i]), _share(mix.shares[i]), *ends])
    if more := len(mix.classes) - MOST_CLASSES:
        labels, shares = sum(mix.labels[MOST_CLASSES:]), sum(mix.shares[MOST_CLASSES:])
        rest = [f"{more} more classes", str(labels), _share(labels / sum(mix.labels)), _share(shares)]
        rows += [[*rest, *(["-"] if mix.interval else [])]] if more > 0 else []
    table = markdown_table([*heads, *(["95 % interval"] if mix.interval else [])], rows)
    return [" ".join(mix.sentences()), table]


def _ends(interval: Sequence[float]) -> str:
    return f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f} %"


def _measures(result: dict[str, Any]) -> list[str]:
    measures = result["metrics"]
    if not measures:
        return [
            "Not known: there were no labelled test images. Measure it on labelled images of your own before you rely "
            "on it: `ebpl evaluate RUN DATA`."
        ]
    over, rows = measures.get("overconfidence"), result.get("reliability") or []
    word = confidence_direction(over, rows)
    ends: dict[str, Any] = result.get("intervals") or {}
    shown = [n for n in METRICS if n in measures]
    cells = [(METRICS[n].title, in_words(n, measures[n], word), interval_in_words(n, ends.get(n))) for n in shown]
    table = markdown_table(["measure", "value", "95 % interval"], cells)
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
    heads = ["class", "images", "recall", "95 % interval", "precision", "95 % interval", "confidence", "F-score"]
    lines = []
    for row in rows[:MOST_CLASSES]:
        of_recall, of_precision = (
            _ends(row[f"{name}_interval"]) if row.get(f"{name}_interval") and row.get(there) else "-"
            for name, there in (("recall", "images"), ("precision", "predicted"))
        )
        recall, precision, sure, score = (_share(row.get(n)) for n in ("recall", "precision", "confidence", "f_score"))
        images = f"{row['images']:.0f}"
        lines.append([literal(row["class"]), images, recall, of_recall, precision, of_precision, sure, score])
    more = f" (the first {MOST_CLASSES} of {len(rows)})" if len(rows) > MOST_CLASSES else ""
    told = "the confidence is the mean over predictions of the class, and calibrated if it is the precision"
    return [f"By class{more}; {told}:", markdown_table(heads, lines)]


def _sets(found: Any) -> list[str]:
    """How to make prediction sets, and how they did on the test images; nothing where the run did not measure it."""
    if not found:
        return []
    ends, size = _ends(found["coverage_interval"]), f"{found['mean_size']:.2f}"
    heads = ["class", "images", "coverage", "95 % interval", "mean size"]
    rows = [
        [literal(row["class"]), str(row["images"]), _share(row["coverage"]), _ends(row["coverage_interval"]),
         f"{row['mean_size']:.2f}"]
        for row in found["by_class"][:MOST_CLASSES] if row["images"]
    ]  # fmt: skip
    return [
        f"The classes with a probability of at least {found['least_probability']:.4f} are a set that holds the true "
        f"class of {100 * found['wanted']:g} % of images like the test images (split conformal prediction). Measured "
        f"on the {found['images']} test images, each by a threshold from the others, {_share(found['coverage'])} of "
        f"the sets held it (95 % interval {ends}), at a mean size of {size}; {_share(found['single'])} had one class "
        f"and {_share(found['empty'])} none. It is not promised for each class:",
        markdown_table(heads, rows),
    ]


def _abstention(run: Run) -> list[str]:
    """From which confidence on labels have a wanted accuracy, by the test images; nothing where a run lacks them."""
    if (answers := read_answers(run.path)) is None:
        return []
    confidences, right = answers
    rows = []
    for accuracy in ACCURACIES:
        found = choose_threshold(confidences, right, accuracy)
        if found.threshold is None:
            cells = ["none", "-", "-"]
        else:
            ends = _ends(wilson_interval(found.right, found.answered))
            cells = [f"{found.threshold:.2f}", _share(found.answered / found.labels), f"{found.right} ({ends})"]
        rows.append([f"{100 * accuracy:g} %", *cells])
    heads = ["wanted accuracy", "label at a confidence of at least", "images labelled", "right, with 95 % interval"]
    return [
        f"From this confidence on, labels have a wanted accuracy, each with 95 % confidence, by the {len(right)} test "
        "images (none: they are too few to promise it, or the model is not that accurate):",
        markdown_table(heads, rows),
    ]


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
    if encoder := facts.get("encoder"):
        only = "" if encoder["fine_tuned"] else "tells apart only what its encoder does, and "
        limits.append(f"It {only}takes over whatever the encoder learned from its own images, good or bad.")
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
