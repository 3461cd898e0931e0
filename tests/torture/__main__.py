"""Run the attacks and say what they found: `python -m tests.torture --kills 100 --damaged 500 --hostile 150`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ebpl.io import write_json
from experiments.commit import commit
from tests.torture.damage import damage
from tests.torture.hostile import hostile
from tests.torture.kills import kills


def main() -> int:
    """Exit code 1 where an attack found something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="moments of SIGKILL (default: 100)")
    parser.add_argument("--damaged", type=int, default=500, metavar="N", help="damaged files (default: 500)")
    parser.add_argument("--hostile", type=int, default=150, metavar="N", help="hostile inputs (default: 150)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the counts to this file, as JSON")
    options = parser.parse_args()
    attacks = {damage: options.damaged, hostile: options.hostile, kills: options.kills}
    counts = []
    with tempfile.TemporaryDirectory(prefix="ebpl-torture-") as folder:
        for attack, count in attacks.items():
            if count:
                found = attack(count, Path(folder) / attack.__name__, options.seed)
                counts.append({"attack": found.attack, "attacks": found.counts.total(), "wrong": len(found.wrong)})
                print(found, flush=True)
    if options.record:
        write_json(options.record, {"commit": commit(), "seed": options.seed, "counts": counts})
    return 1 if any(each["wrong"] for each in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
