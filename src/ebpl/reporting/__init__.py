"""Make the page: gather what is known about a run, and write it as one HTML file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from ebpl import __version__
from ebpl.config import Settings
from ebpl.config.presets import nearest_preset
from ebpl.data.dataset import in_training
from ebpl.errors import EbplError, UsageError, WriteError
from ebpl.inference.sources import Data, opened
from ebpl.io import check_output, write_bytes
from ebpl.methods import get_method
from ebpl.metrics.classification import wilson_interval
from ebpl.metrics.intervals import interval_in_words
from ebpl.reporting import sections
from ebpl.reporting.report_data import Context, Sight, count, interval, look, percent, things
from ebpl.reporting.sections import SECTIONS
from ebpl.runs import Run
from ebpl.runs.reader import WEIGHTS, Row, Stored, finite, read, updates_of, warnings_of
from ebpl.terminal import duration
from ebpl.training.relabel import phases

LOG = logging.getLogger("ebpl")
REPORT = "report.html"


def report(
    run: Run | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
    force: bool = False,
    done: Callable[[int], None] = lambda _: None,
) -> Path:
    """Write one HTML page about a run, finished or not, and return where it is: by default `report.html` in the run.

    That page is replaced; another file that exists only with `force`.

    The page needs nothing else: it may be sent by mail. It is about the run's own images, or about those in `data`,
    which are whatever `ebpl.load` takes, with labels or without. Without labels it shows what can be shown. Files of
    `data` that cannot be read are an error unless `skip_unreadable`; the run's own are read as in its training.

    >>> import ebpl
    >>> run = ebpl.train("digits", run="runs/shown", epochs=1, pseudo_labels="none")
    >>> ebpl.report(run).as_posix()
    'runs/shown/report.html'
    """
    run = opened(run)
    path = _place(run, output, force)
    text = page(run, data, data_dir=data_dir, skip_unreadable=skip_unreadable, done=done)
    try:
        write_bytes(path, text.encode("utf-8", "replace"))  # foreign JSON may hold half of a surrogate pair
    except WriteError as error:
        raise WriteError(f"{error} Another place can be chosen with --output FILE.") from error
    return path


def _place(run: Run, output: str | os.PathLike[str] | None, force: bool) -> Path:
    """Where the page goes; never over another file of the run, nor to where a link in its directory leads."""
    if output is None:
        return run.path / REPORT
    path = Path(output)
    check_output(path, force=True)
    inside = path.resolve().is_relative_to(run.path.resolve())
    if inside and path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path} would be a file of the run itself. Give a name that ends in .html.")
    check_output(path, force or path.absolute() == (run.path / REPORT).absolute())
    return path


def page(
    run: Run,
    data: Data | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    skip_unreadable: bool = False,
    done: Callable[[int], None] = lambda _: None,
) -> str:
    """The page as text."""
    stored = read(run.path)
    sight = None
    if data is not None or (run.path / WEIGHTS).exists():
        try:
            sight = look(run, data, data_dir, stored.energies is None, done, skip_unreadable)
        except EbplError as error:
            if data is not None:
                raise
            stored.problems.append(str(error))
    for problem in [*stored.problems, *(sight.notes if sight else ())]:
        LOG.warning("%s", problem)
    return _rendered(_content(run, stored, sight))


def _rendered(content: dict[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("ebpl.reporting")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = resources.files("ebpl.reporting").joinpath("templates/style.css").read_text(encoding="utf-8")
    return environment.get_template("report.html").render(**content, style=style)


def _content(run: Run, stored: Stored, sight: Sight | None) -> dict[str, Any]:
    """All that the template shows."""
    method = get_method(run.settings.method)
    context = Context(stored, sight, method.density, run.settings.data.class_mix)
    measured, looked = context.measured, context.looked
    content: dict[str, Any] = {
        "title": run.data_name,
        "run": run.path.resolve().name,
        "command": run.path.as_posix(),
        "method": method.title,
        "finished": run.finished,
        "progress": _progress(run, stored),
        "measured": sections.looked_at(measured) if measured else "",
        "caveat": measured.caveat if measured else _stored_caveat(stored, sight),
        "looked": sections.looked_at(looked) if looked else "",
        "names": context.classes,
        "warnings": warnings_of(stored.result),
        "imbalanced": context.imbalanced,
        "log": [] if run.finished else stored.log,
        "settings": _settings(run.settings, stored),
        "environment": _environment(stored.environment),
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "version": __version__,
        "percent": percent,
        "count": count,
        **{name: make(context) for name, make in SECTIONS.items()},
    }
    content["tiles"] = _tiles(content, stored)
    content["missing"] = _missing(content, run, stored, sight)
    content["facts"] = _facts(run, sight)
    return content


def _progress(run: Run, stored: Stored) -> str:
    epochs = sum(phase.epochs for phase in phases(run.settings))
    return f"{len(stored.history)} of {things(epochs, 'epoch')}"


def _tiles(content: dict[str, Any], stored: Stored) -> list[tuple[str, str, str]]:
    """The few numbers that come first: name, value, and a word about it."""
    tiles = []
    measures = content["measures"]
    if measures:
        values = measures["values"]
        tiles.append(("accuracy", percent(values["accuracy"]), _within(measures, "accuracy")))
        tiles.append(("mean confidence", percent(measures["confidence"]), _direction(measures["direction"])))
        tiles.append(("ECE", percent(values["ece"]), _within(measures, "ece", "lower is better, 15 bins")))
        if content["imbalanced"] and values.get("balanced_accuracy") is not None:
            words = _within(measures, "balanced_accuracy", "mean recall of the classes")
            tiles.append(("balanced accuracy", percent(values["balanced_accuracy"]), words))
        tiles.append(("macro F-score", percent(values["f_score"]), _within(measures, "f_score", "mean over classes")))
    elif content["promises"]:
        tiles.append(("accuracy", "not measured", f"the {content['looked']} have no labels"))
        tiles.append(("mean confidence", percent(content["promises"]["confidence"]), "not an accuracy"))
    check = content["training"]["check"]
    if not measures and check:
        ends = interval(wilson_interval(round(check.accuracy * check.images), check.images))
        words = f"95 % interval {ends}, on {things(check.images, 'held-out label')}"
        tiles.append(("held-out accuracy", percent(check.accuracy), words))
    if not measures and content["energy"] and (found := content["energy"]["outlying"]) and found["share"]:
        tiles.append(("outliers", found["share"], f"{count(found['beyond'])} of {found['what']}"))
    seconds = finite(stored.result.get("seconds")) or (stored.history[-1].get("seconds") if stored.history else None)
    healed = len(stored.healed)
    if seconds:
        words = f"{things(len(stored.history), 'epoch')}" + (
            f", {things(healed, 'recovery', 'recoveries')}" if healed else ""
        )
        tiles.append(("training", duration(seconds), words))
    return tiles


def _within(measures: dict[str, Any], name: str, otherwise: str = "") -> str:
    """The interval of a metric; other words where it has none."""
    ends = interval_in_words(name, measures["intervals"].get(name))
    return f"95 % interval {ends}" if ends else otherwise


def _direction(word: str) -> str:
    return "neither over- nor under-confident" if word == "neither" else word


def _missing(content: dict[str, Any], run: Run, stored: Stored, sight: Sight | None) -> list[str]:
    """What one would expect on the page and it cannot show, and what would change that."""
    missing = list(stored.problems) + (list(sight.notes) if sight else [])
    if sight is None and not (run.path / WEIGHTS).exists():
        missing.append(
            "There are no weights yet, so there are no predictions. They come at the end of the first phase."
        )
    of_images = get_method(run.settings.method).density and not run.settings.model.encoder
    if run.finished and of_images and not content["samples"]:
        missing.append("There are no samples from the energy model in the run directory.")
    return missing


def _facts(run: Run, sight: Sight | None) -> list[tuple[str, str]]:
    """What was trained on what."""
    settings = run.settings
    network = settings.model.network
    facts = [("method", get_method(settings.method).title), ("pseudo-labels", settings.curriculum.pseudo_labels)]
    if sight:
        network += f", {count(sight.parameters)} parameters"
        facts += [(f"{name} images", count(number)) for name, number in sight.counts]
        chosen = sight.model
        if {"phase", "epoch", "by"} <= chosen.keys():
            facts.append(("weights", f"{chosen['phase']}, epoch {chosen['epoch']} (by {chosen['by']})"))
    return [
        *facts,
        ("network", network),
        ("seed", str(settings.seed)),
        ("data digest", str(run.source.get("fingerprint"))),
    ]


def _stored_caveat(stored: Stored, sight: Sight | None) -> str:
    """What to keep in mind about measures that the run wrote when it ended."""
    images = stored.result.get("images")
    sizes = images if isinstance(images, dict) else {}
    both, test = (int(finite(sizes.get(name)) or 0) for name in ("test_in_training", "test"))
    if (sight and sight.looked) or not 0 < both <= test:
        return ""
    return "".join(f"{line}." for line in in_training(both, test, f"the {count(test)} test images"))


def _settings(settings: Settings, stored: Stored) -> dict[str, Any]:
    """All settings, and which differ from the preset that is nearest to them."""
    nearest, changed = nearest_preset(settings)
    shown = {name: _plain(value) for name, value in settings.to_dict().items()}
    shown["optim.updates_per_epoch"] += _cut(stored)
    rows = [(name, value, name in changed) for name, value in shown.items()]
    return {"preset": nearest, "changed": len(changed), "rows": rows}


def _cut(stored: Stored) -> str:
    """What a time limit has made of the updates of an epoch; nothing where it left them as they were."""
    updates = [number for row in stored.history if (number := finite(row.get("updates"))) is not None]
    made, full = updates_of(stored.result)
    if not updates or (full and made >= full):
        return ""
    low, high = count(min(updates)), count(max(updates))
    return f", under a time limit {low if low == high else f'{low} to {high}'}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "by the data"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _environment(environment: Row) -> list[tuple[str, str]]:
    shown = []
    for name, value in list(environment.items())[:40]:
        if value is not None:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            shown.append((name.replace("_", " ")[:40], text[:2000]))
    return shown
