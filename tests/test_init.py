import subprocess
import sys

import pytest

import ebpl


def test_every_public_name_is_there_and_documented() -> None:
    for name in ebpl.__all__:
        thing = getattr(ebpl, name)
        assert name == "__version__" or thing.__doc__, name
    assert set(ebpl.__all__) <= set(dir(ebpl))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = ebpl.trane  # type: ignore[attr-defined]


def test_importing_is_light() -> None:
    code = "import ebpl, ebpl.cli, sys; print([m for m in ('torch', 'sklearn', 'numpy', 'rich') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
