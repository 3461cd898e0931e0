import pytest

from ebpl.inference.class_mix import mix_name, used_mix

RESULT = {"images": {"labelled": {"a": 10, "b": 30}}}
ESTIMATED = {"shares": [0.5, 0.5], "log_ratio": [0.7, -0.4], "interval": [[0.4, 0.6], [0.4, 0.6]]}


def test_without_an_entry_probabilities_are_for_the_mix_of_the_labels() -> None:
    found = used_mix(RESULT, None)
    assert found is not None
    assert (found.origin, found.shares, found.interval) == ("labels", (0.25, 0.75), None)
    assert found.is_of_labels
    assert found.label_shares == [0.25, 0.75]
    assert used_mix({**RESULT, "class_mix": None}, "labels") == found


@pytest.mark.parametrize(
    ("entry", "setting", "origin", "word"),
    [
        (ESTIMATED, "auto", "estimated", "estimated in training"),
        (ESTIMATED, None, "estimated", "estimated in training"),
        ({**ESTIMATED, "log_ratio": [0.0, 0.0]}, None, "kept", "may well"),
        ({**ESTIMATED, "interval": None}, "balanced", "balanced", "equally frequent"),
        ({**ESTIMATED, "interval": None}, "clinic.csv", "given", "given"),
    ],
)
def test_where_the_mix_is_from_is_said(entry, setting: str | None, origin: str, word: str) -> None:
    found = used_mix({**RESULT, "class_mix": entry}, setting)
    assert found is not None
    assert (found.origin, found.shares) == (origin, (0.5, 0.5))
    what, where = found.sentences()
    assert word in what
    assert "--class-mix" in where
    assert found.is_of_labels == (origin == "kept")
    assert (found.interval is None) == (entry["interval"] is None)


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"images": 3},
        {"images": {"labelled": {"a": 0}}},
        {"images": {"labelled": {"a": "many"}}},
        {**RESULT, "class_mix": 3},
        {**RESULT, "class_mix": {"shares": [1.0], "log_ratio": [0.0]}},
        {**RESULT, "class_mix": {**ESTIMATED, "interval": [[0.1, 0.2], 3]}},
    ],
)
def test_a_run_that_does_not_say_has_none(result) -> None:
    assert used_mix(result, None) is None


def test_images_differ_from_a_mix_only_beyond_chance_and_by_much() -> None:
    found = used_mix(RESULT, None)
    assert found is not None
    assert not found.differs_from([25, 75])
    assert not found.differs_from([0, 0])
    assert not found.differs_from([2, 3])  # so few may be of any mix
    assert not found.differs_from([3200, 6800])  # beyond chance, and by little
    assert found.differs_from([50, 50])


def test_a_file_is_named_without_its_folder() -> None:
    assert [mix_name(each) for each in ("auto", "labels", "/home/ada/clinic.toml")] == ["auto", "labels", "clinic.toml"]
