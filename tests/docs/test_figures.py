"""Figures that pages show were drawn from the records as they are."""

import re

import pytest
from PIL import Image

from ebpl.config.presets import preset
from experiments.grid import UNSEEN_SEEDS, cells, found
from experiments.readme import SEEDS, SHOWN
from experiments.results_store import digest, load
from tests.docs.pages import PAGES, ROOT, text_of

FIGURES = sorted({name for page in PAGES for name in re.findall(r"/reproduced/(\S+\.png)\)", text_of(page))})


def test_the_pages_show_figures_of_the_experiments() -> None:
    assert len(FIGURES) > 7
    assert {"table1-reliability-blood.png", "best-curves-cifar10.png"} <= set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_was_drawn_from_what_the_records_hold(name: str) -> None:
    experiment, data = name.split("-", 1)[0], name.removesuffix(".png").rsplit("-", 1)[-1]
    standard = preset("standard")
    shown = {
        "table1": (SHOWN, SEEDS, standard),
        "labels": (None, UNSEEN_SEEDS, standard),
        "best": (None, SEEDS, preset("best")),
    }[experiment]
    chosen = [cell for cell in cells(experiment, *shown) if cell.data == data]
    drawn_from = [record for _, record in found(chosen, load(ROOT / "results"))]
    assert drawn_from
    with Image.open(ROOT / "reproduced" / name) as image:
        assert image.info["Source"] == digest(drawn_from), "run: make reproduced"
