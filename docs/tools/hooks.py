"""What MkDocs calls while it builds the pages: fills in what is made from code and results, and fetches figures.

In a page, `<!-- made: NAME -->` stands for a text of `MADE`, and `![...](../../reproduced/X.png)` for a figure of the
repository, which is copied, not kept twice. Behind the language of a code block may stand `{not-run: why}`, which tells
the tests not to run it and the reader why, and `{interrupted}`, which tells the tests to stop it half way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from docs.tools import commands, data, files, guarding, ledger, measures, python, results, settings
from ebpl.config.presets import preset
from ebpl.errors import UsageError, did_you_mean
from experiments.ablation import SMALL, base
from experiments.cells import PAST_DATASETS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

FIGURES = ("reproduced/*.png", "benchmarks/scaling.png")
EXPLORED = ("mixing", "energies", "agreement", "small", "unmixed", "unsure", "waiting")
"""Searches below `results/explored`."""
MADE: dict[str, Callable[[Path], str]] = {
    "settings": lambda _: settings.settings(),
    "presets": lambda _: settings.presets(),
    "commands": lambda _: commands.commands(),
    "exit codes": lambda _: commands.exit_codes(),
    "python": lambda _: python.names(),
    "benchmarks": lambda _: data.benchmarks(),
    "image endings": lambda _: data.endings(),
    "guard's changes": lambda _: guarding.changes(),
    "guard's limits": lambda _: guarding.limits(),
    "files": lambda _: files.described(files.FILES, "file"),
    "metrics.csv": lambda _: files.described(files.METRICS),
    "pseudo-labels": lambda _: files.described(files.PSEUDO_LABELS),
    "result": lambda _: files.described(files.RESULT, "entry"),
    "predictions": lambda _: files.described(files.PREDICTIONS),
    "suggestions": lambda _: files.described(files.SUGGESTIONS),
    "measures": lambda _: measures.measures(),
    "other measures": lambda _: measures.others(),
    "record": lambda _: ledger.record(),
    "example of a record": ledger.example,
    "table of digits": lambda root: results.of_readme(root, "digits"),
    "table of results": results.table1,
    "best": lambda root: results.together(results.of_readme(root, "best")),
    "ablation": lambda root: results.ablated(root, base()),
    "ablation of a small network": lambda root: results.ablated(root, preset("best", **SMALL)),
    "ablation at full length": lambda root: results.ablated(root, preset("best"), PAST_DATASETS),
    **{f"explored {search}": partial(results.explored, search=search) for search in EXPLORED},
    "moments": results.moments,
    "distances": results.distances,
    "outliers": lambda root: results.beyond(root, "outliers"),
    "suggested": lambda root: results.beyond(root, "suggestions"),
    "minutes": lambda root: results.of_readme(root, "presets"),
    "speed": results.speed,
}
_OUTSIDE = re.compile(r"\]\(\.\./\.\./(?=(?:reproduced|benchmarks)/\S+\.png\))")
"""From a page in `docs/PART/` to a figure of the repository; in the site it is one folder nearer."""
_MARK = re.compile(r"^<!-- made: (.+?) -->$", re.MULTILINE)
_FENCE = re.compile(r"^( *```\w+) \{(not-run: ([^}]+)|interrupted)\}$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the figures that pages show."""
    from mkdocs.structure.files import File

    root = root_of(config)
    for path in sorted(path for pattern in FIGURES for path in root.glob(pattern)):
        files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: object) -> str:
    """Fill in what is made."""
    return filled(markdown, root_of(config))


def root_of(config: MkDocsConfig) -> Path:
    """The repository."""
    return Path(config.config_file_path).parent


def filled(markdown: str, root: Path) -> str:
    """A page with all that is made in its place, and code blocks as Markdown knows them."""
    markdown = _OUTSIDE.sub("](../", markdown)
    return _FENCE.sub(_titled, _MARK.sub(lambda found: _made(found[1], root), markdown))


def _made(name: str, root: Path) -> str:
    if name not in MADE:
        raise UsageError(f"There is nothing made under the name {name!r}. {did_you_mean(name, MADE)}")
    return MADE[name](root)


def _titled(found: re.Match[str]) -> str:
    return f'{found[1]} title="{found[3]}"' if found[3] else found[1]
