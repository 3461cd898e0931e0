"""The commands `ebpl inspect`, `ebpl suggest` and `ebpl add-labels`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.cli.labels import inspect_run, one_line
from ebpl.cli.options import Parser, add_data, add_data_dir, add_skip_unreadable, positive, share
from ebpl.errors import UsageError, number_of, some_of
from ebpl.terminal import Silent, duration, harmless, terminal_progress

if TYPE_CHECKING:
    from ebpl.data.contents import Group
    from ebpl.data.dataset import ImageSet
    from ebpl.inspection import Inspection
    from ebpl.labeling import Suggestion
    from ebpl.runs import Run


def add_inspect_options(parser: Parser) -> None:
    """The options of `ebpl inspect`."""
    add_data(parser, "; or a run directory: which of its labels may be wrong")
    add = parser.add_argument
    add("--json", action="store_true", help="print everything as JSON, for programs")
    add("--no-timing", action="store_true", help="do not train a few updates to tell the time it takes")
    add("--output", metavar="FILE", help="for a run: the CSV of all doubtful labels, with an empty column label to "
        "fill in")  # fmt: skip
    add("--force", action="store_true", help="replace the file that --output names if it exists")


def inspect(options: argparse.Namespace) -> int:
    """Say what is in the data, what is wrong with it, and how to train on it."""
    import json

    from ebpl.errors import DataError
    from ebpl.inspection import inspect
    from ebpl.io import finite
    from ebpl.runs.reader import SETTINGS
    from ebpl.terminal import counted

    if (Path(options.data) / SETTINGS).is_file():
        return inspect_run(options)
    if options.output:
        raise UsageError("--output is for a run directory: it lists labels that may be wrong. Give --json for data.")
    places = {"data_dir": options.data_dir, "image_size": options.image_size}
    with contextlib.ExitStack() as shown:
        done = shown.enter_context(counted("images opened"))
        how: dict[str, Any] = {"timing": not options.no_timing, "done": done}
        found = inspect(options.data, **places, **how, progress=_Comparing(shown))
    if options.json:
        print(json.dumps(finite(found.to_dict()), indent=2, ensure_ascii=False))
    else:
        show_inspection(found, options.data)
    return 0 if found.suggestion else DataError.exit_code


class _Comparing(Silent):
    """Shows a comparison in place of what was shown before it."""

    def __init__(self, shown: contextlib.ExitStack) -> None:
        self._shown, self._progress = shown, terminal_progress("comparing")

    def begin(self, updates: int, done: int) -> None:
        self._shown.close()
        self._shown.callback(self._progress.end)
        self._progress.begin(updates, done)

    def advance(self, updates: int, where: str, facts: dict[str, float]) -> None:
        self._progress.advance(updates, where, facts)

    def epoch(self, line: str) -> None:
        self._progress.epoch(line)


def add_suggest_options(parser: Parser) -> None:
    """The options of `ebpl suggest`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory")
    add("--n", type=positive, default=50, metavar="N", help="how many images (default: 50)")
    add("--output", default="-", metavar="FILE", help="the CSV to write, with an empty column label "
        "to fill in (default: standard output)")  # fmt: skip
    add("--label-studio", metavar="FILE", help="also write tasks for Label Studio (JSON), and its labelling config "
        "beside it (.xml)")  # fmt: skip
    add("--image-url", metavar="PREFIX", help="tasks name images by PREFIX and path instead of holding them, for "
        "instance /data/local-files/?d=")  # fmt: skip
    add(
        "--no-predictions",
        action="store_true",
        help="tasks without the model's prediction, so that it does not influence the labelling",
    )
    add("--with-outliers", action="store_true", help="also images that do not look like the others")
    add("--outlier-quantile", type=share, default=0.99, metavar="Q", help="an outlier has a higher score than this "
        "share of the training images (default: 0.99)")  # fmt: skip
    add("--force", action="store_true", help="replace files that exist already")
    add_data_dir(parser)
    add_skip_unreadable(parser)


def suggest(options: argparse.Namespace) -> int:
    """Write which unlabelled images to label next."""
    from ebpl.inference.sources import images_now
    from ebpl.io import csv_writer, partly_written
    from ebpl.labeling import suggest
    from ebpl.runs import Run

    run = Run(options.run)
    _check_targets(options, run.path)
    how: dict[str, Any] = {"data_dir": options.data_dir, "skip_unreadable": options.skip_unreadable}
    images, _ = images_now(run, run.load_model()[1], **how)
    found = suggest(
        run, options.n, data=images, with_outliers=options.with_outliers, outlier_quantile=options.outlier_quantile
    )
    with partly_written(options.output) as file:
        write = csv_writer(file)
        file.write("" if found else "rank,image,label\n")
        for rank, suggestion in enumerate(found, start=1):
            write(suggestion.row(rank))
    if options.label_studio:
        _write_tasks(options, run, images, found)
    _say_next(options, run, len(found))
    return 0


def _check_targets(options: argparse.Namespace, run: Path) -> None:
    """Refuse, before any work is done, what must not be written."""
    from ebpl.io import check_output, check_table_name

    check_table_name(options.output, parquet=False)
    targets = [options.output]
    if options.label_studio is not None:
        tasks = Path(options.label_studio)
        if tasks.suffix.lower() == ".xml" or options.label_studio == "-":
            raise UsageError(
                f"--label-studio {options.label_studio}: the tasks are JSON, and their labelling config is written "
                "beside them as .xml. Give a name such as tasks.json."
            )
        targets += [options.label_studio, str(tasks.with_suffix(".xml"))]
    for target in targets:
        check_output(target, options.force, run)
    if len({Path(target).absolute() for target in targets}) < len(targets):
        raise UsageError("--output and --label-studio must be different files.")


def _write_tasks(options: argparse.Namespace, run: Run, images: ImageSet, found: list[Suggestion]) -> None:
    """Tasks for Label Studio, and its labelling config beside them."""
    from ebpl.io import write_json, write_text
    from ebpl.labeling import label_studio

    target = Path(options.label_studio)
    root = Path(run.source.get("path") or ".")
    root = root if root.is_dir() else root.parent
    pictures = []
    for suggestion in found:
        file_path = root / suggestion.image if images.train.paths else None
        if options.image_url and images.train.paths:
            pictures.append(options.image_url + suggestion.image)
        else:
            pictures.append(label_studio.picture(images.train.pixels[suggestion.index], file_path))
    version = f"ebpl {run.path.name}"
    write_json(target, label_studio.tasks(found, pictures, version, pre_annotate=not options.no_predictions))
    write_text(target.with_suffix(".xml"), label_studio.config(images.classes))


def _say_next(options: argparse.Namespace, run: Run, count: int) -> None:
    """What to do with the suggestions; nothing where they are themselves printed."""
    from ebpl.data import BENCHMARK_NAMES

    if not count:
        print("No image is left to suggest. --with-outliers also takes those unlike the others.", file=sys.stderr)
        return
    source = run.source.get("path") or "DATA"
    if source in BENCHMARK_NAMES:
        return
    near = os.path.relpath(source)
    ending = "npz" if source.lower().endswith(".npz") else "csv"
    names = (f"labelled{'' if number == 1 else f'-{number}'}.{ending}" for number in count_from(1))
    free = next(name for name in names if not os.path.lexists(name))

    def command(labels: str) -> str:
        data = source if near.startswith("..") else near
        skip = " --skip-unreadable" if run.source.get("skip_unreadable") or options.skip_unreadable else ""
        return f"  ebpl add-labels {shlex.quote(data)} {shlex.quote(labels)} --output {free}{skip}"

    lines = []
    if options.label_studio:
        lines += [f"Import {options.label_studio} into Label Studio, label the images, and export them. Then:"]
        lines += [command("export.json")]
    if options.output != "-":
        lines += [f"{'Or open' if lines else 'Open'} {options.output}, and fill in its column label. Then:"]
        lines += [command(options.output)]
    for line in lines:
        print(harmless(line), file=sys.stderr if options.output == "-" else sys.stdout)


def add_add_labels_options(parser: Parser) -> None:
    """The options of `ebpl add-labels`."""
    add = parser.add_argument
    add("data", metavar="DATA", help="the folder, CSV or .npz that was trained on")
    add("labels", metavar="LABELS", help="an export of Label Studio (JSON, JSON-MIN or CSV), or a CSV of image,label")
    add("--output", required=True, metavar="FILE", help="the new .csv (or .npz for an .npz) to train on")
    add("--new-classes", action="store_true", help="allow labels of classes that the data does not have yet")
    add_skip_unreadable(parser)


def add_labels(options: argparse.Namespace) -> int:
    """Write the data with the labels that came back."""
    from ebpl.labeling import add_labels

    how = {"new_classes": options.new_classes, "skip_unreadable": options.skip_unreadable}
    added = add_labels(options.data, options.labels, options.output, **how)
    for note in added.notes:
        print(one_line(note), file=sys.stderr)
    changed = f", {number_of(added.changed, 'image')} got another label" if added.changed else ""
    output = harmless(shlex.quote(str(added.output)))
    new = number_of(added.new, "image has", "images have")
    print(f"{new} a label now that had none{changed}. Train with: ebpl train {output}")
    return 0


SHOWN = 10
"""So many of a long list are shown; JSON has all of them."""
MOST_CLASSES = 40


def show_inspection(found: Inspection, title: str) -> None:
    """Print tables of what there is, then what is wrong, then what to type."""
    from rich.console import Console
    from rich.text import Text

    console = Console(emoji=False)  # a name with :cat: in it is that name
    console.print(_counts(found, title))
    for line in _facts(found):
        console.print(one_line(line), markup=False, highlight=False)
    for problem in found.problems:
        mark = ("Serious: ", "bold red") if problem.serious else ("Note: ", "bold yellow")
        console.print()
        console.print(Text.assemble(mark, one_line(problem.text)), highlight=False)
        for line in _details(found, problem.kind):
            console.print(f"  {one_line(line)}", markup=False, highlight=False)
    console.print()
    for line in _advice(found):
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)


def _counts(found: Inspection, title: str) -> Any:
    """Images of each class and part."""
    from rich.table import Table
    from rich.text import Text

    from ebpl.data.contents import PARTS

    data = found.contents
    counts = {part: by_label for part in PARTS if any((by_label := data.counts(part)).values())}
    hidden = found.used != {label: counts.get("train", {}).get(label, 0) for label in data.classes}
    table = Table(title=Text(one_line(title)), title_justify="left")
    table.add_column("class")
    for name in [*counts, *(["labels used"] if hidden else [])]:
        table.add_column(name, justify="right")
    shown = data.classes if len(data.classes) <= MOST_CLASSES else data.classes[: MOST_CLASSES - 1]
    for label in shown:
        used = [str(found.used[label])] if hidden else []
        table.add_row(Text(one_line(label)), *(str(by_label[label]) for by_label in counts.values()), *used)
    if rest := data.classes[len(shown) :]:
        used = [str(sum(found.used[label] for label in rest))] if hidden else []
        sums = [str(sum(by_label[label] for label in rest)) for by_label in counts.values()]
        table.add_row(f"{len(rest)} more classes", *sums, *used, style="dim")
    table.add_section()
    table.add_row("unlabelled", *(str(by_label[""]) for by_label in counts.values()), style="dim")
    table.add_row("all", *(str(sum(by_label.values())) for by_label in counts.values()))
    return table


def _facts(found: Inspection) -> list[str]:
    data = found.contents
    sizes = [f"{width} x {height} ({count})" for (height, width), count in data.sizes.items()]
    lines = [f"sizes (width x height): {some_of(sizes, SHOWN, many='other sizes') or 'none'}"]
    lines.append("modes: " + (", ".join(f"{kind} {count}" for kind, count in data.kinds.items()) or "none"))
    if data.shape:
        lines.append("training takes them as {2} x {1} x {0} (width x height x channels)".format(*data.shape))
    if found.imbalance is not None:
        lines.append(f"largest to smallest class: {found.imbalance:.3g} to 1 in labels")
    lines += _mix(found)
    lines.append(f"exact duplicates: {found.duplicates.extra}")
    return [*lines, *data.notes]


def _mix(found: Inspection) -> list[str]:
    """The class mix of the labels, and that of the unlabelled images as far as it can be told."""
    mix = found.class_mix
    if mix is None:
        return []
    counts = set(found.used.values())
    order = sorted(mix.labels, key=lambda name: -mix.labels[name])
    shares = [f"{name} {100 * mix.labels[name]:.0f} %" for name in order]
    labels = f"{counts.pop()} of each class" if len(counts) == 1 else some_of(shares, SHOWN, many="more classes")
    lines = [f"class mix of the labels: {labels}"]
    if mix.unlabeled is None:
        lines.append(f"class mix of the unlabelled images: not known; {mix.how}")
    elif mix.differs:
        told = mix.unlabeled.described(found.contents.classes)
        lines.append(f"class mix of the unlabelled images: {told}; estimated {mix.how}, with 95 % intervals")
    else:
        lines.append(f"class mix of the unlabelled images: may well be that of the labels, {mix.how}")
    return lines


def _details(found: Inspection, kind: str) -> list[str]:
    """The first of what a problem is about."""
    if kind == "unreadable":
        items = [f"{name}: {reason}" for name, reason in found.contents.unreadable]
    elif kind in ("conflicting_labels", "leak"):
        groups = found.duplicates.conflicting if kind == "conflicting_labels" else found.duplicates.leaking
        items = [_copies(group) for group in groups]
    else:
        return []
    if len(items) <= SHOWN + 1:
        return items
    return [*items[:SHOWN], f"... and {len(items) - SHOWN} more (--json lists all)"]


def _copies(group: Group) -> str:
    """Where copies of an image are, with one of each part and label among the first."""
    first = {(entry.part, entry.label): entry for entry in reversed(group)}
    first_shown = sorted(group, key=lambda entry: entry is not first[entry.part, entry.label])[:SHOWN]
    more = f" and {len(group) - SHOWN} more (--json lists all)" if len(group) > SHOWN else ""
    return ", ".join(f"{entry.name} ({entry.part}, {entry.label or 'unlabelled'})" for entry in first_shown) + more


def _advice(found: Inspection) -> list[str]:
    from ebpl.recommendation import FINE_TUNED

    suggestion, recommended = found.suggestion, found.recommendation
    if suggestion is None or recommended is None:
        return ["It cannot be trained on as it is."]
    how = f"on the features of {recommended.encoder}" if recommended.encoder else "from scratch"
    if recommended.preset == FINE_TUNED:
        how += ", whose last block learns too"
    if recommended.size_accuracies and (size := recommended.image_size):
        how += f" at {size} x {size} pixels"
    lines = [f"Learn {how}. {recommended.reason}", "", "Train with:", f"  {suggestion.command}"]
    if timing := suggestion.timing:
        images, encoding = number_of(len(found.contents.entries), "image"), ""
        if recommended.preset == FINE_TUNED:
            encoding = f"computing views of {number_of(len(found.contents.labels.train), 'training image')}, and "
        elif recommended.encoder:
            encoding = f"encoding {images}, unless they were encoded before, and "
        lines.append(
            f"It will take about {duration(timing.seconds)} here ({suggestion.device}): {encoding}{timing.updates:,} "
            f"updates of {_short_time(timing.update)}, estimated from {timing.timed} of them."
        )
    return [*lines, recommended.other] if recommended.encoder else lines


def _short_time(seconds: float) -> str:
    """The time of one update.

    >>> [_short_time(seconds) for seconds in (0.00123, 0.0456, 0.9, 2.16, 100)]
    ['1.2 ms', '46 ms', '0.9 s', '2.2 s', '100.0 s']
    """
    if seconds >= 0.5:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{1 if seconds < 0.01 else 0}f} ms"
