"""What EBPL_COMMIT should say where a copy of this checkout runs: `EBPL_COMMIT=$(python -m experiments.commit)`.

A copy has no git to ask for its commit. The value is the commit and a digest of the source files; where the files of
the copy have another digest, the commit is recorded with -dirty behind it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ebpl.devices import source_digest
from ebpl.errors import RunError

ROOT = Path(__file__).parents[1]


def commit(root: Path = ROOT) -> str:
    """COMMIT:DIGEST; the commit ends in -dirty where something is changed or not committed."""
    dirty = "-dirty" if _git(root, "status", "--porcelain") else ""
    return f"{_git(root, 'rev-parse', '--short=12', 'HEAD')}{dirty}:{source_digest()}"


def _git(root: Path, *arguments: str) -> str:
    try:
        found = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"{root} is not a checkout whose commit git can name: {error}") from error
    return found.stdout.strip()


if __name__ == "__main__":
    value = commit()
    if "-dirty" in value:
        print("There are changes that are not committed, so records will say -dirty.", file=sys.stderr)
    print(value)
