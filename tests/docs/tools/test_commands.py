import re

from docs.tools.commands import commands, exit_codes
from ebpl.cli import build_parser
from ebpl.errors import EbplError


def sections() -> dict[str, str]:
    parts = re.split(r"^## ebpl (\S+)$", commands(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_is_there_with_all_its_options() -> None:
    _, known = build_parser()
    found = sections()
    assert list(found) == list(known)
    for name, parser in known.items():
        words = set(re.findall(r"--[a-z][a-z-]*", found[name]))
        wanted = {word for word in parser.options() if not word.startswith("--no-")} - {"--help"}
        assert wanted <= words, name


def test_the_usage_shows_what_must_be_given() -> None:
    found = sections()
    assert "ebpl train DATA [OPTIONS] [SETTINGS]" in found["train"]
    assert "ebpl evaluate RUN [DATA] [OPTIONS]" in found["evaluate"]
    assert "ebpl predict RUN IMAGES ... [OPTIONS]" in found["predict"]
    assert "ebpl add-labels DATA LABELS --output FILE [OPTIONS]" in found["add-labels"]


def test_every_exit_code_is_told() -> None:
    kinds = [EbplError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    told = set(re.findall(r"^\| (\d+) \|", exit_codes(), re.MULTILINE))
    assert {str(kind.exit_code) for kind in kinds if kind.__module__ == "ebpl.errors"} <= told
    assert {"0", "130"} <= told
