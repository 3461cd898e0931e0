"""Files: written so that a reader never sees half of one, and read back with checks."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import math
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ebpl.errors import RunError, UsageError, WriteError


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file beside `path`, then put it in place in one step; on failure `path` stays as it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # the bytes must be on the disk before the name points to them
            temporary.chmod(0o644)
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise write_failed(path, error) from error


def write_failed(path: Path, error: OSError) -> WriteError:
    """The error for a file that could not be written: why, and that nothing else was harmed."""
    return WriteError(f"Could not write {path}: {error.strerror or error}. What was there before is unharmed.")


def _sync_folder(folder: Path) -> None:
    """Let the folder's new entry reach the disk, so that it outlives a power failure, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


RUN_FILES = frozenset(
    {
        *("settings.toml", "environment.json", "seeds.json", "metrics.csv", "train.log", ".lock", "best.safetensors"),
        *("test_metrics.json", "details.npz", "pseudo_labels", "checkpoints", "tensorboard"),
    }
)
"""What a training writes into its run directory: files, and folders of them."""


def check_output(path: str | os.PathLike[str], force: bool, inside: Path | None = None) -> None:
    """Refuse, before any work is done, a file that must not be written.

    `-` is standard output. A folder, a device, a pipe or a link is refused, an existing file unless `force` is true,
    and always a file that the training wrote into the run directory `inside`.
    """
    if str(path) == "-":
        return
    target = Path(path)
    try:
        kind = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            kind = target.lstat().st_mode
        own = inside is not None and _is_run_file(target, inside)
        folder = next(parent for parent in target.absolute().parents if os.path.lexists(parent))
    except PermissionError as error:
        raise write_failed(target, error) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(path)!a} cannot be the name of a file: {error}.") from error
    if str(path).endswith(("/", os.sep)) or (kind is not None and stat.S_ISDIR(kind)):
        raise UsageError(f"{path} is a folder. Give the name of a file to write.")
    if kind is not None and stat.S_ISLNK(kind):
        raise UsageError(f"{path} is a link, which is not written to. Give the file itself, or - for standard output.")
    if kind is not None and not stat.S_ISREG(kind):
        raise UsageError(f"{path} is a device or a pipe. Give the name of a file, or - for standard output.")
    if own:
        raise UsageError(f"{path} belongs to the run {inside}, which would be lost. Choose another name.")
    if kind is not None and not force:
        raise UsageError(
            f"{path} exists already. Choose another name, or --force (in Python: force=True) to replace it."
        )
    if not folder.is_dir():
        raise write_failed(target, NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder"))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise write_failed(target, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def check_table_name(path: str | os.PathLike[str], parquet: bool = True) -> None:
    """Refuse, before any work is done, a table whose name promises a format that it would not have."""
    ending = Path(path).suffix.lower()
    if str(path) == "-" or ending in ("", ".csv", ".txt") or (parquet and ending in PARQUET):
        return
    other = " or .parquet" if parquet else ""
    raise UsageError(
        f"{path}: tables are not written as {ending}. Give a name that ends in .csv (spreadsheets open it){other}."
    )


def _is_run_file(target: Path, run: Path) -> bool:
    """Whether a training writes this file into the run directory, or into that of one of its seeds."""
    place = target.parent.resolve() / target.name
    if not place.is_relative_to(run.resolve()):
        return False
    parts = place.relative_to(run.resolve()).parts
    return bool(RUN_FILES & set(parts[1:2] if parts[0].startswith("seed-") else parts[:1]))


@contextlib.contextmanager
def partly_written(target: str, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write bit by bit, which appears under its name when it is whole; `-`: standard output."""
    if target == "-":
        yield sys.stdout
        return
    path = Path(target)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") if binary else part.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise write_failed(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def free_path(path: Path) -> Path:
    """A new folder at this path, or with -2, -3 ... appended if there is one already."""
    for number in range(1, 100_000):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            continue
        except OSError as error:
            raise write_failed(candidate, error) from error
    raise RunError(f"No free name for a folder at {path}.")


def write_text(path: Path, text: str) -> None:
    """A text file, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """A JSON file, atomically; numbers that are not finite become null, since JSON has none."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same value with None for every number that is not finite, as JSON needs it."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value


Row = dict[str, Any]
Write = Callable[[Row], None]
PARQUET = (".parquet", ".pq")
CELLS = 1_000_000
"""Values that are held before they are written as a row group of a Parquet file."""


@contextlib.contextmanager
def rows_into(target: str) -> Iterator[Write]:
    """Writes rows, all with the same names, into a file that appears when it is whole; `-`: standard output.

    A file that ends in .parquet is Parquet, every other CSV.
    """
    if not target.lower().endswith(PARQUET):
        with partly_written(target) as file:
            yield csv_writer(file)
        return
    arrow = _arrow()  # before any work is done that would be lost
    with partly_written(target, binary=True) as file:
        rows = _ParquetRows(file, *arrow)
        try:
            yield rows.add
            rows.flush()
        finally:
            rows.close()


def csv_writer(file: IO[str]) -> Write:
    """Writes rows to a CSV file, with a header before the first."""
    writer: csv.DictWriter[str] | None = None

    def write(row: Row) -> None:
        nonlocal writer
        if writer is None:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writerow({name: harmless_cell(name) for name in row})
        writer.writerow({name: _as_text(name, value) for name, value in row.items()})

    return write


def _as_text(name: str, value: Any) -> str:
    """A value as a CSV has it: nothing for None, six decimals or, of an energy, six digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return harmless_cell(" | ".join(map(str, value)))
    if isinstance(value, float):
        return f"{value:.6g}" if name == "energy" else f"{value:.6f}"
    return harmless_cell(str(value))


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FORMULA = re.compile(r"'*[=+\-@]")


def harmless_cell(text: str) -> str:
    """Somebody's text as a cell of a sheet: no formula, and on one line.

    What a spreadsheet would compute begins with an apostrophe, and control characters are spelt out. Numbers stay.

    >>> [harmless_cell(text) for text in ("a b.png", "=cmd()", "-1", "a\\rb")]
    ['a b.png', "'=cmd()", '-1', 'a\\\\rb']
    """
    return no_formula(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], text))


def no_formula(text: str) -> str:
    """Text as a cell that a spreadsheet does not compute; `plain_cell` gives it back."""
    if not _FORMULA.match(text):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def plain_cell(cell: str) -> str:
    """What a cell means: `no_formula` undone."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            "Parquet needs the extra: pip install 'ebpl[parquet]'. A file that ends in .csv needs nothing."
        ) from error
    return pyarrow, parquet


class _ParquetRows:
    """Rows by columns, written as a row group whenever there are enough."""

    def __init__(self, file: IO[bytes], arrow: Any, parquet: Any) -> None:
        self.file, self.arrow, self.parquet = file, arrow, parquet
        self.columns: dict[str, list[Any]] = {}
        self.held = 0
        self.writer: Any = None

    def add(self, row: Row) -> None:
        """One more row."""
        if not self.columns:
            self.columns = {name: [] for name in row}
        for name, value in row.items():
            self.columns[name].append(value)
        self.held += 1
        if self.held * len(self.columns) >= CELLS:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if not self.held:
            return
        if self.writer is None:
            self.schema = self.arrow.schema([(name, self._type(name)) for name in self.columns])
            self.writer = self.parquet.ParquetWriter(self.file, self.schema)
        self.writer.write_table(self.arrow.table(self.columns, self.schema))
        for values in self.columns.values():
            values.clear()
        self.held = 0

    def close(self) -> None:
        """End the file."""
        if self.writer is not None:
            self.writer.close()

    def _type(self, name: str) -> Any:
        """Not from the first rows: an image that cannot be read has no values to infer a type from."""
        if name in ("image", "label", "decision", "problem"):
            return self.arrow.string()
        if name == "set":
            return self.arrow.list_(self.arrow.string())
        return self.arrow.bool_() if name == "outlier" else self.arrow.float32()


Rule = Callable[[Any], bool]
Object = dict[str, Any]


def is_text(value: Any) -> bool:
    """Whether a value is text that can be written into a file; JSON can spell half a character, which cannot."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number above zero."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_object(value: Any) -> bool:
    """Whether a value has entries with names."""
    return isinstance(value, dict)


def wrong_entry(stored: Any, needed: Mapping[str, Rule], allowed: Mapping[str, Rule]) -> str | None:
    """What is wrong with an object that needs some entries and may have others; None if nothing is.

    >>> wrong_entry({"name": 3}, {"name": is_text}, {})
    'name is 3'
    """
    if not is_object(stored):
        return "it is no object with names and values"
    if missing := [name for name in needed if name not in stored]:
        return f"it has no {missing[0]}"
    for name, rule in {**needed, **allowed}.items():
        if name in stored and not rule(stored[name]):
            shown = repr(stored[name])
            return f"{name} is {shown if len(shown) <= 40 else shown[:40] + ' ...'}"
    return None


def damaged(path: Path, reason: str, advice: str) -> RunError:
    """The error for a file that is not what it should be."""
    return RunError(f"{path} is damaged or of another version: {reason.splitlines()[0]}. {advice}")
