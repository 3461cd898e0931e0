"""The pages opened from a disk, as somebody without a network would (make test-browser)."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PAGES
from tests.helpers import NEEDS_BROWSER

pytestmark = NEEDS_BROWSER


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280)])
def test_pages_ask_for_nothing_from_outside_and_fit_the_screen(
    browser: Any, site: Path, scheme: str, width: int
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    asked: list[str] = []
    wrong: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in PAGES:
        page.goto((site / name).with_suffix(".html").as_uri())
        assert page.locator("h1").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    context.close()
    assert wrong == []
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []


def test_search_works_without_a_server(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.locator("input[data-md-component=search-query]").click()
    page.keyboard.type("reject_outliers")
    page.locator(".md-search-result__link").first.wait_for(timeout=10_000)
    assert "settings" in page.locator(".md-search-result__list").inner_html()
    page.close()
