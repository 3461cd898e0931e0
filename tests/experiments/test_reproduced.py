"""What stands in `reproduced/` is what the records of `results/` make, to the last digit."""

import pytest
from PIL import Image

from ebpl.config.presets import preset
from experiments.ablation import base
from experiments.field import published
from experiments.grid import UNSEEN_SEEDS, found, shown_cells
from experiments.output import pages
from experiments.readme import SEEDS, SHOWN
from experiments.results_store import digest, load
from tests.helpers import ROOT

FOLDER = ROOT / "reproduced"
RECORDS = load(ROOT / "results")
BEST = preset("best")
SETTINGS = {"table1": preset("standard"), "labels": preset("standard"), "best": BEST, "parts": BEST, "ablation": base()}
SHOWN_OF = {
    "table1": (SHOWN, SEEDS),
    "best": (None, SEEDS),
    "parts": (None, UNSEEN_SEEDS),
    "labels": (None, UNSEEN_SEEDS),
    "ablation": (None, range(3)),
}
CELLS = {name: shown_cells(name, *SHOWN_OF[name], settings, None, RECORDS) for name, settings in SETTINGS.items()}
PAGES = {
    page: text
    for name, settings in SETTINGS.items()
    for page, text in pages(name, CELLS[name], RECORDS, settings).items()
}
PAGES |= (FIELD := published()).pages(RECORDS)
CELLS["field"] = FIELD.cells()
FIGURES = sorted(path.name for path in FOLDER.glob("*.png"))


def test_every_text_page_is_made_of_the_records() -> None:
    there = {path.name for path in FOLDER.iterdir() if path.suffix not in (".png", ".svg")}
    assert there == PAGES.keys()
    assert {
        "table1.md",
        "best.md",
        "parts.md",
        "labels.md",
        "ablation.md",
        "table1-last.csv",
        "table1-chosen.tex",
    } <= there


@pytest.mark.parametrize("name", PAGES)
def test_a_page_holds_what_the_records_hold(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PAGES[name], "run: make reproduced"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_was_drawn_from_what_the_records_hold(name: str) -> None:
    experiment = name.split("-", 1)[0]
    data = next(data for data in sorted(SHOWN, key=len, reverse=True) if name.removesuffix(".png").endswith(f"-{data}"))
    drawn_from = [record for cell, record in found(CELLS[experiment], RECORDS) if cell.data == data]
    assert len(drawn_from) > 0
    with Image.open(FOLDER / name) as image:
        assert image.info["Source"] == digest(drawn_from), "run: make reproduced"
