from ebpl.data import BENCHMARK_NAMES
from ebpl.data.benchmarks import BENCHMARKS


def test_the_names_are_those_of_the_benchmarks() -> None:
    assert (*BENCHMARKS, "digits") == BENCHMARK_NAMES
