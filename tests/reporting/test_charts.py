from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from ebpl.metrics import by_bin
from ebpl.reporting import charts
from ebpl.reporting.charts import Chart, Line

LOSS = Line("cross_entropy", "a", "cross-entropy")


def parts(chart: Chart | None, cls: str) -> list[ElementTree.Element]:
    assert chart is not None
    return [each for each in ElementTree.fromstring(chart.drawing).iter() if each.get("class") == cls]


def history(*phases: str, **columns: list[Any]) -> list[dict[str, Any]]:
    return [{"phase": phase, **{name: values[i] for name, values in columns.items()}} for i, phase in enumerate(phases)]


def test_empty_bins_are_marked_and_counts_written() -> None:
    probabilities = np.array([[0.95, 0.05]] * 7 + [[0.55, 0.45]] * 3)
    chart = charts.reliability(by_bin(probabilities, np.zeros(10, np.int64), 10), "test images")
    assert len(parts(chart, "empty-bin")) == 8
    assert [each.text for each in parts(chart, "small")] == ["3", "7"]
    assert ("empty-bin", "no images (8 of 10 bins)") in chart.legend


def test_the_gap_between_confidence_and_accuracy_has_a_direction() -> None:
    sure = np.array([[0.95, 0.05]] * 4)
    over = charts.reliability(by_bin(sure, np.array([0, 1, 1, 1])), "images")
    under = charts.reliability(by_bin(sure, np.zeros(4, np.int64)), "images")
    assert (len(parts(over, "fill over")), len(parts(over, "fill under"))) == (1, 0)
    assert (len(parts(under, "fill over")), len(parts(under, "fill under"))) == (0, 1)


def test_curves_mark_the_steps_and_where_training_was_healed() -> None:
    rows = history(
        *["initial"] * 4,
        *["step 1 of 2"] * 4,
        *["step 2 of 2"] * 4,
        cross_entropy=[*range(12)],
        healed=[0] * 6 + [1] * 6,
    )
    chart = charts.curves("Loss", rows, [LOSS])
    assert len(parts(chart, "band")) == 1
    assert [each.text for each in parts(chart, "mark")] == ["initial", "step 1", "step 2"]
    assert len(parts(chart, "healed")) == 1
    assert charts.healed_at(rows) == [7]


@pytest.mark.parametrize("rows", [[], history("initial", cross_entropy=[None]), history("initial", other=[1.0])])
def test_without_values_there_is_no_chart(rows: list[dict[str, Any]]) -> None:
    assert charts.curves("Loss", rows, [LOSS]) is None


@pytest.mark.parametrize("values", [[0.0], [1e308, -1e308], [0.0, 0.0, 0.0], [-5.0], [1.0, None, 2.0]])
def test_odd_values_are_drawn_all_the_same(values: list[float | None]) -> None:
    rows = history(*["initial"] * len(values), cross_entropy=values)
    assert charts.curves("Loss", rows, [LOSS]) is not None


@pytest.mark.parametrize("epochs", [1, 2, 7, 8, 40, 120, 200, 3000])
def test_epochs_on_the_axis_are_whole_few_and_ascending(epochs: int) -> None:
    chart = charts.curves("Loss", history(*["initial"] * epochs, cross_entropy=[1.0] * epochs), [LOSS])
    written = [int(str(each.text)) for each in parts(chart, "tick") if str(each.get("text-anchor")) == "middle"]
    assert 1 <= len(written) <= 8
    assert written == sorted(set(written))
    assert written[0] == 1
    assert written[-1] <= epochs


def test_energies_of_quantiles_and_of_images_are_shares_of_all() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    quantiles = np.quantile(values, np.linspace(0, 1, 201))
    edges = np.linspace(-2, 2, 11)
    expected = np.histogram(np.clip(values, -2, 2), edges)[0] / len(values)
    for found in (charts._shares(quantiles, edges, True), charts._shares(values, edges, False)):
        assert found.sum() == pytest.approx(1)
        np.testing.assert_allclose(found, expected, atol=0.01)


def test_energies_that_are_all_the_same_or_not_finite_are_no_error() -> None:
    same = np.full(10, 3.0)
    assert charts.scores("energy", same, same, "images", 3.0) is not None
    assert charts.scores("energy", None, np.full(3, np.nan), "images", None) is None
    assert charts.scores("energy", None, None, "images", None) is None


def test_the_risk_of_one_image_can_be_drawn() -> None:
    one = np.ones(1)
    assert parts(charts.risk(one, np.zeros(1), np.full(1, 0.2)), "dot a")


def test_steps_are_drawn_from_two_on() -> None:
    row = {"confidence": 0.9, "right": None, "kept": None}
    assert charts.steps([{"step": 1, **row}]) is None
    chart = charts.steps([{"step": 1, **row}, {"step": 2, **row, "kept": 0.5}])
    assert len(parts(chart, "dot b")) == 2
    assert not parts(chart, "dot a")
