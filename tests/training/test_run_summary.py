import numpy as np

from ebpl.models.predictions import Predictions
from ebpl.training.run_summary import pseudo_label_rows
from tests.helpers import blobs


def test_rows_tell_image_label_confidence_and_truth() -> None:
    data = blobs(unlabeled=False)
    predictions = Predictions(np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), np.zeros(2))
    first, second = pseudo_label_rows(data, np.array([4, 9]), predictions, np.array([1, 0]))
    assert (first["image"], first["label"], first["confidence"], first["p(2)"]) == ("9", "2", "0.8", "0.800000")
    assert (second["image"], second["truth"]) == ("4", data.classes[data.train.labels[4]])


def test_the_labels_of_all_images_are_looked_for_once_not_for_every_row() -> None:
    looked: list[str] = []

    class Watched(Predictions):
        @property
        def labels(self) -> np.ndarray:
            looked.append("labels")
            return super().labels

        @property
        def confidences(self) -> np.ndarray:
            looked.append("confidences")
            return super().confidences

    predictions = Watched(np.full((5, 3), 1 / 3), np.zeros(5))
    assert len(pseudo_label_rows(blobs(unlabeled=False), np.arange(5), predictions, np.arange(5))) == 5
    assert sorted(looked) == ["confidences", "labels"]
