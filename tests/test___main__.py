from ebpl import __version__
from tests.helpers import ebpl


def test_python_dash_m_is_the_command() -> None:
    answer = ebpl("--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, f"ebpl {__version__}")
