from pathlib import Path

import pytest

from docs.tools.hooks import MADE, filled
from ebpl.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MADE)
def test_whatever_is_made_is_not_empty_and_used(name: str) -> None:
    assert filled(f"<!-- made: {name} -->", ROOT).strip()
    assert any(f"<!-- made: {name} -->" in page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))


def test_a_wrong_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError, match="Did you mean settings"):
        filled("<!-- made: setings -->", ROOT)


def test_the_reader_is_told_why_a_block_is_not_run() -> None:
    assert filled("```sh {not-run: needs SLURM}\nsrun\n```", ROOT) == '```sh title="needs SLURM"\nsrun\n```'
    assert filled("```sh {interrupted}\nebpl\n```", ROOT) == "```sh\nebpl\n```"


def test_figures_of_the_repository_are_found_in_the_site() -> None:
    assert filled("![A](../../reproduced/x.png)", ROOT) == "![A](../reproduced/x.png)"
    assert filled("[A](../../README.md)", ROOT) == "[A](../../README.md)"
