"""From a list of image files to one array: what the files are like, and all of them at one size and in one mode."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ebpl.data.dataset import UNLABELED, Images, ImageSet, conflicts
from ebpl.data.decode import (
    IMAGE_ENDINGS,
    ImageInfo,
    digest,
    image_files,
    in_threads,
    is_file,
    is_hidden,
    is_image,
    is_text,
    listed_file,
    printable,
    read_picture,
    resized_picture,
    stacked,
    unreadable,
)
from ebpl.data.formats import NO_LABEL, read_table, text_of
from ebpl.errors import DataError, number_of, several, some_of

SKIP = "\nOr leave them out with --skip-unreadable (in Python: skip_unreadable=True)."
LARGEST_KEPT = 64
RESIZED = 32
LONGEST_SHOWN = 300

Listing = dict[str, list[tuple[Path, str]]]
"""For train, validation and test: image files with their class name, '' where unlabelled."""


class Absent(NamedTuple):
    """An image that a list names and that is not there: where it is named, its label, and its name."""

    where: str
    label: str
    name: str


@dataclass(frozen=True)
class Listed:
    """Image files and their labels, before any of them is opened."""

    name: str
    root: Path
    parts: Listing
    notes: tuple[str, ...] = ()
    absent: tuple[Absent, ...] = ()
    listing: Path | None = None
    """The file that lists the images, if it is not the folder itself."""

    @property
    def files(self) -> list[Path]:
        """Every file once."""
        return list(dict.fromkeys(path for part in self.parts.values() for path, _ in part))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; one whose images cannot be read is still among them, so that it is missed."""
        labels = {label for part in self.parts.values() for _, label in part}
        return tuple(sorted((labels | {absent.label for absent in self.absent}) - {""}))

    @property
    def advice(self) -> list[str]:
        """Where the images that a list names were looked for, if some are not there."""
        name = next((absent.name for absent in self.absent if absent.name), "")
        if not name:
            return []
        text = f"paths are relative to the folder of {self.listing}: looked for {self.root / name[:LONGEST_SHOWN]}"
        return [f"{text}, though {name} is there relative to the current folder" if is_file(Path(name)) else text]

    def called(self, path: Path) -> str:
        """What an image is called: its path from the folder or list."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return path.as_posix()


@dataclass
class Survey:
    """What the listed files turned out to be."""

    looks: dict[Path, ImageInfo] = field(default_factory=dict)
    broken: dict[Path, str] = field(default_factory=dict)
    """Files that cannot be read, with the reason."""
    digests: dict[Path, bytes] = field(default_factory=dict)
    """Equal for files that show the same picture, where asked for."""
    pixels: dict[Path, NDArray[np.uint8]] = field(default_factory=dict)
    """Each picture, gray (H, W) or colour (H, W, 3), no larger than it may be needed: no file is decoded twice."""

    def size(self, image_size: int | None) -> tuple[int, int]:
        """Height and width to read all at: as asked for, else their own where all agree and it is small, else 32."""
        if image_size is not None:
            return image_size, image_size
        sizes = {(look.height, look.width) for look in self.looks.values()}
        if len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_KEPT:
            return next(iter(sizes))
        return RESIZED, RESIZED

    @property
    def gray(self) -> bool:
        """Whether all images are gray."""
        return all(look.gray for look in self.looks.values())

    def notes(self, size: tuple[int, int]) -> list[str]:
        """What reading the images at this size does to them."""
        texts = {
            "deep": ("of more than 8 bits is stretched", "of more than 8 bits are stretched, each to its own range"),
            "turned": ("is turned as its EXIF data says", "are turned as their EXIF data says"),
            "transparent": ("is put on white where it is transparent", "are put on white where they are transparent"),
            "frames": (frames := "with several frames or pages: the first is taken", frames),
        }
        counts = {name: sum(getattr(look, name) for look in self.looks.values()) for name in texts}
        notes = [
            number_of(counts[name], f"image {one}", f"images {many}")
            for name, (one, many) in texts.items()
            if counts[name]
        ]
        sizes = {(look.height, look.width) for look in self.looks.values()}
        if sizes == {size}:
            return notes
        if len(sizes) == 1:
            text = "images of {1} x {0} pixels (width x height) are resized to {3} x {2}"
            return [*notes, text.format(*next(iter(sizes)), *size)]
        return [*notes, f"images of {len(sizes)} different sizes are resized to {size[1]} x {size[0]}"]


def survey(
    listed: Listed,
    image_size: int | None = None,
    *,
    digests: Container[Path] = (),
    done: Callable[[int], None] = lambda _: None,
) -> Survey:
    """Decode every listed file, whole, so that truncated ones are found too; `digests` are made of these."""
    found = Survey()
    size = (image_size, image_size) if image_size is not None else None

    def look(path: Path) -> tuple[ImageInfo, bytes, NDArray[np.uint8]] | str:
        if not is_text(str(path)):
            return "its name is not valid UTF-8; rename it"
        try:
            picture, seen = read_picture(path)
            wanted = size or ((RESIZED, RESIZED) if max(picture.size) > LARGEST_KEPT else picture.size[::-1])
            return (
                seen,
                digest(picture) if path in digests else b"",
                np.asarray(resized_picture(picture, wanted), np.uint8),
            )
        except Exception as error:
            return unreadable(path, error)

    for path, seen in zip(listed.files, in_threads(look, listed.files), strict=True):
        if isinstance(seen, str):
            found.broken[path] = seen
        else:
            found.looks[path], found.digests[path], found.pixels[path] = seen
        done(1)
    return found


def read(listed: Listed, image_size: int | None = None, skip_unreadable: bool = False) -> ImageSet:
    """All listed images at one size and in one mode; unreadable ones are named in one error, or left out."""
    if listed.absent and not skip_unreadable:
        told = several(f"{listed.listing} names images that do not exist", [absent.where for absent in listed.absent])
        raise DataError("".join([told, *(f"\n{line[0].upper()}{line[1:]}." for line in listed.advice), SKIP]))
    found = survey(
        listed, image_size, digests={path for part in listed.parts.values() for path, label in part if label}
    )
    if found.broken and not skip_unreadable:
        what = "These images cannot be read; repair them, or take them out of the folder or list"
        raise DataError(several(what, [f"{name}: {reason}" for name, reason in unread(listed, found)]) + SKIP)
    return read_surveyed(listed, found, image_size)


def unread(listed: Listed, found: Survey) -> list[tuple[str, str]]:
    """Everything that cannot be read, with the reason."""
    absent = [(each.where, "there is no such file") for each in listed.absent]
    return [*absent, *((printable(path), reason) for path, reason in found.broken.items())]


def read_surveyed(listed: Listed, found: Survey, image_size: int | None = None) -> ImageSet:
    """The images that can be read, at one size and in one mode; the others are noted."""
    notes = list(listed.notes)
    if broken := unread(listed, found):
        what = number_of(len(broken), "image that cannot be read is", "images that cannot be read are")
        notes.append(f"{what} left out: {some_of([f'{name} ({reason})' for name, reason in broken], 10)}")
        notes += listed.advice
    if not found.looks:
        raise DataError(f"None of the {len(broken)} images of {listed.listing or listed.root} can be read.")
    size, gray = found.size(image_size), found.gray
    notes += found.notes(size)
    labeled = [pair for part in listed.parts.values() for pair in part if pair[1] and found.digests.get(pair[0])]
    notes += conflicts((found.digests[path], listed.called(path), label) for path, label in labeled)
    number = {label: index for index, label in enumerate(listed.classes)} | {"": UNLABELED}
    parts = {}
    for part, entries in listed.parts.items():
        readable = [(path, label) for path, label in entries if path in found.looks]
        if readable:
            paths = tuple(listed.called(path) for path, _ in readable)
            labels = np.array([number[label] for _, label in readable], np.int64)
            pixels = [found.pixels[path] for path, _ in readable]
            parts[part] = Images(stacked(pixels, size, 1 if gray else 3), labels, paths)
    if "train" not in parts:  # good to measure on, though not to train on
        parts["train"] = next(iter(parts.values())).take(np.zeros(0, np.int64))
    test, validation = parts.get("test"), parts.get("validation")
    return ImageSet(listed.name, listed.classes, parts["train"], test, validation, notes=tuple(notes))


UNLABELED_FOLDERS = frozenset({"unlabeled", "unlabelled"})
PART_LIKE = re.compile(r"(train|test|val|eval|dev|hold)")
PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}


def from_folder(root: Path, image_size: int | None = None, *, skip_unreadable: bool = False) -> ImageSet:
    """Images in `root/<class>/` and `root/unlabeled/`, or in such folders below `root/train`, `/test` and `/val`."""
    return read(list_folder(root), image_size, skip_unreadable)


def from_csv(path: Path, image_size: int | None = None, *, skip_unreadable: bool = False) -> ImageSet:
    """Images named in a CSV with the columns image and label (empty = unlabelled), optionally split (train, val, test).

    Image paths are relative to the CSV.
    """
    return read(list_csv(path), image_size, skip_unreadable)


def list_folder(root: Path) -> Listed:
    """The image files of a folder, with their labels; all that is wrong with its folders is one error."""
    wrong: list[str] = []
    folders = _unlinked(_folders(root), wrong)
    if any(folder.name.lower() == "train" and _folders(folder) for folder in folders):
        parts = _split_folders(root, folders, wrong)
    else:
        parts = _beside_classes(folders, wrong)
    if wrong:
        raise DataError(wrong[0] if len(wrong) == 1 else several(f"{len(wrong)} folders of {root} are wrong", wrong))
    loose = _loose(root)
    if not any(parts.values()):
        found = f"{number_of(loose, 'image')}, but no class folders" if loose else "no images"
        raise DataError(
            f"{root} holds {found}. Wanted are class folders with images ({', '.join(sorted(IMAGE_ENDINGS))}) and, "
            f"for images without a label, {root / 'unlabeled'}."
        )
    beside = number_of(loose, "image beside the folders is", "images beside the folders are")
    notes = [f"{beside} left out; unlabelled ones belong in unlabeled/"] if loose else []
    for folder in folders:
        if folder.name.lower() in PARTS and PARTS[folder.name.lower()] in parts and (loose := _loose(folder)):
            there = number_of(loose, f"image in {folder.name}/ is", f"images in {folder.name}/ are")
            notes.append(f"{there} in no class folder and left out")
    return Listed(root.resolve().name, root, parts, tuple(notes))


def _loose(folder: Path) -> int:
    """How many images lie in a folder itself."""
    return sum(is_image(entry.name) for entry in folder.iterdir())


def _folders(root: Path) -> list[Path]:
    """Folders that may hold images: not hidden ones, nor what macOS puts into archives, nor where runs are kept."""
    return sorted(e for e in root.iterdir() if e.is_dir() and not is_hidden(e.name) and not _holds_runs(e))


def _holds_runs(folder: Path) -> bool:
    marks = ("settings.toml", "*/settings.toml", "demo-*/*/settings.toml")
    return any(next(folder.glob(mark), None) for mark in marks)


def _split_folders(root: Path, folders: list[Path], wrong: list[str]) -> Listing:
    """`train`, `test` and `val` with class folders each, and perhaps `unlabeled` beside them."""
    parts: Listing = {}
    for folder in folders:
        name = folder.name.lower()
        if name in UNLABELED_FOLDERS:
            parts.setdefault("train", []).extend(_class_folders([folder], wrong))
        elif name in PARTS:
            parts.setdefault(PARTS[name], []).extend(_class_folders(_folders(folder), wrong))
        else:
            wrong.append(
                f"{root} has a folder train, so {folder.name} beside it is no class. Move it into {root / 'train'}, or "
                "away."
            )
    return parts


def _beside_classes(folders: list[Path], wrong: list[str]) -> Listing:
    """Class folders and `unlabeled`, and perhaps `test` and `val` beside them, with class folders of their own."""
    classes = [folder for folder in folders if folder.name.lower() not in PARTS or folder.name.lower() == "train"]
    names = {folder.name for folder in classes if folder.name.lower() not in UNLABELED_FOLDERS}
    parts: Listing = {"train": _class_folders([each for each in classes if not _is_part(each, names, wrong)], wrong)}
    for folder in (each for each in folders if each not in classes):
        inside = _folders(folder)
        if not inside or (names and names.isdisjoint(each.name for each in inside)):
            holds = f"no folder of {', '.join(sorted(names)[:3])}" if inside and names else "no class folders"
            wrong.append(
                f"{folder} looks like images to measure on, but holds {holds}. If it is that, sort its images into "
                f"{folder / '<class>'}, or move it away (ebpl predict labels images without a class). If it is a "
                "class, give it another name, or list the images in a CSV."
            )
            continue
        parts.setdefault(PARTS[folder.name.lower()], []).extend(_class_folders(inside, wrong))
    return parts


def _is_part(folder: Path, classes: set[str], wrong: list[str]) -> bool:
    """Whether a folder is named much like a part and holds folders named as the classes beside it."""
    if not PART_LIKE.match(folder.name.lower()) or classes.isdisjoint(each.name for each in _folders(folder)):
        return False
    wrong.append(
        f"{folder} would be a class, but holds folders of the classes beside it. If it holds images to measure on, "
        "name it test or val; else move it away."
    )
    return True


def _class_folders(folders: list[Path], wrong: list[str]) -> list[tuple[Path, str]]:
    found = []
    for folder in _unlinked(folders, wrong):
        label = "" if folder.name.lower() in UNLABELED_FOLDERS else folder.name
        if label and (reason := _no_class(folder)):
            wrong.append(reason)
            continue
        inside = [(path, label) for path in image_files(folder)]
        if label and not inside:
            endings = ", ".join(sorted(IMAGE_ENDINGS))
            wrong.append(f"{folder} holds no image that can be read ({endings}). Remove the folder, or put images in.")
        found += inside
    return found


def _unlinked(folders: list[Path], wrong: list[str]) -> list[Path]:
    """The folders themselves, without links to folders."""
    wrong += [
        f"{folder} is a link to a folder, and such links are not followed. Put the folder itself there, list the "
        "images in a CSV, or remove the link."
        for folder in folders
        if folder.is_symlink()
    ]
    return [folder for folder in folders if not folder.is_symlink()]


def _no_class(folder: Path) -> str:
    """What is surely no class: a misspelt `unlabeled`, a folder with classes of its own."""
    if difflib.get_close_matches(folder.name.lower(), UNLABELED_FOLDERS, cutoff=0.8):
        return f"{folder} would be a class. Did you mean {folder.with_name('unlabeled')}?"
    special = [e.name for e in _folders(folder) if e.name.lower() in UNLABELED_FOLDERS or e.name.lower() == "train"]
    return f"{folder} would be a class, but holds {special[0]}: give that folder itself as the data." if special else ""


def list_csv(path: Path) -> Listed:
    """The image files that a CSV names, with their labels."""
    parts: Listing = {}
    absent, wrong = list[Absent](), list[str]()
    blank: set[str] = set()
    for line, row in read_table(path, text_of(path), ["image"], ["label"]):
        name, label = row.get("image", ""), row.get("label", "")
        file_path = listed_file(path.parent, name)
        if label.lower() in NO_LABEL:
            blank |= {label} - {""}
            label = ""
        if not name or not is_file(file_path):
            absent.append(Absent(f"line {line}: {name[:LONGEST_SHOWN] or '(empty)'}", label, name))
            continue
        part = (row.get("split") or "train").lower()
        if part not in PARTS:
            wrong.append(f"line {line}: split is {part[:LONGEST_SHOWN]!r}")
            continue
        parts.setdefault(PARTS[part], []).append((file_path, label))
    if wrong:
        raise DataError(several(f"{path}: wanted as split is train, val or test", wrong))
    if not parts and not absent:
        raise DataError(f"{path} lists no images.")
    notes = (f"images with the label {' or '.join(sorted(blank))} are taken as unlabelled",) if blank else ()
    return Listed(path.stem, path.parent, parts, notes, tuple(absent), path)
