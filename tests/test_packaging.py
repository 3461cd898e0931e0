"""What is uploaded and installed: wheel and sdist are built, installed by themselves, and used outside the checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import ebpl

ROOT = Path(__file__).parents[1]
MOST_FILES = 112
SHORT = ["--epochs", "1", "--pseudo-labels", "none", "--set", "optim.updates_per_epoch=2", "--set", "sgld.steps=1"]


def call(*command: object, **environment: str) -> str:
    """The output of a command, which must succeed, run outside the checkout."""
    whole = {**os.environ, "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment}
    done = subprocess.run([str(word) for word in command], env=whole, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "constraints.txt"):
        shutil.copy(ROOT / name, source)
    for name in ("src", "tests", "experiments", "benchmarks", "docs"):  # only the first of them belongs in the package
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "records", "*.json", "*.png")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source)
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `ebpl` is the wheel's; other packages are those of this interpreter."""
    target = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    call(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel)
    return {"PYTHONPATH": str(target), "PATH": f"{target / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def wheel_names(built: Path) -> list[str]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


def test_the_wheel_holds_the_library_and_nothing_else(built: Path) -> None:
    names = wheel_names(built)
    assert {name.split("/")[0] for name in names} == {"ebpl", f"ebpl-{ebpl.__version__}.dist-info"}
    modules = [name for name in names if name.endswith(".py")]
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/ebpl").rglob("*.py")}
    assert set(modules) == sources
    assert not [name for name in modules if re.search(r"/(experiments|benchmarks?|docs|tests?)/", name)]
    assert {"ebpl/py.typed", "ebpl/reporting/templates/report.html"} <= set(names)


def test_the_wheel_is_small_enough_to_know(built: Path) -> None:
    assert len([name for name in wheel_names(built) if name.endswith(".py")]) <= MOST_FILES


def test_the_sdist_holds_the_same_library_and_no_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = [name.partition("/")[2] for name in file.getnames()]
    modules = {name.removeprefix("src/") for name in names if name.endswith(".py")}
    assert modules == {name for name in wheel_names(built) if name.endswith(".py")}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt"} <= set(names)


def test_the_metadata_says_who_what_and_for_which_python(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        text = file.read(f"ebpl-{ebpl.__version__}.dist-info/METADATA").decode()
    found = Parser().parsestr(text)
    assert found["Version"] == ebpl.__version__
    assert found["Author"] == "EBPL contributors"
    assert found["License-Expression"] == "MIT"
    assert found["Requires-Python"] == ">=3.11"
    assert "Programming Language :: Python :: 3.12" in found.get_all("Classifier")
    needed = {re.split(r"[><=;\[ ]", line)[0] for line in found.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {"torch", "numpy", "scipy", "scikit-learn", "safetensors", "pillow", "jinja2", "rich"}
    extras = set(found.get_all("Provides-Extra"))
    of_checkout = {"experiments", "cluster", "docs", "browser", "dev"}
    assert extras == {"tensorboard", "export", "parquet", "encoders"} | of_checkout


def test_the_library_imports_no_package_that_is_not_required() -> None:
    """Other packages may be imported inside functions, where an extra is needed."""
    allowed = {"torch", "numpy", "scipy", "sklearn", "safetensors", "PIL", "jinja2", "markupsafe", "rich", "ebpl"}
    allowed |= {"triton"}  # comes with torch where there is a GPU
    for path in (ROOT / "src/ebpl").rglob("*.py"):
        imported = re.findall(r"^(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(imported) - set(sys.stdlib_module_names) <= allowed, path


def test_the_installed_command_trains_and_reports(installed: dict[str, str]) -> None:
    where = call(sys.executable, "-c", "import ebpl; print(ebpl.__file__)", **installed)
    assert where.startswith(installed["PYTHONPATH"])
    assert call(sys.executable, "-m", "ebpl", "--version", **installed).strip() == f"ebpl {ebpl.__version__}"
    assert "train" in call("ebpl", "--help", **installed)
    call("ebpl", "train", "digits", "--run", "first", "--preset", "quick", *SHORT, **installed)
    call("ebpl", "report", "first", **installed)
    assert "<svg" in Path("first/report.html").read_text(encoding="utf-8")
