"""The command `python -m benchmarks`, for a checkout. Heavy imports happen inside: the help answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ebpl import launch
from ebpl.cli import guarded
from ebpl.cli.options import Parser, counts, positive, seconds, words


def build_parser() -> Parser:
    """The command's own parser."""
    described = "Measure the training step and prediction on this machine, beside a plain loop in the style of JEM."
    parser = Parser(prog="python -m benchmarks", description=described)
    add = parser.add_argument
    add("--networks", type=words, metavar="LIST", help="depth-width of each (default: 28-10,28-2,16-4; CPU: 10-1)")
    add("--best", type=words, metavar="LIST", help="the update of the preset best with these networks (default: 16-4; "
        "none on a CPU or with --networks)")  # fmt: skip
    add("--seeds", type=counts, metavar="LIST", help="how many runs at once on a GPU (default: 1,5)")
    add("--sgld-steps", type=positive, metavar="N", help="sampling steps K for each update (default: 20; CPU: 5)")
    add("--batch-size", type=positive, metavar="N", help="images in each part of the batch (default: 64; CPU: 16)")
    add("--image-size", type=positive, metavar="N", help="images are N x N (default: 32; CPU: 28)")
    add("--rounds", type=positive, default=5, metavar="N", help="how often everything is timed (default: 5)")
    add("--device", default="auto", metavar="auto|cpu|cuda", help="what to measure (default: the GPU if any)")
    add(
        "--scaling",
        nargs="?",
        const="default",
        metavar="NETWORK",
        help="also vary K, batch, image size and number of images around this network (default: 16-4; CPU: 10-1)",
    )
    add("--time-limit", type=seconds, default=float("inf"), metavar="20m", help="begin nothing new after that")
    add(
        "--record",
        metavar="FILE|DIR",
        help="where to write the record, as FILE.json or with a name of its own in DIR "
        "(default: benchmarks/records, where that exists)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return launch.leave(guarded(lambda: _main(given), "benchmarks"))


def _main(arguments: list[str]) -> int:
    """Measure, show tables, write the record."""
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    parser.refuse(unknown)
    from benchmarks.record import check_place, save
    from benchmarks.report import provenance, tables, terminal
    from benchmarks.run import benchmark
    from ebpl.terminal import show, terminal_progress

    check_place(options.record)
    record = benchmark(
        options.device,
        options.time_limit,
        terminal_progress("benchmark"),
        networks=options.networks,
        best=options.best,
        seeds=options.seeds,
        sgld_steps=options.sgld_steps,
        batch_size=options.batch_size,
        image_size=options.image_size,
        rounds=options.rounds,
        scaling=options.scaling,
    )
    for table in tables(record):
        show(terminal(table))
    print(provenance(record))
    if path := save(record, options.record):
        print(f"Record: {path}")
    else:
        print("No record was written; --record says where to.")
    return launch.INTERRUPTED if record["stopped"] else 0


if __name__ == "__main__":
    sys.exit(main())
