"""The command `ebpl encoders`."""

from __future__ import annotations

import argparse
from typing import Any

from ebpl.cli.options import Parser
from ebpl.terminal import harmless


def add_encoders_options(parser: Parser) -> None:
    """The options of `ebpl encoders`."""
    parser.add_argument(
        "name",
        metavar="ENCODER",
        nargs="?",
        help="load this one: a name, timm:NAME, or the .toml file of your own (default: list the published ones)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, for programs")


def encoders(options: argparse.Namespace) -> int:
    """Show which encoders there are, or that one can be loaded."""
    import json

    from ebpl.encoders import DEFAULT, described, described_encoders, load_encoder
    from ebpl.io import finite
    from ebpl.terminal import show

    if options.name:
        loaded = load_encoder(options.name)
        rows = [{**described(loaded.info), "digest": loaded.digest}]
    else:
        rows = described_encoders()
    if options.json:
        print(json.dumps(finite(rows), indent=2, ensure_ascii=False))
        return 0
    show(_table(rows))
    for row in rows:
        if not row["installed"]:
            print(f"To install the weights of {row['name']}: {row['install']}")
    if options.name:
        print(f"It was loaded, and turns an image into {rows[0]['features']} features.")
    else:
        print(f"The default is {DEFAULT}. Others: timm:NAME, or your own weights, described in a .toml file:")
        print("see docs/how-to/encoders.md.")
    return 0


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Pretrained encoders", title_justify="left")
    table.add_column("encoder", overflow="fold")
    table.add_column("input", justify="right")
    table.add_column("features", justify="right")
    table.add_column("licence")
    table.add_column("installed")
    for row in rows:
        cells = (row["name"], f"{row['size']} x {row['size']}", str(row["features"]), row["licence"])
        shown = (Text(harmless(cell).replace("\n", r"\n")) for cell in cells)
        table.add_row(*shown, "yes" if row["installed"] else "no")
    return table
