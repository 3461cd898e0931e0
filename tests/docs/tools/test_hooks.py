from pathlib import Path

import pytest

from docs.tools.hooks import GENERATED, ROOT, filled
from ebpl.errors import UsageError

PAGES = {page: page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")}


def test_the_root_is_the_repository() -> None:
    assert Path(__file__).parents[3] == ROOT


@pytest.mark.parametrize("name", GENERATED)
def test_whatever_is_generated_is_not_empty_and_used(name: str) -> None:
    assert filled(f"<!-- generated: {name} -->", ROOT).strip()
    assert any(f"<!-- generated: {name} -->" in text for text in PAGES.values())


def test_a_wrong_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError, match="Did you mean settings"):
        filled("<!-- generated: setings -->", ROOT)


def test_the_reader_sees_why_a_block_is_not_run() -> None:
    assert filled("```sh {not-run: needs SLURM}\nsrun\n```", ROOT) == '```sh title="needs SLURM"\nsrun\n```'
    assert filled("```sh {interrupted}\nebpl\n```", ROOT) == "```sh\nebpl\n```"


def test_figures_of_the_repository_are_found_in_the_site() -> None:
    assert filled("![A](../../reproduced/x.png)", ROOT) == "![A](../reproduced/x.png)"
    assert filled("![A](../../results/samples/x.png)", ROOT) == "![A](../results/samples/x.png)"
    assert filled("[A](../../README.md)", ROOT) == "[A](../../README.md)"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/reference").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_the_reference_says_what_it_holds_before_it_is_built(page: Path) -> None:
    before = PAGES[page].split("<!-- generated:")[0]
    assert len(before.split()) > 40
    assert "make docs" in PAGES[page] or page.stem == "data"
