"""Every command and every piece of Python in the documentation is run, page by page, from top to bottom.

What differs from what a reader gets: the data is a small folder of digits, each preset is a training of a few updates
(`TINY`; what a page itself asks for is done on top of it), and `ebpl benchmark` measures small things (`BRIEF`). Blocks
marked `{not-run: why}` are only checked to name commands and options that exist; blocks marked `{interrupted}` are
stopped half way.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from ebpl import cli
from ebpl import launch as processes
from ebpl.cli.options import changes
from ebpl.config.presets import PRESETS, preset
from ebpl.errors import EbplError
from tests.docs.pages import PAGES, ROOT, Block, blocks, text_of

TINY = {"depth": 10, "width": 1, "epochs": 1, "epoch_updates": 1, "steps": 2, "step_epochs": 1, "sgld_steps": 1}
TINY |= {"buffer_size": 128, "batch_size": 16, "chains": 16}
BRIEF = ["--rounds", "1", "--batch-size", "2", "--image-size", "8", "--sgld-steps", "1"]
LANGUAGES = {"sh", "python", "text"}
OF_OTHERS = {"--nproc-per-node", "--ntasks-per-node", "--gres", "--kill-on-bad-exit"}
SHELL = set("|&;<>$`")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PRESETS:
        monkeypatch.setitem(PRESETS, name, {**PRESETS[name], **TINY})


def write_digits() -> None:
    """The folders that the pages speak of: few labels, many images without, new ones, and labelled ones set aside."""
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


def run_command(line: str, interrupted: bool) -> None:
    words = shlex.split(line, comments=True)
    if words[0] != "ebpl":
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        words[0] = sys.executable if words[0] == "python" else words[0]
        assert subprocess.run(words, env=environment, stdin=subprocess.DEVNULL).returncode == 0, line
        return
    assert not SHELL & set(re.sub(r"'[^']*'", "", line.split(" #")[0])), "the test's shell is a simple one"
    code = cli.main(words[1:] + (BRIEF if words[1] == "benchmark" else []))
    assert code == (processes.INTERRUPTED if interrupted else 0), line


def run_shell(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    if "export.json" in block.text:
        label_in_label_studio()
    for line in block.commands():
        with monkeypatch.context() as patch:
            if block.mark == "interrupted":
                patch.setattr("ebpl.training.trainer.begin_step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            run_command(line, block.mark == "interrupted")


@pytest.mark.usefixtures("tiny")
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


def check_command(line: str) -> None:
    """A command that is not run: it must exist, and take these options with these values."""
    words = shlex.split(line, comments=True)
    if words[0] in ("srun", "torchrun", "ebpl"):
        parser, _ = cli.build_parser()
        options = parser.parse_args(words[words.index("ebpl") + 1 :])
        if hasattr(options, "preset"):
            preset(options.preset or "standard", **changes(options))
    elif words[0] == "pip":
        wanted = re.findall(r"\[(\w+)\]", line)
        assert set(wanted) <= set(
            tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        )
    else:
        assert words[0] in ("python3", ".", "export"), f"{line} is neither run nor checked"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_that_the_page_names_exists(page: str) -> None:
    _, commands = cli.build_parser()
    options = {word for parser in commands.values() for word in parser.options()}
    text = text_of(page)
    assert set(re.findall(r"(?<![\w.+-])ebpl ([a-z][\w-]*)", text)) - {"as", "import"} <= set(commands)
    assert set(re.findall(r"(?<![\w|-])--[a-z][a-z-]+", text)) - OF_OTHERS <= options | {"--help"}


@pytest.mark.parametrize(
    "line",
    [
        "ebpl train photos/ --epochz 3",
        "srun ebpl resume",
        "ebpl train x --depth 11",
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


def test_the_pages_say_how_to_train_report_predict_suggest_and_export() -> None:
    shown = {
        line.split()[1] for page in PAGES for block in blocks(page) for line in block.commands() if line[:5] == "ebpl "
    }
    _, commands = cli.build_parser()
    assert set(commands) - shown <= {"demo"}
