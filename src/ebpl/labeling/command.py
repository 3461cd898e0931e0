"""The commands `ebpl suggest` and `ebpl add-labels`. Heavy imports happen inside, so that the help answers at once."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from ebpl.options import Parser, positive, share


def add_suggest(parser: Parser) -> None:
    """The options of `ebpl suggest`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory")
    add("--n", type=positive, default=50, metavar="N", help="how many images (default: 50)")
    add("--output", default="-", metavar="FILE", help="the CSV to write (default: standard output)")
    add("--label-studio", metavar="FILE", help="also write tasks for Label Studio (JSON), and its labelling config "
        "beside it (.xml)")  # fmt: skip
    add("--image-url", metavar="PREFIX", help="tasks name images by PREFIX and path instead of holding them, for "
        "instance /data/local-files/?d=")  # fmt: skip
    add("--blind", action="store_true", help="tasks without the model's answer, so that it does not sway who labels")
    add("--with-outliers", action="store_true", help="also images that do not look like the others")
    add("--outlier-quantile", type=share, default=0.99, metavar="Q", help="an outlier has a higher energy than this "
        "share of the training images (default: 0.99)")  # fmt: skip


def suggest(options: argparse.Namespace) -> int:
    """Write which unlabelled images to label next."""
    from ebpl.files import partly_written
    from ebpl.labeling.suggesting import suggest
    from ebpl.runs import Run

    run = Run(options.run)
    images = run.load_data()
    found = suggest(
        run, options.n, data=images, outliers=options.with_outliers, outlier_quantile=options.outlier_quantile
    )
    rows = [suggestion.row(rank) for rank, suggestion in enumerate(found, start=1)]
    with partly_written(options.output) as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["rank", "image"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if options.label_studio:
        from ebpl.files import write_json, write_text
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
        write_json(target, label_studio.tasks(found, pictures, version, pre_annotate=not options.blind))
        write_text(target.with_suffix(".xml"), label_studio.config(images.classes))
    return 0


def add_add_labels(parser: Parser) -> None:
    """The options of `ebpl add-labels`."""
    add = parser.add_argument
    add("data", metavar="DATA", help="the folder, CSV or .npz that was trained on")
    add("labels", metavar="LABELS", help="an export of Label Studio (JSON, JSON-MIN or CSV), or a CSV of image,label")
    add("--output", required=True, metavar="FILE", help="the new .csv (or .npz for an .npz) to train on")
    add("--new-classes", action="store_true", help="allow labels of classes that the data does not have yet")


def add_labels(options: argparse.Namespace) -> int:
    """Write the data with the labels that came back."""
    from ebpl.labeling.adding import add_labels

    added = add_labels(options.data, options.labels, options.output, new_classes=options.new_classes)
    changed = f", {added.changed} images got another label" if added.changed else ""
    print(f"{added.new} images have a label now that had none{changed}. Train with: ebpl train {added.output}")
    return 0
