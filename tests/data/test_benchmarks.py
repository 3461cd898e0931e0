"""Finding and checking benchmarks, on small files in their layout; the real ones where the machine has them."""

import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ebpl.data import benchmarks
from ebpl.data.benchmarks import BENCHMARKS, DEBIAN_FASHION, RemoteFile, fetch, load_benchmark
from ebpl.errors import DataError, WriteError
from tests.helpers import random_images as images

PAPER_LABELS = {"cifar10": 350, "svhn": 510, "fashion": 420, "blood": 80, "organa": 352, "organc": 132, "organs": 143}


def test_labels_per_class_make_the_papers_totals() -> None:
    totals = {name: b.labels_per_class * len(b.classes) for name, b in BENCHMARKS.items()}
    assert {name: totals[name] for name in PAPER_LABELS} == PAPER_LABELS


def test_every_official_file_has_a_source_and_a_check_sum() -> None:
    for benchmark in BENCHMARKS.values():
        for remote in benchmark.files:
            assert remote.url.startswith("http")
            assert len(remote.md5) == 32


@pytest.fixture
def small_organs(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """OrganS-MNIST as if it had 44 training and 11 test images, in the official layout."""
    small = dataclasses.replace(BENCHMARKS["organs"], train_images=44, test_images=11)
    monkeypatch.setitem(benchmarks.BENCHMARKS, "organs", small)
    arrays = {}
    for part, count in (("train", 44), ("val", 11), ("test", 11)):
        arrays[f"{part}_images"] = images(count, 28, 28)
        arrays[f"{part}_labels"] = (np.arange(count, dtype=np.uint8) % 11)[:, None]
    return arrays


def test_medmnist_is_found_in_every_folder_it_may_be_in(small_organs, tmp_path: Path, monkeypatch) -> None:
    for number, place in enumerate(("given", "variable", "cache")):
        folder = tmp_path / f"data{number}" / ("ebpl" if place == "cache" else "")
        folder.mkdir(parents=True)
        np.savez(folder / "organsmnist.npz", **small_organs)
        monkeypatch.setenv("EBPL_DATA", str(folder) if place == "variable" else str(tmp_path / "none"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent if place == "cache" else tmp_path / "none"))
        data = load_benchmark("organs", folder if place == "given" else None, download=False)
        assert data.labels_per_class == 13
        assert data.classes[0] == "bladder"
        assert data.train.labels[:11].tolist() == list(range(11))
        assert data.validation is None  # the paper's protocol makes its own


def test_a_part_of_a_benchmark_does_not_pass_for_the_whole(small_organs, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.undo()
    np.savez(tmp_path / "organsmnist.npz", **small_organs)
    with pytest.raises(DataError, match=r"has 44 training and 11 test images; the benchmark has 13932 and 8827"):
        load_benchmark("organs", tmp_path, download=False)


def test_without_a_file_the_error_says_which_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        load_benchmark("svhn", tmp_path / "data", download=False)
    message = str(raised.value)
    assert str(tmp_path / "data" / "train_32x32.mat") in message
    assert "http://ufldl.stanford.edu/housenumbers/train_32x32.mat" in message
    assert "EBPL_DATA" in message


def test_an_npz_without_the_keys_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bloodmnist.npz", train_images=images(2, 28, 28, 3))
    with pytest.raises(DataError, match="has no train_labels"):
        load_benchmark("blood", tmp_path, download=False)


def test_an_archive_is_found_packed_or_unpacked(tmp_path: Path) -> None:
    benchmark = BENCHMARKS["cifar10"]
    assert not benchmark.is_in(tmp_path)
    for name in ("cifar-10-batches-py/test_batch", "cifar-10-python.tar.gz"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
        assert benchmark.is_in(folder)


def test_a_sample_without_an_official_source_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("EBPL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"no official source.*organamnist_20pct\.npz"):
        load_benchmark("organa-sample", tmp_path)


def test_digits_come_with_scikit_learn() -> None:
    data = load_benchmark("digits")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (1200, 597)
    assert data.train.pixels.max() == 255
    joined = np.concatenate([data.train.pixels, data.test.pixels])
    assert len(joined) == 1797


@pytest.mark.skipif(not DEBIAN_FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_from_debians_package() -> None:
    data = load_benchmark("fashion", download=False)
    assert (len(data.train), data.shape) == (60_000, (1, 28, 28))
    assert np.bincount(data.train.labels).tolist() == [6000] * 10


CONTENT = bytes(range(256)) * 4000


class Source(BaseHTTPRequestHandler):
    """Serves CONTENT; `plan` says what each request in turn does."""

    plan: ClassVar[list[str]] = []
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Range"))
        step = self.plan.pop(0) if self.plan else "all"
        start = 0
        if step != "no-range" and (span := self.headers.get("Range")):
            start = int(span.removeprefix("bytes=").rstrip("-"))
        if step == "missing":
            self.send_error(404)
            return
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        body = CONTENT[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if step == "break":
            body = body[:100_000]
        if step == "lie":
            body = b"x" * len(body)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def source() -> Iterator[RemoteFile]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Source)
    Source.plan, Source.asked = [], []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/file.npz"
    yield RemoteFile("file.npz", url, hashlib.md5(CONTENT, usedforsecurity=False).hexdigest())
    server.shutdown()
    server.server_close()


def failed(why: str) -> DataError:
    return DataError(why)


def test_a_file_arrives_whole_and_only_once(source: RemoteFile, tmp_path: Path) -> None:
    assert fetch(source, tmp_path / "new", failed).read_bytes() == CONTENT
    fetch(source, tmp_path / "new", failed)
    assert len(Source.asked) == 1
    assert not list((tmp_path / "new").glob("*.part"))


def test_a_broken_download_goes_on_where_it_stopped(source: RemoteFile, tmp_path: Path) -> None:
    Source.plan = ["break"]
    with pytest.raises(DataError, match="bytes are kept for the next try"):
        fetch(source, tmp_path, failed)
    assert fetch(source, tmp_path, failed).read_bytes() == CONTENT
    assert Source.asked == [None, "bytes=100000-"]


def test_a_source_that_cannot_resume_is_asked_for_everything(source: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "file.npz.part").write_bytes(CONTENT[:5000])
    Source.plan = ["no-range"]
    assert fetch(source, tmp_path, failed).read_bytes() == CONTENT


def test_leftovers_of_another_file_are_thrown_away(source: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "file.npz.part").write_bytes(b"something else" * 10)
    assert fetch(source, tmp_path, failed).read_bytes() == CONTENT
    (tmp_path / "file.npz").unlink()
    (tmp_path / "file.npz.part").write_bytes(CONTENT + b"too much")
    assert fetch(source, tmp_path, failed).read_bytes() == CONTENT


def test_a_wrong_check_sum_is_never_accepted(source: RemoteFile, tmp_path: Path) -> None:
    Source.plan = ["lie", "lie"]
    with pytest.raises(DataError, match="not the published"):
        fetch(source, tmp_path, failed)
    assert not list(tmp_path.glob("file*"))


def test_a_missing_file_and_a_missing_network_are_told_apart(source: RemoteFile, tmp_path: Path) -> None:
    Source.plan = ["missing"]
    with pytest.raises(DataError, match="answered 404"):
        fetch(source, tmp_path, failed)
    nobody = RemoteFile("file.npz", "http://127.0.0.1:9/file.npz", source.md5)
    with pytest.raises(DataError, match="cannot be reached"):
        fetch(nobody, tmp_path, failed)


def test_a_folder_that_cannot_be_written_is_a_clear_error(source: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="Could not write"):
        fetch(source, tmp_path / "file" / "folder", failed)
