from docs.tools.data import benchmarks, extensions
from ebpl.data import BENCHMARK_NAMES


def test_every_benchmark_is_listed() -> None:
    assert all(f"| `{name}` |" in benchmarks() for name in BENCHMARK_NAMES)
    assert "| `digits` | scikit-learn's digits | 10 | 5 | 1 200 | 597 |" in benchmarks()


def test_extensions_of_images_are_listed() -> None:
    assert "`.png`" in extensions()
