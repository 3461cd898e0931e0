"""The command line. It holds no logic: a verb reads its options and calls the function of the same name in Python.

Heavy imports happen inside the verbs, so that `ebpl --help` answers at once. A new verb is a function for its options
and one to run it, and an entry of `VERBS`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ebpl import __version__, launch
from ebpl.cli.options import Parser
from ebpl.errors import MEMORY_ADVICE, DataError, EbplError, UsageError, did_you_mean, is_memory
from ebpl.terminal import harmless


@dataclass(frozen=True)
class Verb:
    """A command: the module that holds `NAME` and `add_NAME_options`, and what it does in a line."""

    module: str
    help: str


VERBS = {
    "inspect": Verb("ebpl.cli.data", "check data before training: what it holds and what is wrong with it"),
    "train": Verb("ebpl.cli.train", "train a classifier on few labels and many unlabelled images"),
    "resume": Verb("ebpl.cli.train", "continue a run that was interrupted"),
    "evaluate": Verb("ebpl.cli.evaluate", "measure accuracy and calibration of a run"),
    "predict": Verb("ebpl.cli.evaluate", "label images with a run's model, and flag outliers"),
    "suggest": Verb("ebpl.cli.data", "list the unlabelled images to label next"),
    "add-labels": Verb("ebpl.cli.data", "add labels from Label Studio or a CSV to the data"),
    "report": Verb("ebpl.cli.evaluate", "write a page about a run: accuracy, calibration, errors, outliers"),
    "export": Verb("ebpl.cli.evaluate", "write a run's model as ONNX, with a model card"),
    "encoders": Verb("ebpl.cli.encoders", "list pretrained encoders, or check one of your own"),
    "demo": Verb("ebpl.cli.train", "compare EBPL with its baseline on scikit-learn's digits, in about a minute"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started the command
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    return launch.leave(guarded(lambda: _main(given)))


def guarded(command: Callable[[], int], name: str = "ebpl") -> int:
    """The exit code of a command, with a line for a person instead of an exception."""
    with contextlib.suppress(ValueError):  # not in the main thread, where Python takes no signals
        signal.signal(signal.SIGTERM, _stop)
    launch.follow_starter()
    try:
        return command()
    except EbplError as error:
        _tell(f"{name}: {error}")
        return error.exit_code
    except KeyboardInterrupt as stop:
        _tell(f"\n{name}: {str(stop) or 'Stopped.'}")
        return launch.INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"{name}: {error.filename or 'The system'}: {error.strerror or error}", file=sys.stderr)
        return DataError.exit_code
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        print(f"{name}: There is not enough memory. {MEMORY_ADVICE}", file=sys.stderr)
        return EbplError.exit_code


def _tell(text: str) -> None:
    """Say what all processes of a training would say, once."""
    if launch.place().is_first:
        print(harmless(re.sub(r"\S{400,}", lambda word: f"{word[0][:80]}...", text)), file=sys.stderr)


def _stop(*_: object) -> NoReturn:
    """A polite kill is a stop from the keyboard: the last finished epoch is saved."""
    raise KeyboardInterrupt


def _main(arguments: list[str]) -> int:
    if not arguments or arguments == ["help"]:
        arguments = ["--help"]
    elif arguments[0] == "help":
        arguments = [*arguments[1:2], "--help"]
    parser, commands = build_parser(arguments[0])
    known, unknown = parser.parse_known_args(arguments)
    commands[known.command].refuse(unknown)
    logging.getLogger("ebpl").setLevel(logging.INFO)
    # such images are refused with a message of our own
    warnings.filterwarnings("ignore", message="Image size .* could be decompression bomb")
    known.arguments = arguments
    code: int = known.function(known)
    return code


def build_parser(only: str | None = None) -> tuple[Parser, dict[str, Parser]]:
    """The parser and its commands by name; with `only`, just that one has its options."""
    parser = Parser(prog="ebpl", description="Image classifiers with calibrated confidence from few labels.")
    parser.add_argument("--version", action="version", version=f"ebpl {__version__}")
    commands: dict[str, Parser] = {}
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser, prog=parser.prog
    )
    for name, verb in VERBS.items():
        commands[name] = subparsers.add_parser(name, help=verb.help, description=verb.help)
        if only in (None, name):
            module, function = importlib.import_module(verb.module), name.replace("-", "_")
            getattr(module, f"add_{function}_options")(commands[name])
            commands[name].set_defaults(function=getattr(module, function))
    subparsers.choices = _Suggesting(commands)
    return parser, commands


class _Suggesting(dict[str, Parser]):
    """Command names; a wrong one is answered with the nearest right ones."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            raise UsageError(f"There is no command {name!r}. {did_you_mean(str(name), self)}")
        return True
