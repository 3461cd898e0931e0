"""The main job in about a minute: EBPL beside its baseline on the digits that come with scikit-learn."""

from __future__ import annotations

from pathlib import Path

from ebpl import api
from ebpl.data.load import load
from ebpl.learning.prediction import predict
from ebpl.methods import METHODS
from ebpl.reporting.progress import terminal_progress
from ebpl.reporting.tables import measures_table, show
from ebpl.runs import free_path
from ebpl.settings import preset

SHOWN = ("accuracy", "f_score", "ece", "overconfidence")


def demo(seed: int = 0, folder: Path = Path("runs")) -> Path:
    """Train both methods with 5 labels a class, print their measures side by side, and return the figure's path."""
    data = load("digits")
    folder = free_path(folder / f"demo-seed{seed}")
    measures, predicted = {}, {}
    print(f"digits: {len(data.train)} training images of 8 x 8 pixels, 5 labels in each of 10 classes, seed {seed}")
    for name, method in reversed(METHODS.items()):
        progress = terminal_progress(method.title)
        settings = preset("quick", method=name, seed=seed, pseudo_labels="hard")  # digits are easy: most are right
        run = api.train("digits", settings, run=folder / name, progress=progress)
        measures[method.title] = run.metrics()["metrics"]
        assert data.test is not None
        model, _ = run.load_model()
        predicted[method.title] = (predict(model, data.test.pixels).probabilities, data.test.labels)
    title = f"digits, {len(data.test or ())} test images, 50 labels, {settings.pseudo_labels} pseudo-labels"
    show(measures_table(title, measures, SHOWN))
    figure = folder / "reliability.png"
    api.draw_reliability(figure, predicted)
    print(f"Reliability diagram: {figure}")
    return figure
