"""Data: a benchmark's name, a folder, a CSV, an .npz, or an `ImageSet` become one `ImageSet`.

A format of files is an entry of `FORMATS`; nothing else has to know of it.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from ebpl.data.dataset import ImageSet

BENCHMARK_NAMES = ("cifar10", "svhn", "fashion", "blood", "organa", "organc", "organs", "organa-sample", "digits")


@dataclass(frozen=True)
class Format:
    """A form in which data lies on a disk. A function may be named as module:function, and is then imported late."""

    name: str
    matches: Callable[[Path], bool]
    read: str | Callable[..., ImageSet]
    """Gives an `ImageSet` for a path, an image size or None, and `skip_unreadable`."""
    listing: str | Callable[[Path], Any] | None = None
    """Lists image files with their labels, for formats made of image files."""

    def reader(self) -> Callable[..., ImageSet]:
        """The function that reads it."""
        function: Callable[..., ImageSet] = _imported(self.read)
        return function

    def lister(self) -> Callable[[Path], Any] | None:
        """The function that lists its image files, if it is made of such."""
        return _imported(self.listing) if self.listing else None


def _imported(name: str | Callable[..., Any]) -> Any:
    if not isinstance(name, str):
        return name
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _ending(*endings: str) -> Callable[[Path], bool]:
    return lambda path: os.path.isfile(path) and path.suffix.lower() in endings


FORMATS = [
    Format("a folder of class folders", os.path.isdir, "ebpl.data.folder:from_folder", "ebpl.data.folder:list_folder"),
    Format("a .csv file", _ending(".csv", ".tsv"), "ebpl.data.folder:from_csv", "ebpl.data.folder:list_csv"),
    Format("an .npz file", _ending(".npz"), "ebpl.data.formats:from_npz"),
]


def format_of(path: Path) -> Format | None:
    """The format of what lies at this path; None where there is nothing or nothing known."""
    if len(path.name) > 255:
        return None
    return next((each for each in FORMATS if each.matches(path)), None)


def load(
    data: str | os.PathLike[str] | ImageSet,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    download: bool = True,
    training: bool = True,
    skip_unreadable: bool = False,
) -> ImageSet:
    """Images from wherever they are; with `training`, only if a classifier can be trained on them.

    Files that cannot be read are an error that names them all; with `skip_unreadable` they are left out and noted.

    >>> load("digits").shape
    (1, 8, 8)
    """
    from ebpl.data.dataset import ImageSet, check
    from ebpl.data.decode import is_text

    if isinstance(data, ImageSet):
        return data
    if str(data) in BENCHMARK_NAMES:
        from ebpl.data.benchmarks import load_benchmark

        return load_benchmark(str(data), Path(data_dir) if data_dir else None, download=download)
    if not is_text(str(data)):
        raise DataError(f"{str(data)!a} is not valid UTF-8. Rename the folder or file.")
    path = Path(data)
    if found := format_of(path):
        images = found.reader()(path, image_size, skip_unreadable=skip_unreadable)
        if training:
            check(images)
        return images
    if len(path.name) < 256 and path.exists():
        raise DataError(f"{path} is neither {' nor '.join(each.name for each in FORMATS)}.")
    if os.sep in str(data) or path.suffix:
        raise DataError(f"{path} does not exist. Give a folder of class folders, a CSV, or an .npz file.")
    here = [entry.name for entry in Path().iterdir() if format_of(entry)]
    near = difflib.get_close_matches(str(data), [*BENCHMARK_NAMES, *here])
    hint = did_you_mean(str(data), near or BENCHMARK_NAMES)
    raise DataError(f"{data!r} is neither a folder or file here nor a benchmark. {hint}")
