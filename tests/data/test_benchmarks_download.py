"""Downloads against a real server on this machine that can break off, resume, and lie."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from ebpl.data.benchmarks import RemoteFile, fetch
from ebpl.errors import DataError, WriteError

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
