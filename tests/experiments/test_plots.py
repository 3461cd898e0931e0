from pathlib import Path

import numpy as np
from PIL import Image

from experiments.plots import reliability_diagram
from tests.measuring.test_calibration import random_predictions


def test_a_diagram_with_empty_bins_and_unlabelled_images_is_drawn(tmp_path: Path) -> None:
    probabilities, labels = random_predictions(0, 200, 4, 3.0)
    some_hidden = np.where(np.arange(200) < 50, -1, labels)
    path = tmp_path / "new" / "reliability.png"
    reliability_diagram(path, {"one": (probabilities, some_hidden), "two": (np.eye(4)[labels], labels)})
    with Image.open(path) as image:
        assert image.width > image.height > 400
        assert len(image.convert("RGB").getcolors(10**6) or []) > 20
