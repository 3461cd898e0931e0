"""Rows of a long table, written one after the other in bounded memory: as CSV, or as Parquet with types."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Callable, Iterator
from typing import IO, Any

from ebpl.errors import UsageError
from ebpl.files import partly_written

Row = dict[str, Any]
Write = Callable[[Row], None]
PARQUET = (".parquet", ".pq")
CELLS = 1_000_000
"""About so many values are held before they are written as a row group of a Parquet file."""


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
            writer.writeheader()
        writer.writerow({name: _as_text(name, value) for name, value in row.items()})

    return write


def _as_text(name: str, value: Any) -> str:
    """A value as a CSV has it: nothing for None, six decimals or, of an energy, six digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if name == "energy" else f"{value:.6f}"
    return str(value)


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
        """Not from the first rows: an image that cannot be read has no values to tell a type by."""
        if name in ("image", "label", "problem"):
            return self.arrow.string()
        return self.arrow.bool_() if name == "outlier" else self.arrow.float32()
