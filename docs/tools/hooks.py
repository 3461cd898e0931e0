"""Hooks of MkDocs: fill pages with what is generated from code and results, and add figures.

In a page, `<!-- generated: NAME -->` stands for a text of `GENERATED`, and `![...](../../reproduced/X.png)` for a
figure of the repository, here of `reproduced/`, which is copied into the site. A code block may have a mark behind its
language: `{not-run: why}` tells the tests not to run it and the reader why, `{interrupted}` tells the tests to
interrupt it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # MkDocs loads this file by its path
    sys.path.insert(0, str(ROOT))

from docs.tools import (
    commands,
    coverage,
    data,
    divergence,
    generative,
    imbalance,
    label_errors,
    methods,
    metrics,
    photos,
    python,
    records,
    results,
    run_files,
    settings,
    unseen,
)
from ebpl.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

FIGURES = ("reproduced/*.png", "results/samples/*.png", "benchmarks/scaling.png")
EXPLORED = ("mixing", "energies", "agreement", "small", "unmixed", "unmixed_best", "unsure", "waiting", "generative")
"""Searches in `results/explored`."""
GENERATED: dict[str, Callable[[Path], str]] = {
    "settings": lambda _: settings.settings(),
    "presets": lambda _: settings.presets(),
    "methods": lambda _: methods.methods(),
    "published": methods.published,
    "commands": lambda _: commands.commands(),
    "exit codes": lambda _: commands.exit_codes(),
    "python": lambda _: python.names(),
    "benchmarks": lambda _: data.benchmarks(),
    "image extensions": lambda _: data.extensions(),
    "divergence changes": lambda _: divergence.changes(),
    "divergence limits": lambda _: divergence.limits(),
    "run files": lambda _: run_files.described(run_files.FILES, "file"),
    "metrics.csv": lambda _: run_files.described(run_files.METRICS),
    "metrics.csv of methods": lambda _: run_files.described(run_files.METHOD_METRICS),
    "pseudo-labels": lambda _: run_files.described(run_files.PSEUDO_LABELS),
    "test_metrics.json": lambda _: run_files.described(run_files.RESULT, "entry"),
    "predictions": lambda _: run_files.described(run_files.PREDICTIONS),
    "suggestions": lambda _: run_files.described(run_files.SUGGESTIONS),
    "metrics": lambda _: metrics.metrics(),
    "report metrics": lambda _: metrics.report_metrics(),
    "record": lambda _: records.record(),
    "example record": records.example,
    "digits": partial(results.table, name="digits"),
    "table 1": results.table1,
    "paper configuration": partial(results.table1, name="paper configuration"),
    "few labels": results.few_labels,
    "best": lambda root: results.unbroken(results.table(root, "best")),
    "parts of best": results.parts_of_best,
    "field": results.field,
    "training time": partial(results.table, name="presets"),
    "distances": results.distances,
    "stopping points": results.stopping_points,
    "ablation": results.ablation,
    "ablation of a small network": results.ablation_of_a_small_network,
    "ablation at full length": results.ablation_at_full_length,
    **{f"explored {search}": partial(results.explored, search=search) for search in EXPLORED},
    "outliers experiment": partial(results.multi_run, experiment="outliers"),
    "open set": partial(results.multi_run, experiment="open_set"),
    "suggestions experiment": partial(results.multi_run, experiment="suggestions"),
    "speed": results.speed,
    "torture": results.torture,
    "duplicates": results.duplicates,
    "explored likelihood": results.likelihood,
    "generative classifier": generative.classifier,
    "generative energy model": generative.energy_model,
    "generative goals": generative.goals,
    "photos": photos.comparison,
    "coverage of sets": coverage.gaps,
    "coverage of sets at most": coverage.farthest,
    "sizes of sets": coverage.sizes,
    "ensembles": coverage.ensembles,
    "set methods": lambda _: coverage.methods(),
    "class mixes": imbalance.comparison,
    "unseen": unseen.scores,
    "label errors": label_errors.found,
    "learning curves": label_errors.gains,
    "label errors columns": lambda _: run_files.described(run_files.LABEL_ERRORS),
}
_OUTSIDE = re.compile(r"\]\(\.\./\.\./(?=(?:reproduced|results/samples|benchmarks)/\S+\.png\))")
"""From a page in `docs/PART/` to a figure of the repository; in the site it is one folder nearer."""
_MARK = re.compile(r"^<!-- generated: (.+?) -->$", re.MULTILINE)
_FENCE = re.compile(r"^( *```\w+) \{(not-run: ([^}]+)|interrupted)\}$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the figures that pages show."""
    from mkdocs.structure.files import File

    for path in sorted(path for pattern in FIGURES for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in what is generated."""
    return filled(markdown, ROOT)


def filled(markdown: str, root: Path) -> str:
    """A page with everything generated in its place, and code blocks in Markdown's own syntax."""
    markdown = _OUTSIDE.sub("](../", markdown)
    return _FENCE.sub(_titled, _MARK.sub(lambda found: _generated(found[1], root), markdown))


def _generated(name: str, root: Path) -> str:
    if name not in GENERATED:
        raise UsageError(f"Nothing is generated under the name {name!r}. {did_you_mean(name, GENERATED)}")
    return GENERATED[name](root)


def _titled(found: re.Match[str]) -> str:
    return f'{found[1]} title="{found[3]}"' if found[3] else found[1]
