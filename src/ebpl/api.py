"""Train, resume, evaluate: what the command line does, for Python, under the same names."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebpl import settings as presets
from ebpl.data.images import Images, ImageSet
from ebpl.data.load import load
from ebpl.data.names import BENCHMARK_NAMES
from ebpl.data.split import split_for
from ebpl.devices import choose_device, describe_environment, device_and_dtype, threads
from ebpl.errors import DataError, RunError, SomeFailedError, UsageError
from ebpl.files import write_json
from ebpl.learning.prediction import predict
from ebpl.learning.ranks import ALONE, Ranks, join
from ebpl.measuring.calibration import Floats, Labels
from ebpl.measuring.summary import by_bin, measure, spread
from ebpl.processes import place
from ebpl.reporting.progress import Progress, Silent
from ebpl.reporting.tensorboard import writer_class
from ebpl.runs import TEST_METRICS, Run, Watched, lost_seeds, open_runs, resume_command
from ebpl.seeds import checked_seeds
from ebpl.settings import Settings

if TYPE_CHECKING:
    from ebpl.learning.side_by_side import Pieces
    from ebpl.learning.trainer import Trainer
    from ebpl.model.hybrid import HybridModel

LOG = logging.getLogger("ebpl")
MOST_ENERGIES = 5000
Data = str | os.PathLike[str] | ImageSet


def train(
    data: Data,
    settings: Settings | None = None,
    *,
    preset: str | None = None,
    run: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    progress: Progress | None = None,
    devices: int | None = None,
    nodes: int | None = None,
    **changes: Any,
) -> Run:
    """Train on `data` and return the finished run.

    `data` is whatever `ebpl.load` takes. `settings` default to those of `preset`, which is `standard` on a GPU and
    `quick` on a CPU if not given; single settings can be changed by name. The run directory is `run`, or a new one
    below `runs/`.

    In a script started by torchrun or SLURM in several processes, all of them train one run together, each on its own
    device; `devices` (on each machine) and `nodes` are then checked, and `devices=1` lets each train a run of its own.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/first", epochs=2, pseudo_labels="none")
    >>> sorted(ebpl.evaluate(run))[:3]
    ['accuracy', 'adaptive_ece', 'aurc']
    """
    chosen = _chosen(settings, preset, changes)
    choose_device(chosen)
    ranks = join(chosen, devices, nodes)

    def prepared() -> tuple[Run, ImageSet]:
        images = load(data, data_dir=data_dir, image_size=image_size)
        _check(images, chosen)
        source = _source(data, data_dir, image_size)
        return Run.create(Path(run) if run else None, chosen, images, source, ranks.count), images

    made, images = ranks.first(prepared)
    for _ in _training(made, images, progress if progress and ranks.is_first else Silent(), ranks):
        pass
    return made


def train_seeds(
    data: Data,
    seeds: Iterable[int] | str,
    settings: Settings | None = None,
    *,
    preset: str | None = None,
    run: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    progress: Sequence[Progress] | None = None,
    **changes: Any,
) -> list[Run]:
    """Train the same settings with several seeds and return the finished runs, in the order of the seeds.

    On a GPU the seeds are trained side by side, elsewhere one after the other; each as if it were alone. All else is as
    in `train`; the run directories are `seed-N` in the folder `run`. Where some fail, the others are finished before
    `ebpl.errors.SomeFailedError` is raised.

    >>> import ebpl
    >>> runs = ebpl.train_seeds("digits", [0, 1], run="runs/two", epochs=1, pseudo_labels="none")
    >>> [run.path.as_posix() for run in runs]
    ['runs/two/seed-0', 'runs/two/seed-1']
    """
    if "seed" in changes:
        raise UsageError("Give a seed or seeds, not both.")
    _alone()
    chosen = _chosen(settings, preset, changes)
    every = [chosen.changed(seed=seed) for seed in checked_seeds(seeds)]
    images = load(data, data_dir=data_dir, image_size=image_size)
    for each in every:
        _check(images, each)
    source = _source(data, data_dir, image_size)
    runs = Run.create_for_seeds(Path(run) if run else None, chosen, [each.seed for each in every], images, source)
    shown = progress or [Silent() for _ in runs]
    return _all(runs, [_training(each, images, seen) for each, seen in zip(runs, shown, strict=True)])


def resume(
    run: Run | str | os.PathLike[str],
    *,
    data: ImageSet | None = None,
    progress: Progress | None = None,
    devices: int | None = None,
    nodes: int | None = None,
) -> Run:
    """Go on with a run that was interrupted, from its newest checkpoint; a finished run is returned as it is.

    It may go on with another number of `devices` or `nodes` than it was started with.
    """
    run = _opened(run)
    if run.finished:
        return run
    ranks = join(run.settings, devices, nodes)
    images = ranks.first(lambda: run.load_data(data))
    for _ in _going_on(run, images, progress if progress and ranks.is_first else Silent(), ranks):
        pass
    return run


def resume_all(
    runs: Run | str | os.PathLike[str] | Iterable[Run | str | os.PathLike[str]],
    *,
    data: ImageSet | None = None,
    progress: Sequence[Progress] | None = None,
) -> list[Run]:
    """Go on with several runs as `train_seeds` does, side by side on a GPU; finished ones are returned as they are.

    A folder of several seeds stands for all of them.
    """
    _alone()
    several = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    opened = []
    for run in several:
        opened += [run] if isinstance(run, Run) else open_runs([Path(run)])
    shown = progress or [Silent() for _ in opened]
    loaded: dict[str, ImageSet] = {}
    trainings = {}
    for run, seen in zip(opened, shown, strict=True):
        if not run.finished:
            where = repr(run.source)
            loaded[where] = run.load_data(data or loaded.get(where))
            trainings[run] = _going_on(run, loaded[where], seen)
    _all(list(trainings), list(trainings.values()))
    return opened


def evaluate(
    run: Run | str | os.PathLike[str],
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
) -> dict[str, float]:
    """All measures of a run's best weights: on its own test images, or on all labelled images of other data."""
    measures: dict[str, float] = evaluation(run, data, data_dir=data_dir)["metrics"]
    return measures


def evaluation(
    run: Run | str | os.PathLike[str], data: Data | None = None, *, data_dir: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Measures, reliability bins and how the weights were chosen."""
    run = _opened(run)
    model, description = run.load_model()
    images = _test_images(run, data, data_dir, description)
    return _evaluation(_predicted(model, run.settings, images), images, description)


def evaluation_of_seeds(
    folder: Path, data: Data | None = None, *, data_dir: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """The evaluation of each finished seed in a folder, and mean and standard deviation of their measures."""
    runs = open_runs([folder])
    finished = [run for run in runs if run.finished]
    if not finished:
        raise RunError(f"No seed in {folder} is finished. Continue with: {resume_command(runs)}")
    seeds, broken = {}, {}
    for run in finished:
        try:
            seeds[run.settings.seed] = evaluation(run, data, data_dir=data_dir)
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
        "broken": broken,
        "lost": lost_seeds(folder),
    }


def default_settings(device: str = "auto") -> Settings:
    """The preset that fits this machine: `standard` with a GPU, `quick` without."""
    import torch

    return presets.preset("standard" if torch.cuda.is_available() and device != "cpu" else "quick")


def _predicted(model: HybridModel, settings: Settings, images: Images) -> Floats:
    """Probabilities, computed as training would compute them here."""
    device, dtype = device_and_dtype(settings)
    return predict(model.to(device), images.pixels, dtype).probabilities


def _training_energies(model: HybridModel, settings: Settings, images: Images) -> list[float]:
    """Energies of some training images, from which it is judged what does not belong."""
    device, dtype = device_and_dtype(settings)
    every = max(1, len(images) // MOST_ENERGIES)
    energies = predict(model.to(device), images.pixels[::every], dtype).energies
    return [float(energy) for energy in np.quantile(energies, np.linspace(0, 1, 201))]


def _opened(run: Run | str | os.PathLike[str]) -> Run:
    return run if isinstance(run, Run) else Run(Path(run))


def _source(data: Data, data_dir: Any, image_size: int | None) -> dict[str, Any]:
    """Where the data came from, so that a resumed run finds it again."""
    if isinstance(data, ImageSet):
        return {}
    path = str(data) if str(data) in BENCHMARK_NAMES else str(Path(data).resolve())
    folder = str(Path(data_dir).resolve()) if data_dir else None
    return {"path": path, "data_dir": folder, "image_size": image_size}


def _chosen(settings: Settings | None, preset: str | None, changes: dict[str, Any]) -> Settings:
    if settings is not None and preset is not None:
        raise UsageError(
            "Give settings or a preset, not both: settings = ebpl.preset(name, ...) makes one of the other."
        )
    if settings is None:
        settings = presets.preset(preset) if preset else default_settings(changes.get("device", "auto"))
    return settings.changed(**changes)


def _alone() -> None:
    """Several runs at once are one process's work; processes that were started to train one run together are told."""
    if place().count > 1:
        raise UsageError(
            "Several runs at once are trained in one process, on one device; there are "
            f"{place().count} processes here. Give each process a seed of its own with --devices 1, or train one seed "
            "on all of them."
        )


def _check(images: ImageSet, settings: Settings) -> None:
    """Whatever can fail without training fails before a run directory is made."""
    split_for(images, settings)
    choose_device(settings)
    if settings.tensorboard:
        writer_class()


def _training(run: Run, images: ImageSet, progress: Progress, ranks: Ranks = ALONE) -> Pieces:
    """A whole training in small pieces, the first of which prepares and the last of which measures."""
    from ebpl.learning.trainer import Trainer

    run = run if ranks.is_first else Watched(run)
    with contextlib.ExitStack() as held:
        ranks.first(lambda: held.enter_context(run.training()))
        trainer = Trainer(run, images, progress, ranks)
        yield from trainer.work()
        ranks.first(lambda: _finish(run, images, trainer))


def _going_on(run: Run, images: ImageSet, progress: Progress, ranks: Ranks = ALONE) -> Pieces:
    """The rest of a training, with what it was started with."""
    then, now = run.environment(), {**describe_environment(run.settings), "processes": ranks.count}
    for name in ("device", "dtype", "processes"):
        if then.get(name, now[name]) != now[name]:
            progress.say(f"The run was started with {name} {then[name]} and goes on here with {now[name]}.")
    if now["device"] != "cpu" or then.get("processes", 1) != ranks.count:
        # on a GPU trainings take turns, and threads change no digit
        yield from _training(run, images, progress, ranks)
        return
    with threads(then.get("threads", now["threads"])):
        yield from _training(run, images, progress, ranks)


def go_on(
    runs: Sequence[Run], images: ImageSet, progress: Sequence[Progress], deadline: float = math.inf
) -> dict[Path, Exception]:
    """Train runs on the same images to their ends, side by side on a GPU; returns the errors of those that failed.

    At the deadline, on the clock of `time.monotonic`, all stop after saving their last finished epoch.
    """
    from ebpl.learning.side_by_side import Training, train_all

    on_gpu = bool(runs) and all(choose_device(run.settings).type == "cuda" for run in runs)
    trainings = [Training(_going_on(run, images, seen), on_gpu) for run, seen in zip(runs, progress, strict=True)]
    train_all(trainings, in_turns=on_gpu, deadline=deadline)
    return {run.path: training.error for run, training in zip(runs, trainings, strict=True) if training.error}


def _all(runs: Sequence[Run], pieces: Sequence[Pieces]) -> list[Run]:
    """Train all of them to their ends, and tell which failed."""
    from ebpl.learning.side_by_side import Training, train_all

    on_gpu = all(choose_device(run.settings).type == "cuda" for run in runs)
    trainings = [Training(each, on_gpu) for each in pieces]
    try:
        train_all(trainings, in_turns=on_gpu)
    except KeyboardInterrupt:
        reasons = [str(training.error) for training in trainings if training.error]
        message = "\n".join([f"Stopped. Go on with: {resume_command(runs)}", *reasons])
        raise KeyboardInterrupt(message) from None
    failures = {run.path: training.error for run, training in zip(runs, trainings, strict=True) if training.error}
    if failures:
        raise SomeFailedError(runs, failures)
    return list(runs)


def _finish(run: Run, images: ImageSet, trainer: Trainer) -> None:
    """Measure the best weights on the test images and write the run's last file, which marks it as finished."""
    model, description = run.load_model()
    result: dict[str, Any] = {"metrics": None, "chosen": description["chosen"]}
    if images.test is not None and images.test.labeled.any():
        probabilities = _predicted(model, run.settings, images.test)
        result = _evaluation(probabilities, images.test, description)
        title: str = run.settings.method
        draw_reliability(run.path / "reliability.png", {title: (probabilities, images.test.labels)}, run.log)
        run.save_details({**_answers(probabilities), **trainer.details()})
        last = _predicted(trainer.learner.predictor, run.settings, images.test)
        result["last"] = {"metrics": measure(last, images.test.labels)}
    result["pseudo_labels"] = trainer.pseudo_labels()
    if trainer.method.density:
        result["training_energies"] = _training_energies(model, run.settings, images.train)
    result["seconds"] = round(trainer.seconds, 1)
    result["healed_divergences"] = trainer.guard.events
    write_json(run.path / TEST_METRICS, result)


def _answers(probabilities: Floats) -> dict[str, Any]:
    """What the model says of each test image, in few bytes."""
    return {
        "test_labels": probabilities.argmax(1).astype(np.uint16),
        "test_confidences": probabilities.max(1).astype(np.float16),
    }


def draw_reliability(path: Path, results: dict[str, tuple[Floats, Labels]], log: logging.Logger = LOG) -> None:
    """A reliability diagram of each result, if matplotlib is there."""
    try:
        from ebpl.reporting.figures import reliability_diagram
    except ImportError:
        log.warning("matplotlib is not installed, so there is no reliability diagram")
        return
    reliability_diagram(path, results)


def _evaluation(probabilities: Floats, images: Images, description: dict[str, Any]) -> dict[str, Any]:
    return {
        "metrics": measure(probabilities, images.labels),
        "reliability": by_bin(probabilities, images.labels),
        "chosen": description["chosen"],
    }


def _test_images(run: Run, data: Data | None, data_dir: Any, description: dict[str, Any]) -> Images:
    """The images to measure on, with labels in the model's own numbering."""
    size = description["image_shape"]
    if data is None:
        images = run.load_data()
        if images.test is None or not images.test.labeled.any():
            raise DataError(
                f"{run.data_name} has no test images. Give labelled images to measure on: ebpl evaluate {run.path} DATA"
            )
        return images.test
    images = load(data, data_dir=data_dir, image_size=size[1] if size[1] == size[2] else None, training=False)
    part = images.test if images.test is not None and images.test.labeled.any() else images.train
    if not part.labeled.any():
        raise DataError(f"{images.name} has no labelled image to measure on.")
    names = description["classes"]
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
