from pathlib import Path

import pytest

from ebpl.data import BENCHMARK_NAMES, load
from ebpl.data.benchmarks import BENCHMARKS
from ebpl.errors import DataError


def test_a_wrong_benchmark_name_suggests_the_right_one() -> None:
    with pytest.raises(DataError, match="Did you mean cifar10"):
        load("cifar-10")


def test_a_folder_of_nearly_that_name_is_suggested() -> None:
    Path("photos").mkdir()
    with pytest.raises(DataError, match="Did you mean photos"):
        load("photo")


def test_a_missing_path_is_said_to_be_missing() -> None:
    with pytest.raises(DataError, match="does not exist"):
        load("no/such/folder")
    with pytest.raises(DataError, match="does not exist"):
        load("labels.csv")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"neither a folder of class folders nor a \.csv file nor an \.npz file"):
        load(tmp_path / "notes.txt")


def test_an_image_set_is_taken_as_it_is() -> None:
    data = load("digits")
    assert load(data) is data


def test_the_names_are_those_of_the_benchmarks() -> None:
    assert (*BENCHMARKS, "digits") == BENCHMARK_NAMES
