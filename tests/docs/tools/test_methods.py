from docs.tools.methods import methods, published
from docs.tools.run_files import METHOD_METRICS, METRICS
from ebpl.config import Settings
from ebpl.methods import get_method, method_names
from tests.helpers import ROOT


def test_every_method_is_listed() -> None:
    for name in method_names():
        assert f"| `{name}` | {get_method(name).title} | {get_method(name).summary} |" in methods()
    assert "| `curriculum-labeling` | baseline |" in methods()
    assert "| no | no steps |" in methods()


def test_what_others_report_as_errors_is_shown_as_accuracy() -> None:
    shown = published(ROOT)
    (line,) = [line for line in shown.splitlines() if line.startswith("| FixMatch ")]
    assert "| 91.7 ± 1.4 | 95.0 ± 0.1 |" in line
    assert "cifar10, 250 labels" in shown


def test_every_column_that_a_method_logs_is_described() -> None:
    logged = {log for name in method_names() for term in get_method(name).terms(Settings()) for log in term.logs}
    assert set(METHOD_METRICS) <= logged <= {*METRICS, *METHOD_METRICS}
