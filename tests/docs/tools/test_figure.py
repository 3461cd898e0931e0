import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.tools.figure import FIGURE, ROOT, SHOWN, reliability
from ebpl.errors import DataError
from ebpl.reporting.charts import draw_reliability
from experiments.results_store import load


def test_the_figure_of_the_readme_is_drawn_from_the_records() -> None:
    again = draw_reliability(Path("again.svg"), reliability(load(ROOT / "results")))
    assert again.read_text("utf-8") == FIGURE.read_text("utf-8"), "run: make readme"


def test_it_shows_every_title_with_accuracy_and_ece() -> None:
    words = " ".join(ET.parse(FIGURE).getroot().itertext())
    assert all(f"{title}: accuracy " in words for title in SHOWN)
    assert words.count("ECE") == len(SHOWN)


def test_a_missing_record_is_an_error() -> None:
    with pytest.raises(DataError, match="no record of blood"):
        reliability([])
