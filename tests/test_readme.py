"""What the README shows is run."""

import os
import re
from pathlib import Path

OF_OTHERS = {"--nproc-per-node", "--ntasks-per-node", "--gres", "--kill-on-bad-exit"}  # torchrun's and SLURM's
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_python_examples_run(capsys) -> None:
    for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"^accuracy 0\.\d\d, ECE 0\.\d\d$", printed, re.MULTILINE)
    assert re.search(r"^score 0\.\d\d$", printed, re.MULTILINE)
    assert os.path.isfile("runs/mine/test_metrics.json")


def test_every_command_and_option_it_names_exists() -> None:
    from ebpl.cli import build_parser

    _, commands = build_parser()
    options = {word for parser in commands.values() for word in parser.options()}
    assert set(re.findall(r"\bebpl (\w[\w-]*)", README)) - {"as", "import"} <= set(commands)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) - OF_OTHERS <= options


def test_its_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
