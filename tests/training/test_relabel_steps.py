import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from ebpl.runs import Run, free_path
from ebpl.terminal import Silent
from ebpl.training.relabel import begin_step, set_pseudo_labels
from ebpl.training.trainer import Trainer
from tests.helpers import blobs, quick


def begun(**changes: object) -> Trainer:
    """A trainer with fresh weights that has just begun its first step of two."""
    data = blobs(unlabeled=False)
    run = Run.create(free_path(Path("run")), quick(curriculum__steps=2, labels_per_class=3, **changes), data, {})
    trainer = Trainer(run, data, Silent())
    next(trainer.work())
    begin_step(trainer, trainer.schedule[1])
    return trainer


def listed(trainer: Trainer, name: str = "step-1.csv") -> list[dict[str, str]]:
    with (trainer.run.path / "pseudo_labels" / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("selection", ["all", "class"])
def test_half_of_the_images_get_the_label_that_is_listed(selection: str) -> None:
    trainer = begun(selection=selection, pseudo_labels="hard")
    rows = listed(trainer)
    assert len(rows) == len(trainer.chosen)
    assert abs(len(rows) - len(trainer.unlabeled) / 2) <= (2 if selection == "class" else 0.5)
    pseudo = trainer.pool.targets[trainer.labeled_count :]
    classes = [trainer.data.classes[int(row.argmax())] for row in pseudo[trainer.chosen]]
    assert classes == [row["label"] for row in rows]
    assert pseudo.sum() == len(rows)


def test_by_class_each_predicted_class_gives_half_of_its_images() -> None:
    trainer = begun(selection="class")
    predicted = trainer.predict(trainer.pool.images[trainer.labeled_count :]).labels
    for label in np.unique(predicted):
        assert (predicted[trainer.chosen] == label).sum() == -(-(predicted == label).sum() // 2)


def test_sharper_labels_are_nearer_to_the_predicted_class() -> None:
    soft, sharp = (begun(pseudo_labels="soft", sharpening=t).pool.targets for t in (1.0, 0.5))
    assert torch.equal(soft.argmax(1), sharp.argmax(1))
    squared = soft.double().square()
    torch.testing.assert_close(
        sharp.double(), squared / squared.sum(1, keepdim=True).clamp_min(1e-12), rtol=1e-5, atol=1e-6
    )


def test_images_that_are_not_chosen_any_more_lose_their_label() -> None:
    trainer = begun(pseudo_labels="hard")
    set_pseudo_labels(trainer, np.array([2, 5]), torch.eye(3)[[1, 2]])
    pseudo = trainer.pool.targets[trainer.labeled_count :]
    assert trainer.chosen == [2, 5]
    assert pseudo.sum(1).nonzero().flatten().tolist() == [2, 5]
    assert trainer.pool.targets[: trainer.labeled_count].sum(1).tolist() == [1.0] * trainer.labeled_count


def test_outliers_get_no_label_and_are_listed_strangest_first() -> None:
    trainer = begun(reject_outliers=0.5)
    rows = listed(trainer, "outliers-1.csv")
    distances = [float(row["distance"]) for row in rows]
    assert distances == sorted(distances, reverse=True)
    assert all(np.isfinite(float(row["energy"])) for row in rows)
    assert len(rows) == len(trainer.rejected) > 0
    assert set(trainer.rejected).isdisjoint(trainer.chosen)
