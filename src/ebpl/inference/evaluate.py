"""Metrics of a run, for one seed or several, and the result that a finished training writes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ebpl.calibration import CalibrationCheck, before_and_after, warnings_of
from ebpl.calibration.class_mix import reweight
from ebpl.calibration.conformal import calibrate, check_coverage, check_method, cross_fitted, measure_sets
from ebpl.config import Settings
from ebpl.data.dataset import Images
from ebpl.devices import device_and_dtype
from ebpl.errors import RunError
from ebpl.inference.class_mix import used_mix
from ebpl.inference.sources import Data, model_of, opened, test_images
from ebpl.io import write_json
from ebpl.methods import get_method
from ebpl.metrics import by_bin, measure, spread
from ebpl.metrics.calibration import Floats, Labels
from ebpl.metrics.classification import by_class
from ebpl.metrics.intervals import intervals
from ebpl.models.predictions import predict
from ebpl.runs import Run, lost_seeds, readable_seeds, resume_command, seed_folders
from ebpl.runs.reader import PSEUDO_LABELS, TEST_METRICS, read, read_table
from ebpl.sampling import as_pixels
from ebpl.training import judged_every, made_updates
from ebpl.training.relabel import Phase
from ebpl.training.train_state import TrainState
from ebpl.training.training_set import TrainingSet

if TYPE_CHECKING:
    from ebpl.models import HybridModel
    from ebpl.training.trainer import Trainer

SET_COVERAGE, LEAST_FOR_SETS = 0.9, 20
"""The coverage of the prediction sets that report and model card show, and labels that they need."""
MOST_DIGESTS = 200_000
"""Of more training images a run keeps no digests."""


def evaluate(
    run: Run | str | os.PathLike[str],
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
    coverage: float | None = None,
    set_method: str = "lac",
    by_class: bool = False,
    class_mix: str | os.PathLike[str] | None = None,
    details: bool = False,
) -> dict[str, Any]:
    """All metrics of a run's weights: on its own test images, or on all labelled images of other data.

    For a folder of several seeds it is the evaluation of each, of the mean of their probabilities (`ensemble`), and
    mean and standard deviation over seeds.

    With a `coverage` there is an entry `prediction_sets`: how often the sets of `ebpl.predict_set` held the true class,
    and their mean size, each image by thresholds from the others. With a `class_mix`, probabilities are for it instead
    of that of the run: "labels", "balanced", or a CSV of class and share.

    With `details` it is all that `ebpl evaluate --json` writes: `metrics` and their 95 % `intervals`, `by_class` with
    recall, precision and confidence, the bins of the reliability diagram, and warnings, which are logged in any case.
    """
    how: dict[str, Any] = {"data_dir": data_dir, "skip_unreadable": skip_unreadable, "coverage": coverage}
    how |= {"set_method": set_method, "by_class": by_class, "class_mix": class_mix}
    if not isinstance(run, Run) and seed_folders(Path(run)):
        return evaluation_of_seeds(Path(run), data, **how)
    found = evaluation(run, data, **how)
    for note in (*found["notes"], *found["warnings"]):
        logging.getLogger("ebpl").warning("%s", note.removeprefix("Warning: "))
    if details:
        return found
    measures: dict[str, Any] = found["metrics"]
    return measures if coverage is None else {**measures, "prediction_sets": found["prediction_sets"]}


def evaluation(
    run: Run | str | os.PathLike[str],
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
    coverage: float | None = None,
    set_method: str = "lac",
    by_class: bool = False,
    class_mix: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Measures, reliability bins, how the weights were chosen, and what to know of the images and of the model."""
    run = opened(run)
    found, probabilities, labels = _evaluated(run, data, data_dir, skip_unreadable, class_mix)
    classes = [row["class"] for row in found["by_class"]]
    return {**found, **_sets(probabilities, labels, classes, coverage, set_method, by_class)}


def _evaluated(
    run: Run, data: Data | None, data_dir: Any, skip_unreadable: bool, class_mix: str | os.PathLike[str] | None
) -> tuple[dict[str, Any], Floats, Labels]:
    """The evaluation of a run, with the probabilities and labels that it is of."""
    model, description = model_of(run, class_mix)
    images, notes = test_images(run, data, data_dir, description, skip_unreadable)
    probabilities = _predicted(model, run.settings, images)
    found = _evaluation(probabilities, images.labels, description["classes"], description["chosen"])
    sizes = {"images": {"test": found["metrics"]["images"]}}
    warnings = warnings_of({**found, **sizes}, "test image" if data is None else "labelled image")
    check = CalibrationCheck.stored(run.metrics().get("check")) if run.finished else None
    found |= _calibrations(probabilities, images.labels, check, model.log_mix)
    told = [*notes, *([] if class_mix is not None else _other_mix(run, found["by_class"]))]
    return {**found, "notes": told, "warnings": warnings}, probabilities, images.labels


def _other_mix(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note where images have another class mix than the one that a run's probabilities are for."""
    mix = used_mix(run.metrics(), run.settings.data.class_mix) if run.finished else None
    if mix is None or list(mix.classes) != [row["class"] for row in rows]:
        return []
    if not mix.differs_from([row["images"] for row in rows]):
        return []
    other = "These images have another one: --class-mix FILE gives probabilities for that"
    other += ", and training with --class-mix auto estimates it." if mix.is_of_labels else "."
    return [f"{mix.sentences()[0]} {other}"]


def _calibrations(
    probabilities: Floats, labels: Labels, check: CalibrationCheck | None, log_mix: Tensor
) -> dict[str, Any]:
    """Metrics before and after what held-out labels correct, where there are any; binning knows no class mix."""
    if check is None or not check.bins:
        return {}
    mix = log_mix.cpu().double().numpy()
    ways = before_and_after(reweight(probabilities, -mix), check)
    return {"calibrations": {name: measure(reweight(each, mix), labels) for name, each in ways.items()}}


def evaluation_of_seeds(
    folder: Path,
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
    coverage: float | None = None,
    set_method: str = "lac",
    by_class: bool = False,
    class_mix: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The evaluation of each finished seed in a folder and of all as an ensemble, and mean and standard deviation."""
    runs, broken = readable_seeds(folder)
    finished = [run for run in runs if run.finished]
    if not finished and not broken:
        raise RunError(f"No seed in {folder} is finished. Continue with: {resume_command(runs)}")
    seeds, members = {}, list[Floats]()
    for run in finished:
        try:
            found = _evaluated(run, data, data_dir, skip_unreadable, class_mix)
            seeds[run.settings.seed], probabilities, labels = found
            members.append(probabilities)
        except RunError as error:
            broken[run.settings.seed] = str(error)
    if not seeds:
        raise RunError(next(iter(broken.values())))
    measures = spread([each["metrics"] for each in seeds.values()])
    result: dict[str, Any] = {
        "seeds": seeds,
        "mean": {name: mean for name, (mean, _) in measures.items()},
        "standard_deviation": {name: deviation for name, (_, deviation) in measures.items()},
        "not_finished": [run.settings.seed for run in runs if not run.finished],
        "broken": dict(sorted(broken.items())),
        "lost": lost_seeds(folder),
    }
    if len(members) > 1:
        together, classes = np.mean(members, axis=0), [row["class"] for row in next(iter(seeds.values()))["by_class"]]
        result["ensemble"] = _evaluation(together, labels, classes, {"by": "the mean of the seeds"})
        result["ensemble"] |= _sets(together, labels, classes, coverage, set_method, by_class)
    return result


def _sets(
    probabilities: Floats, labels: Labels, classes: Sequence[str], coverage: float | None, method: str, by_class: bool
) -> dict[str, Any]:
    """How prediction sets do on labelled images, each by thresholds from the others, where a coverage is wanted."""
    if coverage is None:
        return {}
    check_coverage(coverage)
    check_method(method)
    known = labels >= 0
    inside = cross_fitted(probabilities[known], labels[known], coverage, method, by_class=by_class)
    asked = {"wanted": coverage, "method": method, "within_each_class": by_class}
    return {"prediction_sets": {**asked, **measure_sets(inside, labels[known], classes)}}


def _usual_sets(probabilities: Floats, labels: Labels, classes: Sequence[str]) -> dict[str, Any]:
    """How the usual prediction sets do, and from which probability on a class is in them; nothing with few labels."""
    if (labels >= 0).sum() < LEAST_FOR_SETS:
        return {"prediction_sets": None}
    sets = calibrate(probabilities, labels, SET_COVERAGE)
    found = _sets(probabilities, labels, classes, SET_COVERAGE, sets.method, sets.by_class)
    return {"prediction_sets": {**found["prediction_sets"], "least_probability": 1 - float(sets.thresholds[0])}}


def finish(run: Run, trainer: Trainer) -> None:
    """Measure the finished model on the test images and write the run's last file, which marks it as finished."""
    data, state, settings = trainer.training_set.data, trainer.state, run.settings
    model, chosen = state.kept_model(), trainer.chosen()
    result: dict[str, Any] = {"metrics": None, "chosen": chosen}
    arrays = samples(state)
    arrays |= selection(read_table(run.path, f"{PSEUDO_LABELS}/step-1.csv"), trainer.training_set)
    if data.test is not None and data.test.labeled.any():
        probabilities = _predicted(model, settings, data.test)
        result = _evaluation(probabilities, data.test.labels, data.classes, chosen)
        result |= _usual_sets(probabilities, data.test.labels, data.classes)
        result |= _calibrations(probabilities, data.test.labels, state.progress.check, model.log_mix)
        arrays = {**_answers(probabilities, data.test.labels), **arrays}
        last = probabilities
        if not state.keeps_last_weights():
            last = state.tempered(_predicted(state.predictor, settings, data.test))
        result["last"] = {"metrics": measure(last, data.test.labels)}
    if len(data.train) <= MOST_DIGESTS and not data.is_benchmark:  # a benchmark can be had again
        arrays["training_digests"] = np.unique(data.train.short_digests())
    if arrays:
        run.save_details(arrays)
    result |= summary(state, trainer.training_set, trainer.schedule, class_counts(run.path, data.classes))
    result["images"]["test_in_training"] = data.test_in_training
    result["updates"] = {"made": made_updates(state.progress.history, trainer.updates), "of": trainer.total_updates}
    result |= _on_training_images(model, settings, _those_that_belong(trainer))
    write_json(run.path / TEST_METRICS, result)


def _predicted(model: HybridModel, settings: Settings, images: Images) -> Floats:
    """Probabilities, computed as training would compute them here."""
    device, dtype = device_and_dtype(settings.runtime)
    return predict(model.to(device), images.pixels, dtype).probabilities


def _those_that_belong(trainer: Trainer) -> NDArray[np.uint8] | Tensor:
    """Training images that were not rejected as outliers: what was kept of their views, or their pixels."""
    images, rejected = trainer.training_set, trainer.state.progress.rejected
    if images.backbone.keeps_views:
        return images.inputs[np.delete(np.arange(len(images)), np.array(rejected, int) + images.labeled)]
    return images.data.train.pixels[np.delete(np.arange(len(images.data.train)), images.unlabeled_index[rejected])]


def _on_training_images(model: HybridModel, settings: Settings, images: NDArray[np.uint8] | Tensor) -> dict[str, Any]:
    """What is said of some training images: the mean probability of each class, and scores to judge outliers by."""
    device, dtype = device_and_dtype(settings.runtime)
    some = images[:: judged_every(len(images))]
    found = predict(model.to(device), some, dtype)
    result: dict[str, Any] = {"class_means": [float(f"{mean:.6g}") for mean in found.probabilities.mean(0)]}
    if get_method(settings.method).density:
        result["training_energies"] = np.quantile(found.energies, np.linspace(0, 1, 201)).tolist()
    if model.features.discards_components:
        prepared = some if isinstance(some, Tensor) else model.features.prepare(some)
        errors = model.features.cross_validated_errors(prepared.to(device))
        if errors is not None:
            result["training_reconstruction_errors"] = np.quantile(errors.cpu(), np.linspace(0, 1, 201)).tolist()
    return result


def _answers(probabilities: Floats, truth: Labels) -> dict[str, Any]:
    """What the model says of each test image, and what is true (-1: not known), in few bytes."""
    return {
        "test_labels": probabilities.argmax(1).astype(np.uint16),
        "test_confidences": probabilities.max(1).astype(np.float32),
        "test_truth": truth.astype(np.int16),
    }


def _evaluation(
    probabilities: Floats, labels: Labels, classes: Sequence[str], chosen: dict[str, Any]
) -> dict[str, Any]:
    known = labels >= 0
    return {
        "metrics": measure(probabilities, labels),
        "intervals": {name: list(ends) for name, ends in intervals(probabilities, labels).items()},
        "reliability": by_bin(probabilities, labels),
        **_classes(probabilities[known], labels[known], classes),
        "chosen": chosen,
    }


def _classes(probabilities: Floats, labels: Labels, classes: Sequence[str]) -> dict[str, Any]:
    """What accuracy hides where classes are of different sizes."""
    rows = class_rows(probabilities, labels, classes)
    images = [row["images"] for row in rows]
    return {
        "majority_share": max(images) / sum(images),
        "never_predicted": [row["class"] for row in rows if row["images"] and not row["predicted"]],
        "by_class": rows,
    }


def class_rows(probabilities: Floats, labels: Labels, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Measures of each class with 95 % intervals, for JSON; not a number where a class was not said or is not there."""
    found = by_class(probabilities, labels)
    return [
        {
            "class": name,
            "images": int(found.images[i]),
            "predicted": int(found.predicted[i]),
            "precision": float(found.precision[i]),
            "precision_interval": list(found.precision_interval[i]),
            "confidence": float(found.confidence[i]),
            "recall": float(found.recall[i]),
            "recall_interval": list(found.recall_interval[i]),
            "f_score": float(found.f_score[i]),
        }
        for i, name in enumerate(classes)
    ]


CURVES = ("cross_entropy", "energy_gap", "validation_accuracy", "validation_ece", "validation_confidence")
SAMPLES = 64
"""Samples that are kept to look at."""


def summary(
    state: TrainState, images: TrainingSet, schedule: Sequence[Phase], counts: Mapping[int, dict[str, int]]
) -> dict[str, Any]:
    """The part of the result that needs no predictions; `counts` are those of each step's pseudo-labels."""
    progress = state.progress
    return {
        "images": images.counts(),
        "check": asdict(progress.check) if progress.check else None,
        **({"class_mix": asdict(progress.class_mix)} if progress.class_mix else {}),
        "pseudo_labels": steps(progress.history, schedule, counts),
        "curves": curves(progress.history),
        "seconds": round(state.seconds, 1),
        "healed_divergences": state.divergence.events,
    }


def class_counts(folder: Path, classes: Sequence[str]) -> dict[int, dict[str, int]]:
    """How many pseudo-labels each class got in each step, by the lists in a run directory."""
    return {step.step: {name: step.counts.get(name, 0) for name in classes} for step in read(folder).steps}


def steps(
    history: Iterable[Mapping[str, Any]], schedule: Sequence[Phase], counts: Mapping[int, dict[str, int]]
) -> list[dict[str, Any]]:
    """How many images had a pseudo-label in each step, of which class, and which fraction was right, if known."""
    names = {phase.name: phase.step for phase in schedule if phase.step}
    rows = {names[row["phase"]]: row for row in history if row["phase"] in names}
    return [
        {
            "step": step,
            "images": row["pseudo_labels"],
            "accuracy": row["pseudo_label_accuracy"],
            "rejected": row.get("rejected", 0),
            "classes": counts.get(step),
        }
        for step, row in sorted(rows.items())
    ]


def curves(history: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """How training went, epoch by epoch, in few digits; a curve is there if every epoch has it."""
    return {
        name: [float(f"{row[name]:.4g}") for row in history]
        for name in CURVES
        if history and all(name in row for row in history)
    }


def samples(state: TrainState) -> dict[str, NDArray[Any]]:
    """Samples from the energy model as images (N, H, W, C), where there are any, in the order of predicted classes."""
    if state.buffer is None or state.buffer.samples.ndim != 4:
        return {}
    kept = state.buffer.samples
    pixels = as_pixels(kept[:: max(1, len(kept) // SAMPLES)][:SAMPLES])
    return {"samples": pixels[np.argsort(predict(state.predictor, pixels).labels, kind="stable")]}


def selection(rows: Iterable[Mapping[str, str]], images: TrainingSet) -> dict[str, NDArray[Any]]:
    """Which training images a step's list gave which label; nothing if the list is of other images."""
    data = images.data
    names = {data.train.name(int(i)): int(i) for i in images.unlabeled_index}
    numbers = {name: number for number, name in enumerate(data.classes)}
    try:
        found = [(names[row["image"]], numbers[row["label"]]) for row in rows]
    except KeyError:
        return {}
    if not found:
        return {}
    return {
        "selected": np.array([image for image, _ in found], np.int32),
        "selected_labels": np.array([label for _, label in found], np.uint16),
    }
