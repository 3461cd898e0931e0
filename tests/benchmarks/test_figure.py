from pathlib import Path

from PIL import Image

from benchmarks.figure import digest, draw, drawn, sweep
from benchmarks.record import load
from tests.benchmarks.records import record

ROOT = Path(__file__).parents[2]


def test_a_sweep_contains_the_base_in_its_place() -> None:
    values = [
        (value, theirs["milliseconds"], ours["milliseconds"]) for value, theirs, ours in sweep(record(), "sgld_steps")
    ]
    assert values == [(10, 10, 2), (20, 100, 20), (40, 40, 8)]


def test_a_failed_measurement_leaves_a_gap_in_the_figure_not_an_error() -> None:
    draw(Path("scaling.png"), [record()])
    with Image.open("scaling.png") as image:
        assert image.text["Source"] == digest(record())


def test_without_scaling_nothing_is_drawn() -> None:
    short = record()
    short["options"]["scaling"] = None
    draw(Path("scaling.png"), [short])
    assert not Path("scaling.png").exists()


def test_the_figure_of_the_project_shows_the_newest_record() -> None:
    made_from = drawn(load(ROOT / "benchmarks/records"))
    assert made_from is not None
    with Image.open(ROOT / "benchmarks/scaling.png") as image:
        assert image.text["Source"] == digest(made_from), "run: make benchmarks"
