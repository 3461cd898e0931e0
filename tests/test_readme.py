"""What the README shows is run, and its numbers are those of the records."""

import os
import re
from pathlib import Path

import ebpl
from ebpl.cli import VERBS, build_parser
from ebpl.config import fields
from ebpl.config.compat import OLD_NAMES, RETIRED
from ebpl.config.presets import preset
from experiments.grid import Cell, found
from experiments.readme import fill
from experiments.results_store import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GENERATED = re.compile(r"<!-- results: (\w+) -->.*?<!-- end: \1 -->", re.DOTALL)


def test_it_can_be_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 100
    assert README.index("docs/assets/reliability.svg") < 1000


def test_the_python_example_runs(capsys) -> None:
    for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"^accuracy 0\.\d\d, ECE 0\.\d\d$", printed, re.MULTILINE)
    assert os.path.isfile("runs/mine/test_metrics.json")


def test_every_command_and_option_it_names_exists() -> None:
    _, commands = build_parser()
    options = {word for parser in commands.values() for word in parser.options()}
    assert set(re.findall(r"\bebpl (\w[\w-]*)", README)) - {"as", "import"} <= set(VERBS)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= options
    assert all(hasattr(ebpl, name) for name in re.findall(r"\bebpl\.(\w+)", README))


def test_its_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_its_table_is_generated_from_the_records() -> None:
    assert GENERATED.findall(README) == ["best", "parts", "photos"]
    assert fill(README, load(ROOT / "results")) == README, "run: make readme"


def test_no_other_result_is_written_by_hand() -> None:
    prose = GENERATED.sub("", README)
    assert not re.findall(r"\d+\.\d+ ?%|\d+\.\d+ ±|(?:accuracy|ECE|F-score) (?:of )?\d", prose)


def test_it_names_the_held_out_labels_of_svhn() -> None:
    records = load(ROOT / "results")
    cells = [Cell("svhn", preset("best", seed=seed)) for seed in range(5)]
    checks = [record["result"].get("check") for _, record in found(cells, records)]
    assert checks
    assert all(check["temperature"] != 1 for check in checks)
    assert {f"{check['images']} held-out training labels" in README for check in checks} == {True}


def test_its_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", README):
        assert (ROOT / link).is_file(), link


def test_the_changelog_names_every_option_that_became_a_setting() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for old, new in OLD_NAMES.items():
        kept = fields()[new].is_option and fields()[new].field.name == old
        assert (f"| `--{old.replace('_', '-')}` | `{new}` |" in text) != kept, old
    assert all(f"`--{name.replace('_', '-')}`" in text for name in RETIRED)
    assert f"## {ebpl.__version__}\n" in text
