import json
from pathlib import Path

import pytest

from ebpl.errors import RunError
from ebpl.metrics import NAMES
from ebpl.runs.reader import is_number, is_text, is_whole, read_environment, read_metrics, read_settings, wrong_entry

GOOD = {"metrics": dict.fromkeys(NAMES, 0.5), "chosen": {"phase": "initial", "epoch": 1, "by": "last epoch"}}
ROW = {"above": 0, "up_to": 1, "images": 3, "accuracy": 0.5, "confidence": None}


def test_numbers_and_texts_are_what_they_are_called() -> None:
    assert [is_whole(value) for value in (1, 0, True, 1.0, "1", None)] == [True, *[False] * 5]
    assert [is_number(value) for value in (1, -0.5, True, float("nan"), float("inf"), "1")] == [
        True,
        True,
        *[False] * 4,
    ]
    assert [is_text(value) for value in ("", "é 🐈", "half of it: \ud83d", b"a", None)] == [True, True, *[False] * 3]
    assert wrong_entry({}, {"a": is_text}, {}) == "it has no a"
    assert wrong_entry([], {}, {}) == "it is no object with names and values"
    assert wrong_entry({"a": "x", "b": 1, "c": 2}, {"a": is_text}, {"b": is_whole}) is None
    assert wrong_entry({"a": "x" * 100}, {}, {"a": is_whole}) == "a is '" + "x" * 39 + " ..."


@pytest.mark.parametrize(
    "content",
    [
        "[settings]\n",
        "settings = 3\ndata = 4",
        "[settings]\n[data]\nname = 3",
        "[settings]\n[data]\nname = 'x'\npath = ['a']",
        "[settings]\n[data]\nname = 'x'\nimage_size = 'large'",
        "[settings]\n[data]\nname = 'x'\nimage_size = -1",
        "[settings]\n[data]\nname = 'x'\nskip_unreadable = 'yes'",
        "a = " + "[" * 5000,
        "no toml",
        "\x00",
    ],
)
def test_settings_that_are_none_name_the_file_and_what_to_do(content: str) -> None:
    Path("settings.toml").write_text(content)
    with pytest.raises(RunError, match=r"settings\.toml .*Put the file back") as raised:
        read_settings(Path("settings.toml"))
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("content", ["[]", "3", '{"threads": "many"}', '{"runs_together": 0}', "[" * 100_000, "\xff"])
def test_an_environment_that_is_none_names_the_file_and_what_to_do(content: str) -> None:
    path = Path("environment.json")
    with pytest.raises(RunError, match=r"environment\.json is missing\. .*write \{\} into it"):
        read_environment(path)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(RunError, match=r"environment\.json is damaged .*write \{\} into it"):
        read_environment(path)
    path.write_text("{}")
    assert read_environment(path) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"metrics": 3},
        {"metrics": {"accuracy": 1}},
        {"metrics": {**GOOD["metrics"], "ece": "low"}},
        {"chosen": {}},
        {"chosen": None},
        {"training_energies": []},
        {"training_energies": ["a"]},
        {"training_energies": {"a": 1}},
        {"reliability": [{"above": 0}]},
        {"reliability": [{**ROW, "images": "many"}]},
    ],
)
def test_metrics_that_are_none_name_the_file_and_what_to_do(changed: dict[str, object]) -> None:
    path = Path("test_metrics.json")
    path.write_text(json.dumps({**GOOD, "training_energies": [1, 2.5], "reliability": [ROW]}))
    assert read_metrics(path)["chosen"] == GOOD["chosen"]
    path.write_text(json.dumps({**GOOD, "metrics": None}))
    assert read_metrics(path)["metrics"] is None
    path.write_text(json.dumps({**GOOD, **changed}))
    with pytest.raises(RunError, match=r"test_metrics\.json is damaged .*ebpl resume"):
        read_metrics(path)
