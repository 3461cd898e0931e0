import json
from pathlib import Path

import numpy as np

import ebpl
from experiments import duplicates
from tests.helpers import random_images


def with_copies() -> ebpl.ImageSet:
    train, test = random_images(30, 8, 8), random_images(50, 8, 8)[40:].copy()
    test[0], test[1] = train[3], train[4]
    labels = np.arange(30) % 3
    return ebpl.from_arrays(
        train, labels, test_images=test, test_labels=np.array([labels[3], labels[4] + 1, *[0] * 8]) % 3, name="copies"
    )


def test_exact_copies_of_training_images_are_counted_and_those_with_another_label() -> None:
    found = duplicates.count(with_copies())
    assert found == {"train_images": 30, "test_images": 10, "copies": 2, "copies_with_another_label": 1}


def test_counts_are_added_to_those_that_are_there() -> None:
    duplicates.PATH.parent.mkdir(parents=True)
    duplicates.PATH.write_text('{"blood": {"copies": 5}}')
    duplicates.main(["digits"])
    stored = json.loads(Path("results/data/duplicates.json").read_text())
    assert stored["blood"] == {"copies": 5}
    assert stored["digits"]["copies"] == 0
