"""What tests of several rooms ask for."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # no sandbox: the pages are ours, and containers often run tests as root
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()
