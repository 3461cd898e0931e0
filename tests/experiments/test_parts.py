from ebpl.config.presets import preset
from experiments import parts
from experiments.grid import Cell, cells
from experiments.results_store import Record

CELLS = cells("parts", ["blood"], [3, 4], preset("best"))
ACCURACY = {("ebpl", "soft"): 0.9, ("ebpl-without-energy", "soft"): 0.8, ("ebpl", "none"): 0.7}


def record(cell: Cell, accuracy: float, ece: float = 0.02) -> Record:
    metrics = {"accuracy": accuracy, "f_score": accuracy, "ece": ece, "nll": 0.4, "brier": 0.2, "aurc": 0.03}
    result = {"metrics": metrics, "last": {"metrics": metrics}, "divergences": []}
    return {"data": {"name": cell.data}, "settings": cell.settings.to_dict(), "result": result}


def kind(cell: Cell) -> tuple[str, str]:
    return cell.settings.method, cell.settings.curriculum.pseudo_labels


RECORDS = [
    record(cell, ACCURACY[kind(cell)] + 0.02 * (cell.settings.seed == 4), 0.01 if kind(cell)[0] == "ebpl" else 0.03)
    for cell in CELLS
    if kind(cell) in ACCURACY
]


def test_each_kind_that_was_trained_has_a_line_with_its_mean() -> None:
    heads, *lines = parts.rows(parts.measured(CELLS, RECORDS))
    assert heads[:4] == ["data", "with", "n", "accuracy %"]
    assert [line[1:3] for line in lines] == [
        ["energies and pseudo-labels", "2"],
        ["pseudo-labels", "2"],
        ["energies", "2"],
    ]
    assert lines[0][3].startswith("91.0 ± 1.4")


def test_differences_are_those_of_the_seeds_that_both_have() -> None:
    fewer = [each for each in RECORDS if (each["settings"]["seed"], each["settings"]["method"]) != (4, "ebpl")]
    heads, energies, *_ = parts.differences(parts.measured(CELLS, fewer))
    assert energies[:3] == ["blood", "energies, with pseudo-labels", "1"]
    assert energies[heads.index("accuracy %")] == "+10.0 (1 of 1)"


def test_better_is_higher_for_accuracy_and_lower_for_errors() -> None:
    heads, *lines = parts.differences(parts.measured(CELLS, RECORDS))
    energies = next(line for line in lines if line[1] == "energies, with pseudo-labels")
    assert energies[heads.index("ECE %")] == "-2.0 ± 0.0 (2 of 2)"
    assert energies[heads.index("accuracy %")] == "+10.0 ± 0.0 (2 of 2)"
    nll = energies[3 + parts.SHOWN.index("nll")]
    assert nll == "+0.000 ± 0.000 (0 of 2)"  # the same is not better


def test_a_part_without_a_pair_has_no_line() -> None:
    _, *lines = parts.differences(parts.measured(CELLS, RECORDS))
    assert [line[1] for line in lines] == ["energies, with pseudo-labels", "pseudo-labels, with energies"]


def test_nothing_measured_is_said() -> None:
    assert parts.markdown(CELLS, []) == "Not measured yet."
