import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ebpl.encoders.cache import FILE, FeatureCache, cache_folder, image_digest
from tests.encoders.helpers import crops, small
from tests.helpers import ROOT, environment

DIMENSION = 8


def rows(count: int, dimension: int = DIMENSION, seed: int = 0) -> tuple[list[bytes], np.ndarray]:
    """Images, and features that belong to them."""
    random = np.random.default_rng(seed)
    return [random.bytes(16) for _ in range(count)], random.normal(size=(count, dimension)).astype(np.float16)


def never(text: str) -> None:
    raise AssertionError(text)


def opened(encoder: str = "a", said: list[str] | None = None, **how: int) -> FeatureCache:
    return FeatureCache(encoder, how.pop("dimension", DIMENSION), never if said is None else said.append, **how)


def stored(images: list[bytes], encoder: str = "a", said: list[str] | None = None) -> dict[bytes, np.ndarray]:
    with opened(encoder, said) as cache:
        return dict(cache.read(images))


def base() -> Path:
    return cache_folder() / FILE


def test_features_are_read_as_they_were_written() -> None:
    images, vectors = rows(1200)
    with opened() as cache:
        assert list(cache.read(images)) == []
        cache.write(images, vectors)
        assert len(dict(cache.read(images))) == 1200
    found = stored([*images[::-1], b"unknown"])
    assert found.keys() == set(images)
    assert all(np.array_equal(found[image], vector) for image, vector in zip(images, vectors, strict=True))
    with opened() as cache:
        cache.write(images[:1], vectors[1:2])
    assert np.array_equal(stored(images)[images[0]], vectors[1])


def test_another_encoders_features_are_not_found() -> None:
    images, vectors = rows(3)
    with opened("a") as cache:
        cache.write(images, vectors)
    assert stored(images, "b") == {}
    with opened("b") as cache:
        cache.write(images, -vectors)
    assert np.array_equal(stored(images, "a")[images[0]], vectors[0])
    assert np.array_equal(stored(images, "b")[images[0]], -vectors[0])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE features SET vector = substr(vector, 1, 6)",
        "UPDATE features SET vector = x''",
        "UPDATE features SET vector = 'text'",
        "UPDATE features SET vector = vector || x'00'",
        "UPDATE features SET vector = CAST(vector || x'00' AS BLOB)",
        "UPDATE features SET vector = CAST(x'ff' || substr(vector, 2) AS BLOB)",
        "UPDATE features SET vector = (SELECT vector FROM features ORDER BY id DESC LIMIT 1) WHERE id < 3",
        "UPDATE features SET encoder = 'a'",  # of b
    ],
)
def test_rows_that_are_not_what_was_written_are_not_taken(change: str) -> None:
    images, vectors = rows(3)
    with opened("b" if "encoder" in change else "a") as cache:
        cache.write(images, vectors)
    with sqlite3.connect(base()) as direct:
        direct.execute(change)
    direct.close()
    assert set(stored(images)) == ({images[2]} if "DESC" in change else set())


def test_what_was_rounded_is_not_rounded_again() -> None:
    numbers = np.array([[0, -0.0, 6.1e-5, 6e-8, 65504, -65504, 1 / 3, 2.9414062]], np.float16)
    with opened() as cache:
        cache.write([b"x"], numbers)
    assert stored([b"x"])[b"x"].tobytes() == numbers.tobytes()


def test_an_image_is_known_by_its_shape_and_its_pixels() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(4, 6, 1)
    same = [image.copy(), np.asfortranarray(image), np.repeat(image, 2, 0)[::2]]
    assert {image_digest(each) for each in same} == {image_digest(image)}
    others = [image, image.reshape(6, 4, 1), image.reshape(2, 4, 3), image[::-1], image[:, :5], image + np.uint8(1)]
    assert len({image_digest(each) for each in others}) == len(others)
    assert len(image_digest(image)) == 16


def test_the_folder_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBPL_CACHE", "mine")
    assert cache_folder() == Path("mine")
    monkeypatch.setenv("EBPL_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/ebpl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/ebpl"


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"no database at all, but some text" * 100,
        lambda whole: whole[:100] + b"\xff" * (len(whole) - 100),
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:20000] + bytes(len(whole) - 20000),
    ],
)
def test_a_damaged_file_is_begun_anew(damage) -> None:
    images, vectors = rows(400)
    with opened() as cache:
        cache.write(images, vectors)
    base().write_bytes(damage(base().read_bytes()))
    said: list[str] = []
    found = stored(images, said=said)
    assert all(np.array_equal(found[image], vectors[images.index(image)]) for image in found)
    with opened(said=said) as cache:
        cache.write(images, vectors)
    with opened(said=said) as cache:
        cache.write(images, vectors)
    assert len(stored(images)) == 400
    assert 1 <= len(said) <= 2
    assert all("was damaged" in text and str(base()) in text for text in said)


def test_an_empty_file_is_a_cache() -> None:
    base().parent.mkdir(parents=True)
    base().touch()
    images, vectors = rows(2)
    with opened() as cache:
        cache.write(images, vectors)
    assert len(stored(images)) == 2


def unusable(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "file":
        Path("place").touch()
    elif kind == "below a file":
        Path("file").touch()
    elif kind == "folder instead of the database":
        Path("place", FILE).mkdir(parents=True)
    places = {"below a file": "file/place", "not writable": "/proc/ebpl", "no name": "a\0b"}
    if kind == "no name":
        monkeypatch.setattr("ebpl.encoders.cache.cache_folder", lambda: Path("a\0b"))
    elif kind == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:
        monkeypatch.setenv("EBPL_CACHE", places.get(kind, "place"))


KINDS = ["file", "below a file", "folder instead of the database", "not writable", "no name", "no home"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_that_cannot_be_used_is_done_without(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unusable(kind, monkeypatch)
    images, vectors = rows(2)
    said: list[str] = []
    with opened(said=said) as cache:
        assert list(cache.read(images)) == []
        cache.write(images, vectors)
        assert list(cache.read(images)) == []
    (text,) = said
    assert "cannot be used" in text
    assert "EBPL_CACHE names another folder" in text


def test_a_cache_that_cannot_be_written_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    images, vectors = rows(4)
    with opened() as cache:
        cache.write(images[:2], vectors[:2])
    connect = sqlite3.connect
    monkeypatch.setattr(
        "sqlite3.connect", lambda path, **how: connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, **how)
    )
    said: list[str] = []
    with opened(said=said) as cache:
        assert len(dict(cache.read(images))) == 2
        cache.write(images[2:], vectors[2:])
        cache.write(images[2:], vectors[2:])
        assert len(dict(cache.read(images))) == 2
    (text,) = said
    assert "Nothing is added to it" in text


def in_another_process(code: str, *words: object) -> subprocess.Popen[str]:
    """Python that may use this module; the cache is that of this test."""
    whole = {**environment(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"import sys\nfrom tests.encoders.test_cache import *\n{code}", *map(str, words)]
    return subprocess.Popen(command, env=whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
images, vectors = rows(20_000, DIMENSION)
said = []
with opened(said=said) as cache:
    for start in range(0, len(images), 100):
        cache.write(images[start:start + 100], vectors[start:start + 100])
print(len(said), said)
"""


def test_a_full_disk_is_no_error() -> None:
    process = in_another_process(FULL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.startswith("1 ['The cache of features")
    images, vectors = rows(20_000, DIMENSION)
    found = stored(images)
    assert 1000 < len(found) < 20_000
    assert all(np.array_equal(found[image], vectors[index]) for index, image in enumerate(images[: len(found)]))


WRITER = """
images, vectors = rows(600)
mine = range(0, 400) if sys.argv[1] == "0" else range(200, 600)
for start in mine[::10]:
    with opened() as cache:
        dict(cache.read(images))
        cache.write(images[start:start + 10], vectors[start:start + 10])
"""


def test_several_processes_write_at_once() -> None:
    processes = [in_another_process(WRITER, number) for number in (0, 1)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    images, vectors = rows(600)
    found = stored(images)
    assert len(found) == 600
    assert all(np.array_equal(found[image], vector) for image, vector in zip(images, vectors, strict=True))


KILLED = """
from ebpl import encoders
encoders.BATCH["cpu"] = 1
small(size=32).encode(crops(800), lambda count: print(count, flush=True))
"""


def test_what_a_killed_process_computed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    process = in_another_process(KILLED)
    assert process.stdout is not None
    computed = 0
    while computed < 60:
        computed += int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    encoder, images = small(size=32), crops(800)
    with FeatureCache(encoder.digest, encoder.dimension, never) as cache:
        kept = dict(cache.read(map(image_digest, images)))
    assert computed <= len(kept) < len({image_digest(image) for image in images})
    some = [image for image in images if image_digest(image) in kept][:5]
    monkeypatch.setenv("EBPL_CACHE", "another")
    again = encoder.encode(np.stack(some))
    assert np.allclose(again, [kept[image_digest(image)] for image in some], rtol=2e-3, atol=2e-4)


def test_the_oldest_features_are_deleted_where_there_are_too_many() -> None:
    images, vectors = rows(900, dimension=1280)
    most = 1_000_000
    for start in range(0, 900, 50):
        with opened(most_bytes=most, dimension=1280) as cache:
            cache.write(images[start : start + 50], vectors[start : start + 50])
    with opened(dimension=1280) as cache:
        found = dict(cache.read(images))
    assert 250 < len(found) < 390
    assert set(found) == set(images[-len(found) :])
    assert base().stat().st_size < 1.3 * most
