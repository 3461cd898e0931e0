"""The house itself: data flows one way between its rooms, files stay small, and every file has its test."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ebpl"
FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
ORDER = (
    *("errors", "io", "rng", "launch", "config", "metrics", "terminal", "devices", "data", "sampling", "encoders"),
    *("models", "kernels", "calibration", "runs", "training", "comparison", "methods", "recommendation", "inference"),
    *("labeling", "api", "inspection", "reporting", "estimator", "cli", "__main__"),
)
"""Packages and modules of the first level. Each may import those before it; `ebpl/__init__.py` imports on demand."""
MOST_FILES, MOST_LINES = 112, 400  # 16 for encoders, fine-tuning and sizes, 13 for confidence, 8 for methods
TESTED_TOGETHER = ("kernels", "methods")
"""Kernels are compared with their definitions on a GPU, methods go through the same training, each in one file."""


def room(file: str) -> str:
    """The package or module of the first level that a file is in."""
    return file.partition("/")[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Whatever is imported when the code runs, in functions too, and modules named in strings to be imported later."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imported(ast.Module([other], []))
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "whole names can be searched for"
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^ebpl(?:\.\w+)+(?=:\w+$|$)", node.value)
        yield from imported(node)


def imports() -> Iterator[tuple[str, str]]:
    """Each file with each thing that it imports."""
    for file, path in FILES.items():
        yield from ((file, name) for name in imported(ast.parse(path.read_text())))


def rooms_imported() -> dict[str, dict[str, str]]:
    """Each room with the rooms that it imports, and a file that does so."""
    found: dict[str, dict[str, str]] = {room(file): {} for file in FILES if file != "__init__.py"}
    for file, name in imports():
        package, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if file != "__init__.py" and package == "ebpl" and other not in (room(file), "__version__"):
            assert other in found, f"{file} imports {name}, which is no room"
            found[room(file)][other] = file
    return found


def test_no_room_is_imported_by_what_it_imports() -> None:
    list(TopologicalSorter(rooms_imported()).static_order())  # raises a CycleError that names the rooms


def test_data_flows_one_way() -> None:
    found = rooms_imported()
    assert set(found) == set(ORDER), "a new room needs its place in the order"
    wrong = [
        f"{file} imports {other}"
        for name, others in found.items()
        for other, file in others.items()
        if ORDER.index(other) > ORDER.index(name)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["matplotlib", "experiments", "benchmarks", "docs", "tests", "lightning"])
def test_the_library_needs_none_of_what_is_not_installed_with_it(package: str) -> None:
    assert [file for file, name in imports() if name.partition(".")[0].partition("_")[0] == package] == []


def test_files_are_few_and_small() -> None:
    lengths = {file: len(path.read_text().splitlines()) for file, path in FILES.items()}
    assert {file: length for file, length in lengths.items() if length > MOST_LINES} == {}
    assert len(FILES) <= MOST_FILES
    assert 80 <= median(lengths.values()) <= 200


def test_every_file_has_its_test() -> None:
    missing = []
    for file, path in FILES.items():
        if room(file) in TESTED_TOGETHER and path.stem != "__init__":
            continue
        name = Path(file).parent.name or "init" if path.stem == "__init__" else path.stem
        test = ROOT / "tests" / Path(file).parent / f"test_{name}.py"
        if len(path.read_text().splitlines()) > 1 and not test.is_file():  # a docstring alone needs none
            missing.append(test.relative_to(ROOT).as_posix())
    assert missing == []
