"""The command `ebpl report`. Heavy imports happen inside, so that the help answers at once."""

from __future__ import annotations

import argparse

from ebpl.options import Parser


def add_options(parser: Parser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("run", metavar="RUN", help="the run directory, finished or not")
    add("--output", metavar="FILE", help="the page to write (default: report.html in the run directory)")
    add("--data", metavar="DATA", help="images to look at, with labels or without (default: the run's own)")
    add("--data-dir", metavar="DIR", help="where benchmarks are looked for first (also: EBPL_DATA)")


def report(options: argparse.Namespace) -> int:
    """Write the page."""
    from ebpl.reporting.page.make import report
    from ebpl.reporting.progress import counted

    with counted("images") as done:
        path = report(options.run, options.output, options.data, data_dir=options.data_dir, done=done)
    print(f"The report is in {path}")
    return 0
