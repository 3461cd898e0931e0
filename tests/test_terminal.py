import io
import re

import numpy as np
import pytest
from rich.console import Console

from ebpl.metrics import measure
from ebpl.terminal import (
    MOST_ROWS,
    Bar,
    Lines,
    classes_table,
    duration,
    measures_table,
    seconds,
    seeds_table,
    show,
    terminal_progress,
    terminal_progresses,
    transfer_bar,
)


def test_without_a_terminal_there_are_plain_lines_with_the_time_left(capsys) -> None:
    progress = terminal_progress("blood")
    assert isinstance(progress, Lines)
    progress.begin(100, 50)
    progress.advance(25, "initial, epoch 1/2", {"loss": 1.0})
    progress.epoch("initial, epoch 1/2 | loss 1")
    progress.epoch("too soon for another line")
    progress.say("something \x1b[2J happened")
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 2
    assert printed[0].startswith("blood: initial, epoch 1/2 | loss 1 | ")
    assert printed[0].endswith(" left")
    assert "\x1b" not in "".join(printed)


def test_the_bar_shows_phase_losses_and_time(capsys) -> None:
    bar = Bar("blood")
    bar.begin(10, 0)
    bar.advance(5, "step 2 of 4, epoch 3/20", {"loss": 0.1234, "validation accuracy": 0.815})
    bar.say("healed [not markup] :cat: \x1b[2J")
    bar.end()
    printed = capsys.readouterr().err
    assert ":cat:" in printed
    assert "\x1b[2J" not in printed
    assert "step 2 of 4, epoch 3/20" in printed
    assert "loss 0.123" in printed
    assert "healed [not markup]" in printed


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_bar_stays_on_one_line_and_keeps_the_time_left(capsys, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    bar = Bar("training")
    bar.begin(1000, 0)
    facts = {"validation accuracy": 0.815, "cross entropy": 0.1234, "energy gap": -0.3, "loss": 1.2}
    bar.advance(500, "step 2 of 4, epoch 3/20", facts)
    monkeypatch.setattr(type(bar._display.tasks[0]), "time_remaining", 125.0)
    text = io.StringIO()
    Console(file=text, width=width).print(bar._display.get_renderable())
    bar.end()
    (line,) = text.getvalue().splitlines()
    assert len(line) <= width
    if width >= 60:
        assert "step 2 of 4, epoch 3/20" in line
        assert "2 min 05 s left" in line


def test_several_trainings_have_a_bar_each_on_one_display(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with terminal_progresses(["seed 0", "seed 1", "seed 2"]) as (first, second, _):
        first.begin(10, 0)
        second.begin(10, 0)
        first.advance(10, "initial, epoch 1/1", {"loss": 0.5})
        second.advance(5, "initial, epoch 1/2", {"loss": 0.25})
        second.say("something happened")
        first.end()
        second.end()
    printed = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "seed 1: something happened" in printed
    *_, one, two, three = [line for line in re.split(r"[\r\n]+", printed) if line.strip()]
    assert one.startswith("seed 0 initial, epoch 1/1")
    assert one.rstrip().endswith("done")
    assert two.startswith("seed 1 initial, epoch 1/2")
    assert two.rstrip().endswith("stopped")
    assert three.startswith("seed 2 waiting")


def test_several_trainings_without_a_terminal_are_told_apart_by_their_lines(capsys) -> None:
    with terminal_progresses(["seed 0", "seed 1"]) as (first, second):
        first.say("hello")
        second.say("hello too")
    assert capsys.readouterr().err == "seed 0: hello\nseed 1: hello too\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.6, "1 min 00 s"), (3600, "1 h 00 min"), (90061, "25 h 01 min")]
)
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_download_without_a_terminal_is_one_line(capsys) -> None:
    with transfer_bar("file.npz", 1234, 0) as advance:
        advance(1000)
    assert capsys.readouterr().err == "downloading file.npz (1,234 bytes)\n"


def some_metrics(seed: int) -> dict[str, float]:
    """Metrics of random predictions."""
    random = np.random.default_rng(seed)
    return measure(random.dirichlet(np.ones(3), 60), random.integers(0, 3, 60))


def test_a_table_has_a_column_for_each_result(capsys) -> None:
    results = {name: some_metrics(seed) for seed, name in enumerate(("EBPL", "baseline"))}
    bins = {"EBPL": [{"above": 0.0, "up_to": 1.0, "images": 60, "confidence": 0.6, "accuracy": 0.5}]}
    show(measures_table("some data", results, bins=bins))
    printed = capsys.readouterr().out
    for text in ("some data", "EBPL", "baseline", "macro F-score", "over)"):
        assert text in printed


def test_only_the_measures_asked_for_are_shown(capsys) -> None:
    show(measures_table("t", {"EBPL": some_metrics(0)}, ["accuracy"]))
    printed = capsys.readouterr().out
    assert "accuracy" in printed
    assert "ECE" not in printed


def test_five_seeds_and_their_spread_fit_a_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    results = {seed: some_metrics(seed) for seed in range(5)}
    show(seeds_table("some data", results))
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in lines if "accuracy %" in line and "minus" not in line)
    values = [100 * result["accuracy"] for result in results.values()]
    spread = [f"{np.mean(values):.1f}", "±", f"{np.std(values, ddof=1):.1f}"]
    assert row == ["accuracy", "%", *[f"{value:.1f}" for value in values], *spread]
    assert sum(bool(line.strip()) for line in lines) == 3 + len(results[0]), "no row is broken in two"


def test_of_many_seeds_the_range_is_shown(capsys) -> None:
    results = {seed: some_metrics(seed) for seed in range(9)}
    show(seeds_table("some data", results))
    printed = capsys.readouterr().out
    assert "lowest" in printed
    assert f"{100 * min(result['accuracy'] for result in results.values()):.1f}" in printed


@pytest.mark.parametrize(
    ("time", "expected"),
    [(90, 90), ("90", 90), ("90s", 90), ("8m", 480), ("1.5h", 5400), (0.5, 0.5), ("4 min", 240), ("4min", 240)],
)
def test_a_time_is_a_number_of_seconds_or_has_a_unit(time: float | str, expected: float) -> None:
    assert seconds(time) == expected


@pytest.mark.parametrize("time", ["banana", "", "-3", 0, -1.0, "nan", float("inf"), "8 days", "8 m 3", True])
def test_what_is_no_time_is_said(time: float | str) -> None:
    with pytest.raises(ValueError, match=r"is not a time\. Give for instance 90, 90s, 20m or 1\.5h"):
        seconds(time)


def test_classes_have_recall_precision_and_confidence_with_intervals(capsys) -> None:
    row = {"class": "a\nb", "images": 30, "predicted": 20, "recall": 0.5, "recall_interval": [0.33, 0.67]}
    row |= {"precision": 0.75, "precision_interval": [0.53, 0.89], "confidence": 0.8}
    never = {**row, "class": "never", "predicted": 0, "precision": float("nan"), "confidence": float("nan")}
    show(classes_table([row, {**never, "images": 3}]))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [r"a\nb", "30", "50.0 % (33 to 67)", "75.0 % (53 to 89)", "80.0 %"] in lines
    assert ["never", "3", "50.0 % (33 to 67)", "–", "–"] in lines


def test_of_many_classes_those_of_the_lowest_recall_are_shown(capsys) -> None:
    row = {"images": 9, "predicted": 9, "recall_interval": [0, 1], "precision": 1.0, "precision_interval": [0, 1]}
    show(classes_table([{**row, "class": f"c{i}", "recall": i / 30, "confidence": 1.0} for i in range(30)]))
    told = capsys.readouterr().out
    assert "c0 " in told
    assert f"c{MOST_ROWS} " not in told
    assert "10 more classes are in --json." in told
