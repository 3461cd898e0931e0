"""Metrics of a run, for one seed or several, and the result that a finished training writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration import apply_temperature
from ebpl.config import Settings
from ebpl.data import load
from ebpl.data.dataset import Images, ImageSet
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, RunError
from ebpl.io import write_json
from ebpl.metrics import by_bin, measure, spread
from ebpl.metrics.calibration import Floats, Labels
from ebpl.metrics.classification import by_class
from ebpl.models.predictions import predict
from ebpl.runs import Run, lost_seeds, readable_seeds, resume_command, seed_folders
from ebpl.runs.reader import PSEUDO_LABELS, TEST_METRICS, WEIGHTS, read, read_table
from ebpl.training.relabel import Phase
from ebpl.training.train_state import TrainState
from ebpl.training.training_set import TrainingSet

if TYPE_CHECKING:
    from ebpl.models import HybridModel
    from ebpl.training.trainer import Trainer


MOST_ENERGIES = 5000
Data = str | os.PathLike[str] | ImageSet


def evaluate(
    run: Run | str | os.PathLike[str],
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
) -> dict[str, Any]:
    """All metrics of a run's weights: on its own test images, or on all labelled images of other data.

    For a folder of several seeds it is the evaluation of each, and mean and standard deviation over them.
    """
    how: dict[str, Any] = {"data_dir": data_dir, "skip_unreadable": skip_unreadable}
    if not isinstance(run, Run) and seed_folders(Path(run)):
        return evaluation_of_seeds(Path(run), data, **how)
    measures: dict[str, Any] = evaluation(run, data, **how)["metrics"]
    return measures


def evaluation(
    run: Run | str | os.PathLike[str],
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
) -> dict[str, Any]:
    """Measures, reliability bins, how the weights were chosen, and what was done to the images while reading them."""
    run = opened(run)
    model, description = run.load_model()
    images, notes = _test_images(run, data, data_dir, description, skip_unreadable)
    probabilities = _predicted(model, run.settings, images)
    found = _evaluation(probabilities, images, description["classes"], description["chosen"])
    return {**found, "notes": list(notes)}


def evaluation_of_seeds(
    folder: Path,
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
) -> dict[str, Any]:
    """The evaluation of each finished seed in a folder, and mean and standard deviation of their measures."""
    runs, broken = readable_seeds(folder)
    finished = [run for run in runs if run.finished]
    if not finished and not broken:
        raise RunError(f"No seed in {folder} is finished. Continue with: {resume_command(runs)}")
    seeds = {}
    for run in finished:
        try:
            seeds[run.settings.seed] = evaluation(run, data, data_dir=data_dir, skip_unreadable=skip_unreadable)
        except RunError as error:
            broken[run.settings.seed] = str(error)
    if not seeds:
        raise RunError(next(iter(broken.values())))
    measures = spread([each["metrics"] for each in seeds.values()])
    return {
        "seeds": seeds,
        "mean": {name: mean for name, (mean, _) in measures.items()},
        "standard_deviation": {name: deviation for name, (_, deviation) in measures.items()},
        "not_finished": [run.settings.seed for run in runs if not run.finished],
        "broken": dict(sorted(broken.items())),
        "lost": lost_seeds(folder),
    }


def finish(run: Run, trainer: Trainer) -> None:
    """Measure the finished model on the test images and write the run's last file, which marks it as finished."""
    data, state, settings = trainer.training_set.data, trainer.state, run.settings
    model, chosen = state.kept_model(), trainer.chosen()
    result: dict[str, Any] = {"metrics": None, "chosen": chosen}
    arrays = samples(state)
    arrays |= selection(read_table(run.path, f"{PSEUDO_LABELS}/step-1.csv"), trainer.training_set)
    if data.test is not None and data.test.labeled.any():
        probabilities = _predicted(model, settings, data.test)
        result = _evaluation(probabilities, data.test, data.classes, chosen)
        arrays = {**_answers(probabilities), **arrays}
        last = apply_temperature(_predicted(state.predictor, settings, data.test), state.temperature)
        result["last"] = {"metrics": measure(last, data.test.labels)}
    if arrays:
        run.save_details(arrays)
    result |= summary(state, trainer.training_set, trainer.schedule, class_counts(run.path, data.classes))
    rejected = trainer.training_set.unlabeled_index[state.progress.rejected]
    belong = np.delete(np.arange(len(data.train)), rejected)
    result |= _on_training_images(model, settings, data.train.take(belong))
    write_json(run.path / TEST_METRICS, result)


def _predicted(model: HybridModel, settings: Settings, images: Images) -> Floats:
    """Probabilities, computed as training would compute them here."""
    device, dtype = device_and_dtype(settings.runtime)
    return predict(model.to(device), images.pixels, dtype).probabilities


def _on_training_images(model: HybridModel, settings: Settings, images: Images) -> dict[str, Any]:
    """What is said of some training images: the mean probability of each class, and energies to judge outliers by."""
    device, dtype = device_and_dtype(settings.runtime)
    every = max(1, len(images) // MOST_ENERGIES)
    found = predict(model.to(device), images.pixels[::every], dtype)
    result: dict[str, Any] = {"class_means": [float(f"{mean:.6g}") for mean in found.probabilities.mean(0)]}
    if model.gaussian is not None:
        result["training_energies"] = np.quantile(found.energies, np.linspace(0, 1, 201)).tolist()
    return result


def _answers(probabilities: Floats) -> dict[str, Any]:
    """What the model says of each test image, in few bytes."""
    return {
        "test_labels": probabilities.argmax(1).astype(np.uint16),
        "test_confidences": probabilities.max(1).astype(np.float16),
    }


def _evaluation(
    probabilities: Floats, images: Images, classes: Sequence[str], chosen: dict[str, Any]
) -> dict[str, Any]:
    return {
        "metrics": measure(probabilities, images.labels),
        "reliability": by_bin(probabilities, images.labels),
        **_classes(probabilities[images.labeled], images.labels[images.labeled], classes),
        "chosen": chosen,
    }


def _classes(probabilities: Floats, labels: Labels, classes: Sequence[str]) -> dict[str, Any]:
    """What accuracy hides where classes are of different sizes."""
    found, said = by_class(probabilities, labels), set(probabilities.argmax(1).tolist())
    return {
        "majority_share": float(found.images.max() / found.images.sum()),
        "never_predicted": [name for i, name in enumerate(classes) if found.images[i] and i not in said],
        "by_class": [
            {
                "class": name,
                "images": int(found.images[i]),
                "precision": float(found.precision[i]),
                "recall": float(found.recall[i]),
                "recall_interval": list(found.recall_interval[i]),
                "f_score": float(found.f_score[i]),
            }
            for i, name in enumerate(classes)
        ],
    }


def _test_images(
    run: Run, data: Data | None, data_dir: Any, description: dict[str, Any], skip_unreadable: bool
) -> tuple[Images, Sequence[str]]:
    """The images to measure on, with labels in the model's own numbering, and what was done to them."""
    if data is None:
        images = run.load_data(data_dir=data_dir)
        check_own(run, images, description)
        if images.test is None or not images.test.labeled.any():
            raise DataError(
                f"{run.data_name} has no test images. Give labelled images to measure on: ebpl evaluate {run.path} DATA"
            )
        return images.test, images.notes
    images = load_for(description, data, data_dir, skip_unreadable)
    part = images.test if images.test is not None and images.test.labeled.any() else images.train
    if not part.labeled.any():
        raise DataError(f"{images.name} has no labelled image to measure on.")
    return as_trained(description, images, part), images.notes


def check_own(run: Run, images: ImageSet, description: dict[str, Any]) -> None:
    """Raise where the weights in a run directory are not for the images that the run was trained on."""
    if list(images.classes) != description["classes"] or list(images.shape) != description["image_shape"]:
        raise RunError(f"{run.path / WEIGHTS} is not of this run: its classes or image sizes are others.")


def load_for(description: dict[str, Any], data: Data, data_dir: Any = None, skip_unreadable: bool = False) -> ImageSet:
    """Other data at the size that the model was trained on."""
    _, height, width = description["image_shape"]
    square = height if height == width else None
    return load(data, data_dir=data_dir, image_size=square, training=False, skip_unreadable=skip_unreadable)


def as_trained(description: dict[str, Any], images: ImageSet, part: Images) -> Images:
    """A part of other data with the channels and the numbering of classes that the model was trained on."""
    names, size = description["classes"], description["image_shape"]
    unknown = set(images.classes) - set(names)
    if unknown:
        raise DataError(
            f"{images.name} has classes the model does not know: {', '.join(sorted(unknown))}. "
            f"It knows: {', '.join(names)}. (Arrays get names with ebpl.from_arrays(images, labels, classes=...).)"
        )
    part = part.with_channels(size[0])
    if list(images.shape[1:]) != size[1:]:
        raise DataError(
            f"{images.name} has images of {images.shape[1]} x {images.shape[2]} pixels, the model was trained on "
            f"{size[1]} x {size[2]}."
        )
    number = np.array([names.index(name) for name in images.classes] + [-1])
    return Images(part.pixels, number[part.labels], part.paths)


def opened(run: Run | str | os.PathLike[str]) -> Run:
    """The run, or the one at this path."""
    return run if isinstance(run, Run) else Run(Path(run))


CURVES = ("cross_entropy", "energy_gap", "validation_accuracy", "validation_ece", "validation_confidence")
SAMPLES = 25
"""Samples that are kept to look at."""


def summary(
    state: TrainState, images: TrainingSet, schedule: Sequence[Phase], counts: Mapping[int, dict[str, int]]
) -> dict[str, Any]:
    """The part of the result that needs no predictions; `counts` are those of each step's pseudo-labels."""
    progress = state.progress
    return {
        "images": images.counts(),
        "check": asdict(progress.check) if progress.check else None,
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
    """Samples from the energy model as images (N, H, W, C), where there are any."""
    if state.buffer is None or state.buffer.samples.ndim != 4:
        return {}
    kept = state.buffer.samples
    chosen = kept[:: max(1, len(kept) // SAMPLES)][:SAMPLES].nan_to_num().clamp(-1, 1)
    return {"samples": ((chosen + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()}


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
