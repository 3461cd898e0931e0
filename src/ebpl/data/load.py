"""One door for all data: a benchmark's name, a folder, a CSV, an .npz, or an `ImageSet` as it is."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ebpl.data.images import ImageSet, check
from ebpl.data.names import BENCHMARK_NAMES
from ebpl.errors import DataError, did_you_mean


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
    if isinstance(data, ImageSet):
        return data
    from ebpl.data import benchmarks, sources
    from ebpl.data.files import is_text

    if str(data) in BENCHMARK_NAMES:
        return benchmarks.load_benchmark(str(data), Path(data_dir) if data_dir else None, download=download)
    if not is_text(str(data)):
        raise DataError(f"{str(data)!a} is not valid UTF-8. Rename the folder or file.")
    path = Path(data)
    if len(path.name) < 256 and path.exists():
        if path.is_dir():
            images = sources.from_folder(path, image_size, skip_unreadable=skip_unreadable)
        elif path.suffix.lower() == ".csv":
            images = sources.from_csv(path, image_size, skip_unreadable=skip_unreadable)
        elif path.suffix.lower() == ".npz":
            images = sources.from_npz(path, image_size)
        else:
            raise DataError(f"{path} is neither a folder, nor a .csv, nor an .npz file.")
        if training:
            check(images)
        return images
    if os.sep in str(data) or path.suffix:
        raise DataError(f"{path} does not exist. Give a folder of class folders, a CSV, or an .npz file.")
    here = [entry.name for entry in Path().iterdir() if entry.is_dir() or entry.suffix.lower() in (".csv", ".npz")]
    near = difflib.get_close_matches(str(data), [*BENCHMARK_NAMES, *here])
    hint = did_you_mean(str(data), near or BENCHMARK_NAMES)
    raise DataError(f"{data!r} is neither a folder or file here nor a benchmark. {hint}")
