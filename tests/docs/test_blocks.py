"""Every command and every piece of Python in the documentation is run, page by page, from top to bottom.

What differs from what a reader gets: the data is a small folder of digits, each preset is a training of a few updates
(`TINY`, and on top of it what the page changes), and `python -m benchmarks` measures small things (`BRIEF`).
Blocks marked `{not-run: why}` are only checked to name commands and options that exist; blocks marked `{interrupted}`
are interrupted.
"""

import csv
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

import ebpl.data
import ebpl.methods
import ebpl.metrics
import ebpl.models
from ebpl import cli, launch
from ebpl.cli.options import Parser, changes
from ebpl.config import fields
from ebpl.config.presets import PRESETS, preset
from ebpl.errors import EbplError
from tests.docs.pages import PAGES, ROOT, Block, blocks, text_of

TINY = {"model.depth": 10, "model.width": 1, "optim.epochs": 1, "optim.updates_per_epoch": 1, "optim.batch_size": 16}
TINY |= {"curriculum.steps": 2, "curriculum.epochs": 1}
TINY |= {"sgld.steps": 1, "sgld.buffer_size": 128, "sgld.chains": 16, "consistency.batch_size": 16}
BRIEF = ["--rounds", "1", "--batch-size", "2", "--image-size", "8", "--sgld-steps", "1"]
LANGUAGES = {"sh", "python", "text", "toml"}
OF_OTHERS = {"--nproc-per-node", "--ntasks-per-node", "--gres", "--kill-on-bad-exit", "--no-deps"}
"""Options of torchrun, SLURM and pip."""
OF_CHECKOUT = ("experiments", "benchmarks")
"""Packages that are run as `python -m NAME` in a checkout."""
SHELL = set("|&;<>$`")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PRESETS:
        monkeypatch.setitem(PRESETS, name, {**PRESETS[name], **TINY})


@pytest.fixture
def own_registries() -> Iterator[None]:
    """What a page registers is forgotten after it."""
    registries = (ebpl.methods._registered, ebpl.models._registered, ebpl.metrics.METRICS)
    before, formats = [dict(registry) for registry in registries], list(ebpl.data.FORMATS)
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    ebpl.data.FORMATS[:] = formats


def write_digits() -> None:
    """The folders that the pages speak of: few labels, many unlabelled images, new ones, and some set aside."""
    images, labels = load_digits(return_X_y=True)
    for number, (image, label) in enumerate(zip(images[:150], labels[:150], strict=True)):
        place = f"photos/{label}" if number < 40 else "photos/unlabeled" if number < 100 else f"set-aside/{label}"
        for folder in [place] + (["new"] if number >= 130 else []):
            Path(folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray((image.reshape(8, 8) * 15.9).astype("uint8")).save(f"{folder}/{number}.png")


def label_in_label_studio() -> None:
    """What a person does between two commands: agree with the model, and export."""
    done = [
        {"data": task["data"], "annotations": [{"result": task["predictions"][0]["result"]}]}
        for task in json.loads(Path("tasks.json").read_text())
    ]
    Path("export.json").write_text(json.dumps(done))


def label_in_a_spreadsheet() -> None:
    """What a person does with a sheet: agree with the model, and save it with semicolons."""
    with Path("next.csv").open(newline="", encoding="utf-8") as file:
        rows = [row | {"label": row["guess"]} for row in csv.DictReader(file)]
    with Path("next.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)


def run_command(line: str, interrupted: bool) -> None:
    words = shlex.split(line, comments=True)
    if words[:2] == ["python", "-m"] and words[2] in OF_CHECKOUT:
        more = BRIEF if words[2] == "benchmarks" else []
        assert importlib.import_module(f"{words[2]}.__main__").main(words[3:] + more) == 0, line
    elif words[0] == "ebpl":
        assert not SHELL & set(re.sub(r"'[^']*'", "", line.split(" #")[0])), "the test's shell is a simple one"
        assert cli.main(words[1:]) == (launch.INTERRUPTED if interrupted else 0), line
    else:
        places = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
        environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
        words[0] = sys.executable if words[0] == "python" else words[0]
        assert subprocess.run(words, env=environment, stdin=subprocess.DEVNULL).returncode == 0, line


def run_shell(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    if "export.json" in block.text:
        label_in_label_studio()
    if "add-labels photos/ next.csv" in block.text:
        label_in_a_spreadsheet()
    for line in block.commands():
        with monkeypatch.context() as patch:
            if block.mark == "interrupted":
                patch.setattr("ebpl.training.trainer.relabel", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            run_command(line, block.mark == "interrupted")


@pytest.mark.usefixtures("tiny", "own_registries")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_what_the_page_shows_works(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if 'Path("photos"' not in text_of(page):  # that page makes its own
        write_digits()
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        assert block.language in LANGUAGES
        if block.mark.startswith("not-run: "):
            for line in block.commands():
                check_command(line)
        elif block.language == "sh":
            assert block.mark in ("", "interrupted")
            run_shell(block, monkeypatch)
        elif block.language == "python":
            exec(compile(block.text, page, "exec"), names)
        elif block.language == "toml":
            tomllib.loads(block.text)


def check_command(line: str) -> None:
    """A command that is not run: it must exist, and take these options with these values."""
    words = shlex.split(line, comments=True)
    if words[:2] == ["python", "-m"] and words[2] in OF_CHECKOUT:
        parser = importlib.import_module(f"{words[2]}.__main__").build_parser()
        check_settings(parser.parse_args(words[3:]))
    elif words[0] in ("srun", "torchrun", "ebpl"):
        parser, _ = cli.build_parser()
        check_settings(parser.parse_args(words[words.index("ebpl") + 1 :]))
    elif words[0] == "pip":
        wanted = re.findall(r"\[(\w+)\]", line)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(wanted) <= set(project["optional-dependencies"])
    else:
        assert words[0] in ("python3", ".", "export"), f"{line} is neither run nor checked"


def check_settings(options: object) -> None:
    if hasattr(options, "preset"):
        preset(options.preset or "standard", changes(options))


def parsers() -> Iterator[Parser]:
    """Of every command that a page may name."""
    yield from cli.build_parser()[1].values()
    for name in OF_CHECKOUT:
        yield importlib.import_module(f"{name}.__main__").build_parser()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_option_and_setting_that_the_page_names_exists(page: str) -> None:
    options = {word for parser in parsers() for word in parser.options()}
    text = text_of(page)
    assert set(re.findall(r"(?<![\w.+-])ebpl ([a-z][\w-]*)", text)) - {"as", "import"} <= set(cli.VERBS)
    assert set(re.findall(r"(?<![\w|-])--[a-z][a-z-]+", text)) - OF_OTHERS <= options | {"--help"}
    groups = "|".join({setting.group for setting in fields().values() if setting.group})
    named = set(re.findall(rf"`((?:{groups})\.[a-z_]+)[`=]", text)) - {"model.onnx"}  # a file
    assert named <= set(fields())


@pytest.mark.parametrize(
    "line",
    [
        "ebpl train photos/ --epochz 3",
        "ebpl train photos/ --set sgld.stepz=3",
        "srun ebpl resume",
        "ebpl train x --depth 11",
        "python -m experiments table1 --seedz 0",
        "pip install '.[nothing]'",
        "rm x",
    ],
)
def test_a_command_that_is_not_run_is_checked(line: str) -> None:
    with pytest.raises((EbplError, AssertionError)):
        check_command(line)


def test_a_command_that_fails_is_noticed() -> None:
    with pytest.raises(AssertionError):
        run_command("ebpl report nowhere", interrupted=False)


def test_the_pages_show_every_command() -> None:
    shown = {
        line.split()[1] for page in PAGES for block in blocks(page) for line in block.commands() if line[:5] == "ebpl "
    }
    assert set(cli.VERBS) - shown <= {"demo"}
