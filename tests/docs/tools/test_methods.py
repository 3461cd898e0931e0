from docs.tools.methods import methods
from ebpl.methods import get_method, method_names


def test_every_method_is_listed() -> None:
    for name in method_names():
        assert f"| `{name}` | {get_method(name).title} | {get_method(name).summary} |" in methods()
    assert "| `curriculum-labeling` | baseline |" in methods()
