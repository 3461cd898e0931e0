from docs.tools.metrics import definition, metrics, report_metrics
from ebpl.metrics import METRICS, Metric, register_metric


def test_every_metric_is_defined() -> None:
    page = metrics()
    for name, metric in METRICS.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` | {metric.title} | "))
        assert len(row.split("|")[3].split()) > 3


def test_a_metric_that_is_registered_is_on_the_page(monkeypatch) -> None:
    def mce(probabilities: object, labels: object) -> float:
        """Largest difference between accuracy and confidence over the bins."""
        return 0.0

    monkeypatch.setitem(METRICS, "mce", None)  # so that it is taken out again
    register_metric(Metric("mce", "maximum calibration error", mce, lower_is_better=True))
    assert "| `mce` | maximum calibration error | Largest difference between" in metrics()


def test_examples_are_no_part_of_a_definition() -> None:
    assert ">>>" not in report_metrics()
    assert definition(METRICS["ece"].compute).startswith("ECE: mean distance of accuracy and confidence")


def test_what_is_better_is_shown() -> None:
    ends = {line.split("|")[1].strip(" `"): line.split("|")[4].strip() for line in metrics().splitlines()[2:]}
    assert (ends["accuracy"], ends["ece"], ends["overconfidence"]) == ("higher", "lower", "near 0")
