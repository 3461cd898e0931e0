from typing import get_args

from ebpl.config import field_type
from ebpl.methods import METHODS


def test_the_methods_are_those_the_settings_offer() -> None:
    assert set(METHODS) == set(get_args(field_type("method")))


def test_the_baseline_differs_in_density_and_restart_alone() -> None:
    ebpl, baseline = METHODS["ebpl"], METHODS["curriculum-labeling"]
    assert (ebpl.density, ebpl.restart) == (True, False)
    assert (baseline.density, baseline.restart) == (False, True)
