from pathlib import Path

from PIL import Image

from ebpl.cli.train import demo
from ebpl.config.presets import PRESETS


def test_the_demo_shows_both_methods_and_a_picture(capsys, monkeypatch) -> None:
    # the whole demo runs in CI; here it is the same on a short schedule
    monkeypatch.setitem(PRESETS, "quick", {**PRESETS["quick"], "epochs": 1, "steps": 1, "step_epochs": 1})
    figure = demo(seed=1, folder=Path("demos"))
    printed = capsys.readouterr().out
    for text in ("baseline", "EBPL", "accuracy", "macro F-score", "ECE, 15 bins", str(figure)):
        assert text in printed
    with Image.open(figure) as picture:
        assert picture.width > 800
    again = demo(seed=1, folder=Path("demos"))
    assert again != figure
