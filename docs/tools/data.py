"""The benchmarks and the image files that can be read."""

from __future__ import annotations

from docs.tools.text import code, table
from ebpl.data.benchmarks import BENCHMARKS, load_benchmark
from ebpl.data.decode import IMAGE_ENDINGS


def benchmarks() -> str:
    """What `ebpl train` knows by name."""
    rows = [
        [code(name), each.title, len(each.classes), each.labels_per_class, each.train_images, each.test_images]
        for name, each in BENCHMARKS.items()
    ]
    digits = load_benchmark("digits")
    own = [len(digits.classes), digits.labels_per_class, len(digits.train), len(digits.test or ())]
    rows.append([code("digits"), "scikit-learn's digits", *own])
    heads = ["name", "data", "classes", "labels per class", "training images", "test images"]
    return table(heads, [[_number(cell) for cell in row] for row in rows])


def extensions() -> str:
    """Extensions of the files that count as images."""
    return ", ".join(code(ending) for ending in sorted(IMAGE_ENDINGS)) + "."


def _number(cell: object) -> str:
    return f"{cell:,}".replace(",", " ") if isinstance(cell, int) else str(cell)
