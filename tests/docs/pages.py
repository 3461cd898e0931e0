"""The pages of the documentation and the code blocks in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
_FENCE = re.compile(r"^ *```(\S*)(?: \{([^}]*)\})?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block: its language, what stands in braces behind it, and its text."""

    language: str
    mark: str
    text: str

    def commands(self) -> Iterator[str]:
        """Lines of a shell, without those that are a comment."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line.strip()


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    return [Block(language, mark or "", text) for language, mark, text in _FENCE.findall(text_of(page))]
