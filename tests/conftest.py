"""What tests of several rooms ask for."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import ebpl
from ebpl.runs import Run
from tests.helpers import CHROMIUM, blobs, quick
from tests.named_runs import run_named as run_named


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small finished run, trained once; not to be changed."""
    return ebpl.train(blobs(), quick(), run=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(trained: Run) -> Run:
    """A copy of it in the test's own folder."""
    return Run(shutil.copytree(trained.path, "run"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # no sandbox: the pages are ours, and containers often run tests as root
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()
