"""Metrics of a run, for one seed or several, and the result that a finished training writes."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration import apply_temperature, warnings_of
from ebpl.config import Settings
from ebpl.data import BENCHMARK_NAMES, load
from ebpl.data.dataset import UNLABELED, Images, ImageSet, in_training
from ebpl.devices import device_and_dtype
from ebpl.errors import DataError, EbplError, RunError
from ebpl.io import write_json
from ebpl.metrics import by_bin, measure, spread
from ebpl.metrics.calibration import Floats, Labels
from ebpl.metrics.classification import by_class
from ebpl.models.predictions import predict
from ebpl.runs import Run, lost_seeds, readable_seeds, resume_command, seed_folders
from ebpl.runs.reader import PSEUDO_LABELS, TEST_METRICS, WEIGHTS, finite, read, read_table, read_training_digests
from ebpl.sampling import as_pixels
from ebpl.training import made_updates
from ebpl.training.relabel import Phase
from ebpl.training.train_state import TrainState
from ebpl.training.training_set import TrainingSet

if TYPE_CHECKING:
    from ebpl.models import HybridModel
    from ebpl.training.trainer import Trainer

MOST_ENERGIES = 5000
MOST_FILES = 20_000
"""More image files of a run are not read again only to look for some of them."""
MOST_DIGESTS = 200_000
"""Of more training images a run keeps no digests."""
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
    found = evaluation(run, data, **how)
    for note in found["notes"]:
        logging.getLogger("ebpl").warning("%s", note.removeprefix("Warning: "))
    measures: dict[str, Any] = found["metrics"]
    return measures


def evaluation(
    run: Run | str | os.PathLike[str],
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
) -> dict[str, Any]:
    """Measures, reliability bins, how the weights were chosen, and what to know of the images and of the model."""
    run = opened(run)
    model, description = run.load_model()
    images, notes = _test_images(run, data, data_dir, description, skip_unreadable)
    probabilities = _predicted(model, run.settings, images)
    found = _evaluation(probabilities, images, description["classes"], description["chosen"])
    sizes = {"images": {"test": found["metrics"]["images"]}}
    warnings = warnings_of({**found, **sizes}, "test image" if data is None else "labelled image")
    return {**found, "notes": list(notes), "warnings": warnings}


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
        arrays = {**_answers(probabilities, data.test.labels), **arrays}
        last = apply_temperature(_predicted(state.predictor, settings, data.test), state.temperature)
        result["last"] = {"metrics": measure(last, data.test.labels)}
    if len(data.train) <= MOST_DIGESTS and not data.is_benchmark:  # a benchmark can be had again
        arrays["training_digests"] = np.unique(data.train.short_digests())
    if arrays:
        run.save_details(arrays)
    result |= summary(state, trainer.training_set, trainer.schedule, class_counts(run.path, data.classes))
    result["images"]["test_in_training"] = data.test_in_training
    result["updates"] = {"made": made_updates(state.progress.history, trainer.updates), "of": trainer.total_updates}
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


def _answers(probabilities: Floats, truth: Labels) -> dict[str, Any]:
    """What the model says of each test image, and what is true (-1: not known), in few bytes."""
    return {
        "test_labels": probabilities.argmax(1).astype(np.uint16),
        "test_confidences": probabilities.max(1).astype(np.float32),
        "test_truth": truth.astype(np.int16),
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
        return _own_test_images(run, data_dir, description, skip_unreadable)
    images = load_for(description, data, data_dir, skip_unreadable)
    part = images.test if images.test is not None and images.test.labeled.any() else images.train
    if not part.labeled.any():
        raise DataError(f"{images.name} has no labelled image to measure on.")
    own = images if images.fingerprint() == run.source.get("fingerprint") else None
    part = as_trained(description, images, part)
    return part, [*images.notes, *trained_on(run, part, own)]


def trained_on(run: Run, images: Images, own: ImageSet | None = None) -> list[str]:
    """A note where a run was trained on some of the labelled images, or where that is not known."""
    unknown, digests = "Whether these images were in the training data was not checked", read_training_digests(run.path)
    try:
        if digests is None and own is None and _many_files(run):
            return [f"{unknown}: the run's own images are too many to read them again"]
        digests = (own or run.load_data()).train.short_digests() if digests is None else digests
    except (EbplError, OSError, MemoryError):
        return [f"{unknown}: the run's own images cannot be read"]
    labeled = int(images.labeled.sum())
    return in_training(images.labeled_among(digests), labeled, f"these {labeled} images")


def _many_files(run: Run) -> bool:
    """Whether a run was trained on so many image files that reading them again takes long."""
    path = str(run.source.get("path"))
    counts = run.metrics().get("images") if run.finished else None
    if path in BENCHMARK_NAMES or path.lower().endswith(".npz") or not isinstance(counts, dict):
        return False
    labelled = counts.get("labelled")
    numbers = [*(labelled.values() if isinstance(labelled, dict) else ()), counts.get("unlabelled")]
    return sum(finite(number) or 0.0 for number in numbers) > MOST_FILES


def _own_test_images(
    run: Run, data_dir: Any, description: dict[str, Any], skip_unreadable: bool
) -> tuple[Images, Sequence[str]]:
    """The run's own test images; they must be as they were, other images of its data need not."""
    images, unchanged = images_now(run, description, data_dir=data_dir, skip_unreadable=skip_unreadable)
    test, notes = images.test, list(images.notes)
    if unchanged:
        check_own(run, images, description)
    elif test is not None or "test_fingerprint" in run.source:
        where = shlex.quote(run.source["path"]) if test is not None and test.labeled.any() else "DATA"
        where += " --skip-unreadable" if run.source.get("skip_unreadable") else ""
        test = renumbered(description, images, test) if test is not None else None
        if test is None or test.fingerprint(tuple(description["classes"])) != run.source.get("test_fingerprint"):
            raise RunError(
                f"The images or labels of {run.data_name} have changed since {run.path} was trained, and its test "
                "images are not known to be the same. Measure on labelled images as they are now with: "
                f"ebpl evaluate {run.path} {where}"
            )
        notes.append(f"Images or labels of {run.data_name} have changed since training; its test images are the same.")
    if test is None or not test.labeled.any():
        raise DataError(
            f"{run.data_name} has no test images. Give labelled images to measure on: ebpl evaluate {run.path} DATA"
        )
    return test, [*notes, *trained_on(run, test, images if unchanged else None)]


def images_now(
    run: Run,
    description: dict[str, Any],
    data: ImageSet | None = None,
    *,
    data_dir: Any = None,
    skip_unreadable: bool = False,
) -> tuple[ImageSet, bool]:
    """A run's current data, at the size of its model, and whether it is unchanged since training."""
    if data is None:
        _, height, width = description["image_shape"]
        changes: dict[str, Any] = {"image_size": height} if height == width else {}
        changes |= {"skip_unreadable": True} if skip_unreadable else {}
        data = run.data_now(data_dir, training=False, **changes)
    return data, data.fingerprint() == run.source.get("fingerprint")


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
    if list(images.shape[1:]) != size[1:]:
        raise DataError(
            f"{images.name} has images of {images.shape[2]} x {images.shape[1]} pixels (width x height), the model was "
            f"trained on {size[2]} x {size[1]}."
        )
    return renumbered(description, images, part)


def renumbered(description: dict[str, Any], images: ImageSet, part: Images) -> Images:
    """A part with the model's channels and numbering of classes; an image of a class that it does not know has none."""
    names, part = description["classes"], part.with_channels(description["image_shape"][0])
    number = np.array([names.index(name) if name in names else UNLABELED for name in images.classes] + [UNLABELED])
    return Images(part.pixels, number[part.labels], part.paths)


def opened(run: Run | str | os.PathLike[str]) -> Run:
    """The run, or the one at this path."""
    return run if isinstance(run, Run) else Run(Path(run))


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
