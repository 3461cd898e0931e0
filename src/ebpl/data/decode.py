"""Single image files: which files are images, and what is in one, as training and prediction both see it.

Files come from anywhere, so neither their name nor their header is trusted: what cannot be read is an exception, which
`unreadable` puts into words.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What PIL may take a file for. It knows many more, among them PostScript, for which it starts another program."""
MOST_PIXELS = 1 << 26
"""A larger image, which a tiny file can claim to be, is refused: reading one of this size takes half a gigabyte."""
STRIP = 1 << 20
"""So many pixels are worked on at a time."""
LARGE = 32_000_000
"""Images of more pixels are read one at a time, so that several readers do not need several times the memory."""
_large = threading.Lock()

AT_ONCE = 512
"""So many files are given to the readers at a time."""
Item = TypeVar("Item")
Result = TypeVar("Result")
LINKED_FOLDER = "/"
"""Stands for linked folders among endings of names, of which it can be none."""
ORIENTATION = 0x0112
"""EXIF: how the camera was held."""


@dataclass(frozen=True)
class ImageInfo:
    """What an image file holds; height and width as it is to be seen, after turning."""

    height: int
    width: int
    kind: str
    """gray, colour, alpha, palette, CMYK, 16-bit or 32-bit."""
    gray: bool
    turned: bool
    """Whether the camera was held in another way than the pixels lie (EXIF)."""
    transparent: bool
    """Whether something can be seen through it; that is white then, as on paper."""
    frames: bool
    """Whether it has several frames or pages, of which the first is taken."""

    @property
    def deep(self) -> bool:
        """Whether its gray values have more than eight bits."""
        return self.kind in ("16-bit", "32-bit")


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image."""
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_ENDINGS


def is_hidden(name: str) -> bool:
    """Whether a folder is not meant to be looked into: hidden, or what macOS puts into archives."""
    return name.startswith(".") or name == "__MACOSX"


def is_text(name: str) -> bool:
    """Whether a file's name can be written into a text file; names from old archives may not."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(path: Path) -> str:
    """A path as it is, or in ASCII where it is no text."""
    return str(path) if is_text(str(path)) else f"{str(path)!a}"


def image_files(folder: Path, skipped: Counter[str] | None = None) -> Iterator[Path]:
    """The image files in a folder and below, in the order of their names, the files of a folder first.

    Hidden folders are left out, and folders that a link leads to, so that no loop is entered. A folder that may not be
    opened is named instead of what is in it: reading it will say why. `skipped` counts other files that are not hidden
    by the ending of their names, and linked folders.
    """
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        files, folders = [], []
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    linked = entry.is_symlink() and os.path.isdir(entry)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif is_image(entry.name) and not linked:
                        files.append(entry.name)
                    elif skipped is not None and not is_hidden(entry.name):
                        skipped[LINKED_FOLDER if linked else Path(entry.name).suffix.lower()] += 1
        except OSError:
            yield here
            continue
        yield from (here / name for name in sorted(files))
        waiting += [here / name for name in sorted(folders, reverse=True) if not is_hidden(name)]


def readers() -> ThreadPoolExecutor:
    """Threads to read image files with: decoding lets go of Python's lock."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results in the order of the items, a few hundred at a time, since each that waits needs memory."""
    waiting = iter(items)
    with readers() as pool:
        while batch := list(islice(waiting, AT_ONCE)):
            yield from pool.map(work, batch)


def is_file(path: Path) -> bool:
    """Whether there is such a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name longer than any file's can be, or with a character that none has
        return False


def listed_file(folder: Path, name: str) -> Path:
    """The file that a list in a folder names; a backslash may stand for a slash, as Windows writes it."""
    path, with_slashes = folder / name, folder / name.replace("\\", "/")
    return with_slashes if "\\" in name and not is_file(path) and is_file(with_slashes) else path


def stacked(pictures: Sequence[NDArray[np.uint8]], size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Pictures as one array (N, H, W, C) at this height and width."""
    from PIL import Image

    pixels = np.empty((len(pictures), *size, channels), np.uint8)
    for target, picture in zip(pixels, pictures, strict=True):
        if picture.shape[:2] != size:
            picture = np.asarray(resized_picture(Image.fromarray(picture), size), np.uint8)
        target[...] = picture[..., None] if picture.ndim == 2 else picture
    return pixels


def read_image(path: Path, size: tuple[int, int], gray: bool) -> tuple[NDArray[np.uint8], ImageInfo]:
    """An image file as bytes (H, W, C) of this height and width, and what the file holds."""
    picture, look = read_picture(path)
    return sized(picture, size, gray), look


def sized(picture: Image, size: tuple[int, int], gray: bool) -> NDArray[np.uint8]:
    """A picture as bytes (H, W, C) of this height and width."""
    pixels = np.asarray(resized_picture(picture.convert("L" if gray else "RGB"), size), dtype=np.uint8)
    return pixels[..., None] if gray else pixels


def resized_picture(picture: Image, size: tuple[int, int]) -> Image:
    """The picture at this height and width.

    Each new pixel is the mean of those it covers; where the picture is enlarged, it is interpolated.
    """
    from PIL.Image import Resampling

    height, width = size
    if picture.size == (width, height):
        return picture
    enlarged = picture.width < width or picture.height < height
    return picture.resize((width, height), Resampling.BILINEAR if enlarged else Resampling.BOX)


def digest(picture: Image) -> bytes:
    """The same for two pictures that look the same in every pixel, whatever their files are like."""
    size = "{} x {}".format(*picture.size).encode()
    found = hashlib.blake2b(digest_size=16, key=size)
    for box in _strips(picture):
        found.update(picture.crop(box).convert("RGB").tobytes())
    return found.digest()


def _strips(image: Image) -> Iterator[tuple[int, int, int, int]]:
    """The image in boxes from top to bottom, so that no step needs several times the memory of the whole."""
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield 0, top, image.width, min(top + rows, image.height)


def read_picture(path: Path) -> tuple[Image, ImageInfo]:
    """A file's image in gray (mode L) or colour (RGB), as a person would see it, and what the file holds.

    Turned as the camera was held, on white where it is transparent, the first frame of several.
    """
    from PIL import Image

    kind = path.stat().st_mode
    if stat.S_ISDIR(kind):
        raise OSError("the folder cannot be opened")
    if not stat.S_ISREG(kind):  # a pipe would be waited for, a device may never end
        raise OSError("it is not a file")
    with Image.open(path, formats=FORMATS) as image:
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            raise ValueError(_too_large(pixels))
        with _large if pixels > LARGE else contextlib.nullcontext():
            return as_seen(image)


def as_seen(image: Image) -> tuple[Image, ImageInfo]:
    """An image as `read_picture` gives that of a file."""
    from PIL.Image import Transpose

    kind, gray = _kind(image.mode)
    frames = bool(getattr(image, "is_animated", False)) and image.format != "MPO"  # a photo with its preview
    turned = _orientation(image) != 1
    image.load()
    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    if (how := _orientation(image)) in turns:  # asked again: PIL turns a TIFF itself while loading
        image = image.transpose(turns[how])
    image, transparent = _on_white(image, gray) if kind not in ("16-bit", "32-bit") else (_stretched(image), False)
    return image, ImageInfo(image.height, image.width, kind, gray, turned, transparent, frames)


def _kind(mode: str) -> tuple[str, bool]:
    """What people call PIL's mode, and whether it is gray."""
    if mode.startswith("I;16"):
        return "16-bit", True
    if mode in ("I", "F"):
        return "32-bit", True
    if mode in ("1", "L"):
        return "gray", True
    if mode in ("P", "PA"):
        return "palette", False
    if mode in ("LA", "La", "RGBA", "RGBa"):
        return "alpha", mode in ("LA", "La")
    return ("CMYK" if mode == "CMYK" else "colour"), False


def _orientation(image: Image) -> int:
    """How an image is to be turned, from 1 (not at all) to 8; damaged EXIF data says nothing."""
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except MemoryError:
        raise
    except Exception:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _on_white(image: Image, gray: bool) -> tuple[Image, bool]:
    """The image in mode L or RGB, with white where it is transparent, and whether it is."""
    from PIL import Image

    wanted = "L" if gray else "RGB"
    if not {"A", "a"} & set(image.getbands()) and "transparency" not in image.info:
        return image.convert(wanted), False
    result, transparent = Image.new(wanted, image.size, "white"), False
    for box in _strips(image):
        strip = image.crop(box).convert(wanted + "A")
        lowest: Any = strip.getchannel("A").getextrema()[0]
        transparent |= lowest < 255
        result.paste(strip.convert(wanted), box[:2], strip.getchannel("A"))
    return result, transparent


def _stretched(image: Image) -> Image:
    """Gray values of more than eight bits in eight: PIL would clip them at 255, so the image's own range is used."""
    from PIL import Image

    values = np.asarray(image)
    low, high = 0.0, 0.0
    if values.dtype.kind != "f":
        low, high = float(values.min()), float(values.max())
    elif (finite := np.isfinite(values)).any():
        low = float(values.min(where=finite, initial=np.inf))
        high = float(values.max(where=finite, initial=-np.inf))
    result = np.empty(values.shape, np.uint8)
    for row, target in zip(values, result, strict=True):  # row by row: as floating point it needs eight times the room
        stretched = (row.astype(np.float64) - low) / ((high - low) or 1)
        target[...] = np.round(np.clip(np.nan_to_num(stretched, nan=0.0), 0, 1) * 255)
    return Image.fromarray(result)


def unreadable(path: Path, error: Exception) -> str:
    """Why an image cannot be read, in words."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if "DecompressionBomb" in type(error).__name__:
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        return _too_large(int(pixels[1]) if pixels else 0)
    try:
        if path.is_symlink() and not path.exists():
            return "the link leads nowhere"
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and not found.st_size:
            return "the file is empty"
    except OSError as failed:
        return failed.strerror or str(failed)
    text = (isinstance(error, OSError) and error.strerror) or str(error).strip() or type(error).__name__
    return "not an image" if "cannot identify" in text else text.splitlines()[0]


def _too_large(pixels: int) -> str:
    return (
        f"it has {pixels / 1e6:,.0f} million pixels, more than the {MOST_PIXELS / 1e6:.0f} million that are read; "
        "make it smaller, or cut it up"
    )
