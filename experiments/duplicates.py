"""Counts test images that are also among the training images: `python -m experiments.duplicates blood svhn ...`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ebpl.data import load
from ebpl.data.dataset import ImageSet
from ebpl.io import write_json

PATH = Path("results/data/duplicates.json")


def count(data: ImageSet) -> dict[str, int]:
    """How many test images have an exact copy in the training images, and how many of those with another label."""
    assert data.test is not None
    labels: dict[bytes, Counter[int]] = {}
    for digest, label in zip(data.train.digests(), data.train.labels.tolist(), strict=True):
        labels.setdefault(digest, Counter())[label] += 1
    copies = [
        (label, labels[digest])
        for digest, label in zip(data.test.digests(), data.test.labels.tolist(), strict=True)
        if digest in labels
    ]
    return {
        "train_images": len(data.train),
        "test_images": len(data.test),
        "copies": len(copies),
        "copies_with_another_label": sum(label not in others for label, others in copies),
    }


def main(datasets: Sequence[str]) -> None:
    """Add the counts of these benchmarks to the file."""
    known = json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else {}
    write_json(PATH, {**known, **{name: count(load(name)) for name in datasets}})


if __name__ == "__main__":
    main(sys.argv[1:])
