from ebpl.data.benchmarks import BENCHMARKS
from ebpl.data.names import BENCHMARK_NAMES


def test_the_names_are_those_of_the_benchmarks() -> None:
    assert (*BENCHMARKS, "digits") == BENCHMARK_NAMES
