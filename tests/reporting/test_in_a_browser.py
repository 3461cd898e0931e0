"""The page in a real browser: Debian's Chromium, driven by Playwright (make test-browser)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ebpl
from ebpl.runs import Run
from tests.helpers import NEEDS_BROWSER, class_folders, quick
from tests.named_runs import EVIL, named_blobs

pytestmark = NEEDS_BROWSER
Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a page; afterwards nothing may have been asked of the network and nothing complained of."""
    asked: list[str] = []
    complaints: list[str] = []
    contexts = []

    def opened(path: Path, width: int = 1200, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        found = context.new_page()
        found.on("request", lambda request: asked.append(request.url))
        found.on("console", lambda message: complaints.append(message.text))
        found.on("pageerror", lambda error: complaints.append(str(error)))
        found.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        found.goto(path.resolve().as_uri())
        found.wait_for_load_state("networkidle")
        return found

    yield opened
    for context in contexts:
        context.close()
    assert asked
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    assert complaints == []


@pytest.fixture
def written(run_named: Callable[[str], Run]) -> Callable[[str], Path]:
    return lambda name: ebpl.report(run_named(name), data=None if name == "without truth" else named_blobs())


NAMES = ["with truth", "without truth", "baseline"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 768, 1600])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_sticks_out_to_the_side(
    written: Callable[[str], Path], open_page: Open, name: str, width: int, scheme: str
) -> None:
    found = open_page(written(name), width, scheme)
    assert found.evaluate("document.documentElement.scrollWidth") <= width


def test_long_names_do_not_stick_out_either(open_page: Open) -> None:
    folder = class_folders(Path("x" * 200))
    (folder / "cats").rename(folder / ("long" * 40))
    (folder / "unlabeled" / "0.png").rename(folder / "unlabeled" / ("y" * 240 + ".png"))
    run = ebpl.train(folder, quick(curriculum__steps=2), run="run")
    found = open_page(ebpl.report(run), 360)
    assert found.evaluate("document.documentElement.scrollWidth") <= 360
    found = open_page(ebpl.report(run, "labelled.html", folder), 360)
    assert found.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("classes", [3, 10])
def test_the_confusion_matrix_is_not_cut_on_a_phone(open_page: Open, classes: int) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(600) % classes
    images = random.integers(0, 255, (600, 8, 8), dtype=np.uint8)
    names = [f"a class with a long name {i}" for i in range(classes)]
    data = ebpl.from_arrays(images[:100], labels[:100], test_images=images, test_labels=labels, classes=names)
    run = ebpl.train(data, quick(epochs=1, pseudo_labels="none"), run="run")
    found = open_page(ebpl.report(run, data=data), 360)
    right = found.evaluate(
        "Math.max(...[...document.querySelectorAll('.matrix td')].map(e => e.getBoundingClientRect().right))"
    )
    box = found.evaluate("document.querySelector('.matrix').parentElement.getBoundingClientRect().right")
    assert right <= box + 1
    assert box <= 360
    table = "document.querySelector('.classes').parentElement"
    width, room = found.evaluate(f"[{table}.scrollWidth, {table}.clientWidth]")
    assert width <= room


def test_both_colour_schemes_are_readable(written: Callable[[str], Path], open_page: Open) -> None:
    path = written("with truth")
    colours = {}
    for scheme in ("light", "dark"):
        found = open_page(path, scheme=scheme)
        for where in ("body", "section p", "svg text", ".tiles .words", "td", "aside, header"):
            ink = "fill" if where.startswith("svg") else "color"
            front, back = found.evaluate(f"{LUMINANCE} luminances('{where}', '{ink}')")
            contrast = (max(front, back) + 0.05) / (min(front, back) + 0.05)
            assert contrast > 4.5, (scheme, where)  # WCAG 2, AA
        colours[scheme] = found.evaluate(f"{LUMINANCE} luminances('body', 'color')")[1]
    assert colours["dark"] < 0.1 < 0.8 < colours["light"]


LUMINANCE = """
const part = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = c => {
  const [r, g, b] = c.match(/[0-9.]+/g).map(v => part(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = e => {
  while (e.parentElement && getComputedStyle(e).backgroundColor.endsWith(', 0)')) e = e.parentElement;
  return getComputedStyle(e).backgroundColor;
};
const luminances = (where, ink) => {
  const found = document.querySelector(where);
  return [luminance(getComputedStyle(found)[ink]), luminance(background(found))];
};
"""


@pytest.mark.parametrize("name", NAMES)
def test_html_in_a_name_is_shown_as_text(written: Callable[[str], Path], open_page: Open, name: str) -> None:
    found = open_page(written(name))
    assert found.evaluate("document.scripts.length") == 0
    words = found.inner_text("body")
    assert (EVIL if name != "without truth" else EVIL.replace("/", "_")) in words


def test_every_picture_is_there_and_every_chart_has_a_size(written: Callable[[str], Path], open_page: Open) -> None:
    found = open_page(written("with truth"))
    widths = found.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert len(widths) > 30
    assert set(widths) == {8}
    sizes = found.evaluate("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)")
    assert len(sizes) >= 5
    assert min(sizes) > 100
    assert "0/0" not in found.inner_text("body")


def test_charts_say_what_they_show(written: Callable[[str], Path], open_page: Open) -> None:
    found = open_page(written("with truth"))
    labels = found.evaluate("[...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))")
    assert all(labels)
    assert found.evaluate("[...document.images].every(image => image.alt)")


def test_it_can_be_printed_in_black_on_white(written: Callable[[str], Path], open_page: Open) -> None:
    found = open_page(written("with truth"), 720, "dark")  # about the width of A4 between its margins
    assert found.pdf(format="A4").startswith(b"%PDF")
    found.emulate_media(media="print", color_scheme="dark")
    assert found.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not found.is_visible("nav")
    assert found.evaluate("document.documentElement.scrollWidth") <= 720


@pytest.mark.parametrize("width", [320, 1200])
def test_a_dot_of_the_map_shows_its_picture_where_it_is_pointed_at_or_reached_by_keyboard(
    written: Callable[[str], Path], open_page: Open, width: int
) -> None:
    found = open_page(written("with truth"), width)
    dots = found.query_selector_all(".map .spot")
    assert len(dots) > 50
    assert not found.is_visible(".map .card")
    dots[-1].hover()
    assert dots[-1].query_selector("img").is_visible()
    found.mouse.move(0, 0)
    assert not found.is_visible(".map .card")
    found.focus("nav a:last-child")
    for _ in range(5):  # before the map there may be tables that scroll
        found.keyboard.press("Tab")
        if card := found.query_selector(".map .spot:focus .card"):
            break
    assert card.is_visible()
    box = card.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert found.evaluate("document.documentElement.scrollWidth") <= width
