"""Downloading an official file: resumed where it stopped, checked against its published check sum."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.data.formats import CIFAR_FOLDER, Arrays, read_arrays, read_cifar, read_fashion, read_svhn
from ebpl.errors import DataError, EbplError
from ebpl.io import write_failed

BLOCK = 1 << 18
TIMEOUT = 60


@dataclass(frozen=True)
class RemoteFile:
    """A file of an official source and its published MD5."""

    name: str
    url: str
    md5: str


def fetch(remote: RemoteFile, folder: Path, failed: Callable[[str], EbplError]) -> Path:
    """The file in `folder`, downloaded if it is not there yet.

    What has arrived waits in a `.part` file, from which the next try continues. `failed` makes the error for a source
    that cannot be reached out of the reason.
    """
    path = folder / remote.name
    if path.is_file():
        return path
    part = path.with_name(path.name + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for fresh in (False, True):
            if fresh:
                part.unlink(missing_ok=True)
            _receive(remote, part)
            if _md5(part) == remote.md5:
                part.replace(path)
                return path
            # a part left over from another version of the file: once more from the start
    except urllib.error.HTTPError as error:
        raise failed(f"and the source answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        kept = f"; {part.stat().st_size:,} bytes are kept for the next try" if part.is_file() else ""
        raise failed(f"and the source cannot be reached ({reason}{kept})") from error
    except OSError as error:
        raise write_failed(part, error) from error
    part.unlink(missing_ok=True)
    raise DataError(
        f"{remote.url} gave a file whose MD5 is not the published {remote.md5}. It was thrown away; try again later."
    )


def _receive(remote: RemoteFile, part: Path) -> None:
    """Append what is missing of the file to `part`."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing any more
            return
        raise
    with answer:
        resumed = answer.status == 206
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file, _bar(remote.name, total, have) as advance:
            _copy(answer, file, advance)
    if total is not None and part.stat().st_size < total:
        raise ConnectionError(f"the connection broke after {part.stat().st_size:,} of {total:,} bytes")


def _copy(source: Any, target: IO[bytes], advance: Callable[[int], None]) -> None:
    while block := source.read(BLOCK):
        target.write(block)
        advance(len(block))


def _bar(name: str, total: int | None, done: int) -> Any:
    from ebpl.terminal import transfer_bar

    return transfer_bar(name, total, done)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


KEYS = ("train_images", "train_labels", "test_images", "test_labels")
DIGITS_LABELS = 5
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Benchmark:
    """A dataset of the paper: what it is, the paper's number of labels, and its official files."""

    title: str
    classes: tuple[str, ...]
    labels_per_class: int
    augment: str
    files: tuple[RemoteFile, ...]
    npz: str
    """Name of the same data as one .npz with MedMNIST's keys, which is looked for first."""
    read: Callable[[Path], Arrays]
    """Reads the official files in a folder."""
    train_images: int
    test_images: int
    also_in: tuple[Path, ...] = ()
    """Folders of the system that may hold the official files."""
    unpacked: str | None = None
    """A file that is there when the official archive has been unpacked."""

    def is_in(self, folder: Path) -> bool:
        """Whether the official files, packed or not, are in a folder."""
        if self.unpacked and (folder / self.unpacked).is_file():
            return True
        return bool(self.files) and all((folder / remote.name).is_file() for remote in self.files)


def data_folders(data_dir: Path | None) -> list[Path]:
    """Where data is looked for: the given folder, $EBPL_DATA, the user's cache. The first one is downloaded to."""
    folders = [data_dir] if data_dir else []
    if os.environ.get("EBPL_DATA"):
        folders.append(Path(os.environ["EBPL_DATA"]))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*folders, Path(cache) / "ebpl"]


def labels_of(name: str) -> list[int]:
    """How many labels of each class a benchmark has by default: the paper's number."""
    if name == "digits":
        return [DIGITS_LABELS] * 10
    return [BENCHMARKS[name].labels_per_class] * len(BENCHMARKS[name].classes)


def load_benchmark(name: str, data_dir: Path | None = None, *, download: bool = True) -> ImageSet:
    """A benchmark from the first folder that holds it; downloaded from its official source where none does."""
    if name == "digits":
        return _digits()
    benchmark = BENCHMARKS[name]
    arrays = _find(benchmark, data_dir)
    if arrays is None:
        folder = data_folders(data_dir)[0]
        if not download or not benchmark.files:
            raise DataError(missing_message(name, folder, "and downloading is switched off"))
        for remote in benchmark.files:
            fetch(remote, folder, lambda why: DataError(missing_message(name, folder, why)))
        arrays = benchmark.read(folder)
    absent = [key for key in KEYS if key not in arrays]
    if absent:
        raise DataError(f"{benchmark.npz} has no {', '.join(absent)}. Remove it, or put a whole one in its place.")
    images = {key: arrays[key] for key in KEYS}
    found = (len(images["train_images"]), len(images["test_images"]))
    if found != (benchmark.train_images, benchmark.test_images):
        raise DataError(
            f"The {benchmark.title} found here has {found[0]} training and {found[1]} test images; the benchmark has "
            f"{benchmark.train_images} and {benchmark.test_images}. To train on a part of it, give the file's path."
        )
    data = from_arrays(
        images["train_images"],
        images["train_labels"],
        test_images=images["test_images"],
        test_labels=images["test_labels"],
        classes=benchmark.classes,
        name=name,
    )
    return ImageSet(name, data.classes, data.train, data.test, None, benchmark.labels_per_class, benchmark.augment)


def missing_message(name: str, folder: Path, why: str) -> str:
    """Which files to put where, for somebody without a network."""
    benchmark = BENCHMARKS[name]
    if not benchmark.files:
        return (
            f"{benchmark.title} is not here, and has no official source. It is looked for with MedMNIST's keys as "
            f"{folder / benchmark.npz}; another folder can be given with --data-dir or EBPL_DATA."
        )
    files = "\n".join(f"  {folder / remote.name}\n    from {remote.url}" for remote in benchmark.files)
    return (
        f"{benchmark.title} is not here, {why}. Put its official files in place yourself:\n{files}\n"
        f"or the same data with MedMNIST's keys as {folder / benchmark.npz}. "
        "Another folder can be given with --data-dir or EBPL_DATA."
    )


def _find(benchmark: Benchmark, data_dir: Path | None) -> Arrays | None:
    for folder in [*data_folders(data_dir), *benchmark.also_in]:
        if (folder / benchmark.npz).is_file():
            return read_arrays(folder / benchmark.npz)
        if benchmark.is_in(folder):
            return benchmark.read(folder)
    return None


def _digits() -> ImageSet:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    train, test = order[:1200], order[1200:]
    pixels = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    classes = tuple(str(i) for i in range(10))
    data = from_arrays(
        pixels[train], labels[train], test_images=pixels[test], test_labels=labels[test], classes=classes, name="digits"
    )
    return ImageSet("digits", classes, data.train, data.test, None, labels_per_class=DIGITS_LABELS, augment="none")


def _medmnist_reader(name: str) -> Callable[[Path], Arrays]:
    return lambda folder: read_arrays(folder / name)


def _medmnist(title: str, npz: str, md5: str, labels: int, sizes: tuple[int, int], augment: str) -> Benchmark:
    remote = RemoteFile(npz, f"https://zenodo.org/records/10519652/files/{npz}?download=1", md5)
    classes = BLOOD_CLASSES if npz == "bloodmnist.npz" else ORGAN_CLASSES
    return Benchmark(title, classes, labels, augment, (remote,), npz, _medmnist_reader(npz), *sizes)


# fmt: off
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)
BLOOD_CLASSES = (
    "basophil", "eosinophil", "erythroblast", "immature granulocyte",
    "lymphocyte", "monocyte", "neutrophil", "platelet",
)
ORGAN_CLASSES = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left", "lung-right",
    "pancreas", "spleen",
)
# fmt: on
_FASHION_SOURCE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_SVHN_SOURCE = "http://ufldl.stanford.edu/housenumbers/"
_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}

BENCHMARKS: dict[str, Benchmark] = {
    "cifar10": Benchmark(
        "CIFAR-10",
        CIFAR_CLASSES,
        35,
        "flip",
        (
            RemoteFile(
                "cifar-10-python.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
            ),
        ),
        "cifar10.npz",
        read_cifar,
        50_000,
        10_000,
        unpacked=f"{CIFAR_FOLDER}/test_batch",
    ),
    "svhn": Benchmark(
        "SVHN",
        tuple("0123456789"),
        51,
        "shift",
        (
            RemoteFile("train_32x32.mat", _SVHN_SOURCE + "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            RemoteFile("test_32x32.mat", _SVHN_SOURCE + "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
        "svhn.npz",
        read_svhn,
        73_257,
        26_032,
    ),
    "fashion": Benchmark(
        "Fashion-MNIST",
        FASHION_CLASSES,
        42,
        "flip",
        tuple(RemoteFile(name, _FASHION_SOURCE + name, md5) for name, md5 in _FASHION_FILES.items()),
        "fashionmnist.npz",
        read_fashion,
        60_000,
        10_000,
        also_in=(DEBIAN_FASHION,),
    ),
    "blood": _medmnist(
        "Blood-MNIST", "bloodmnist.npz", "7053d0359d879ad8a5505303e11de1dc", 10, (11_959, 3_421), "dihedral"
    ),
    "organa": _medmnist(
        "OrganA-MNIST", "organamnist.npz", "68e3f8846a6bd62f0c9bf841c0d9eacc", 32, (34_561, 17_778), "shift"
    ),
    "organc": _medmnist(
        "OrganC-MNIST", "organcmnist.npz", "b9ceb9546e10131b32923c5bbeaea2b1", 12, (12_975, 8_216), "shift"
    ),
    "organs": _medmnist(
        "OrganS-MNIST", "organsmnist.npz", "9ab87b696fb54e2a387ebe992d6ed5f1", 13, (13_932, 8_827), "shift"
    ),
    # not one of the paper's: a random fifth of OrganA, whose border between training and test images is estimated
    "organa-sample": Benchmark(
        "A fifth of OrganA-MNIST",
        ORGAN_CLASSES,
        32,
        "shift",
        (),
        "organamnist_20pct.npz",
        _medmnist_reader("organamnist_20pct.npz"),
        6_847,
        3_492,
    ),
}
