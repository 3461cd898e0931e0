"""The pages as a reader gets them: whole, and without a request to anywhere else."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, text_of


class Requests(HTMLParser):
    """Collects what a browser fetches for a page by itself: all but links that a reader may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and (name in ("src", "srcset", "poster", "data") or (name == "href" and tag != "a")):
                self.found.append(value)
            if value and name == "style":
                self.found += re.findall(r"url\(([^)]*)\)", value)


def test_every_page_is_there(site: Path) -> None:
    assert {page.removesuffix(".md") + ".html" for page in PAGES} <= {
        path.relative_to(site).as_posix() for path in site.rglob("*.html")
    }


def test_no_page_requests_anything_from_outside(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        requests = Requests()
        requests.feed(text)
        requests.found += re.findall(r"(?:url\(|@import )([^)]*)", "".join(re.findall(r"<style>(.*?)</style>", text)))
        for address in requests.found:
            assert not re.match(r"(?:https?:)?//", address.strip("'\" ")), f"{page.name} requests {address}"


def test_no_style_requests_anything_from_outside(site: Path) -> None:
    styles = list(site.rglob("*.css"))
    assert styles
    for style in styles:
        for address in re.findall(r"(?:url\(|@import )\s*['\"]?([^)'\"]*)", style.read_text(encoding="utf-8")):
            assert not re.match(r"(?:https?:)?//", address), f"{style.name} requests {address}"


def test_figures_and_pictures_are_there(site: Path) -> None:
    shown = 0
    for page in site.rglob("*.html"):
        for address in re.findall(r'<img [^>]*src="([^"]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / address).is_file(), f"{page.name} shows {address}, which is not there"
            shown += 1
    assert shown > 5


def test_nothing_is_left_to_be_filled_in(site: Path) -> None:
    for page in PAGES:
        text = (site / page).with_suffix(".html").read_text(encoding="utf-8")
        assert "<!-- generated:" not in text
        assert "not-run" not in text


def test_search_finds_a_setting(site: Path) -> None:
    index = (site / "search/search_index.js").read_text(encoding="utf-8")
    assert "optim.learning_rate" in index


def test_the_tools_are_no_part_of_the_site(site: Path) -> None:
    assert not (site / "tools").exists()


RESULTS = (
    "index.md",
    "explanation/calibration.md",
    "explanation/energy-penalty.md",
    "explanation/improvements.md",
    "explanation/results.md",
)


@pytest.mark.parametrize("page", RESULTS)
def test_numbers_of_results_are_only_in_generated_tables(page: str) -> None:
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    number = r"(?:\d+(?:\.\d+)?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|thirteen|twenty)"
    wrong = re.findall(rf"[^.\n]*\b{number}(?: and a half)? (?:percentage )?points?\b[^.\n]*", prose)
    wrong += re.findall(r"[^.\n]*(?:\d+\.\d+ ?%|\d ± \d|(?:accuracy|ECE) (?:of|is|was) \d)[^.\n]*", prose)
    allowed = ("a point or two", "to three to five points")  # the noise of a seed; the width of an interval
    assert [each for each in wrong if not any(words in each for words in allowed)] == []
