import re

from docs.tools.commands import commands, exit_codes
from docs.tools.settings import anchor, settings
from ebpl.cli import VERBS, build_parser
from ebpl.errors import EbplError


def sections() -> dict[str, str]:
    parts = re.split(r"^## ebpl (\S+)$", commands(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_is_there_with_all_its_options() -> None:
    _, known = build_parser()
    found = sections()
    assert list(found) == list(known) == list(VERBS)
    for name, parser in known.items():
        assert set(parser.options()) - {"--help"} <= set(re.findall(r"--[a-z][a-z-]*", found[name])), name


def test_options_of_settings_lead_to_the_page_of_settings() -> None:
    links = dict(re.findall(r"\[`([a-z_.]+)`\]\(settings\.md#([a-z-]+)\)", sections()["train"]))
    assert {"optim.learning_rate", "method", "runtime.device"} <= set(links)
    for name, place in links.items():
        assert place == anchor(name)
        assert f'id="{place}"' in settings()


def test_the_usage_shows_what_must_be_given() -> None:
    found = sections()
    assert "ebpl train DATA [OPTIONS]\n" in found["train"]
    assert "ebpl evaluate RUN [DATA] [OPTIONS]" in found["evaluate"]
    assert "ebpl predict RUN IMAGES ... [OPTIONS]" in found["predict"]
    assert "ebpl add-labels DATA LABELS --output FILE [OPTIONS]" in found["add-labels"]


def test_every_exit_code_is_described() -> None:
    kinds = [EbplError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    described = set(re.findall(r"^\| (\d+) \|", exit_codes(), re.MULTILINE))
    assert {str(kind.exit_code) for kind in kinds if kind.__module__ == "ebpl.errors"} <= described
    assert {"0", "130"} <= described
