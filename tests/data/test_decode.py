import inspect
import os
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ebpl.data import decode
from ebpl.data.decode import (
    FORMATS,
    IMAGE_ENDINGS,
    LINKED_FOLDER,
    MOST_PIXELS,
    digest,
    image_files,
    is_image,
    read_image,
    read_picture,
    resized_picture,
    unreadable,
)
from tests.helpers import random_images, write_png

TURNED = {  # what EXIF's orientations mean, told with NumPy
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


def reason(path: Path) -> str:
    """Why a file cannot be read."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever PIL or the system says
        read_picture(path)
    return unreadable(path, raised.value)


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A gray PNG whose header claims this size, whatever is in it."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("ending", ["png", "tif", "webp"])
@pytest.mark.parametrize("orientation", TURNED)
def test_images_are_turned_as_the_camera_was_held(ending: str, orientation: int) -> None:
    pixels = random_images(1, 5, 7, 3)[0]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = Path(f"photo.{ending}")
    more = {"lossless": True} if ending == "webp" else {}
    Image.fromarray(pixels).save(path, exif=exif, **more)
    picture, look = read_picture(path)
    expected = TURNED[orientation](pixels)
    np.testing.assert_array_equal(np.asarray(picture), expected)
    assert (look.height, look.width) == expected.shape[:2]
    assert look.turned == (orientation != 1)
    np.testing.assert_array_equal(read_image(path, expected.shape[:2], gray=False)[0], expected)


def test_damaged_exif_data_turns_nothing_and_stops_nothing() -> None:
    pixels = random_images(1, 5, 7, 3)[0]
    Image.fromarray(pixels).save("photo.png", exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xff garbage")
    picture, look = read_picture(Path("photo.png"))
    np.testing.assert_array_equal(np.asarray(picture), pixels)
    assert not look.turned


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_transparent_parts_are_white(mode: str) -> None:
    alpha = np.tile(np.array([0, 255], np.uint8), (4, 2))
    image = Image.new("RGBA", (4, 4), (200, 200, 200))
    image.putalpha(Image.fromarray(alpha))
    (image.quantize() if mode == "P" else image.convert(mode)).save("a.png")
    picture, look = read_picture(Path("a.png"))
    assert look.transparent
    assert look.gray == (mode == "LA")
    values = np.asarray(picture.convert("L"))
    assert (values[alpha == 0] == 255).all()
    assert (np.abs(values[alpha == 255].astype(int) - 200) < 3).all()
    image.putalpha(255)
    image.save("b.png")
    assert not read_picture(Path("b.png"))[1].transparent


def test_a_palette_with_one_transparent_colour_shows_white_there() -> None:
    image = Image.new("P", (2, 2))
    image.putpalette([10, 20, 30, 90, 80, 70])
    image.putdata([0, 1, 1, 0])
    image.save("p.gif", transparency=0)
    picture, look = read_picture(Path("p.gif"))
    assert look.kind == "palette"
    assert np.asarray(picture).tolist() == [[[255] * 3, [90, 80, 70]], [[90, 80, 70], [255] * 3]]


def test_the_kinds_of_images_are_told_apart() -> None:
    deep = Image.fromarray(np.linspace(0, 60_000, 16).reshape(4, 4).astype(np.uint16))
    images = {"16-bit": deep, "32-bit": deep.convert("F")}
    for kind, mode in {"gray": "L", "colour": "RGB", "palette": "P", "CMYK": "CMYK", "alpha": "LA"}.items():
        images[kind] = Image.new(mode, (4, 4))
    images["gray "] = Image.new("1", (4, 4))
    for kind, image in images.items():
        path = Path(f"{kind}.tif")
        image.save(path)
        picture, look = read_picture(path)
        assert look.kind == kind.strip()
        assert picture.mode == ("L" if look.gray else "RGB")
        assert look.gray == (kind not in ("colour", "palette", "CMYK"))
        assert look.deep == (kind in ("16-bit", "32-bit"))


def test_cmyk_is_seen_in_its_colours() -> None:
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save("red.tif")
    assert np.asarray(read_picture(Path("red.tif"))[0])[0, 0].tolist() == [255, 0, 0]


def test_deep_images_are_stretched_and_numbers_that_are_none_are_black() -> None:
    values = np.array([[-5.0, 5.0], [np.nan, np.inf]], np.float32)
    Image.fromarray(values).save("deep.tif")
    assert np.asarray(read_picture(Path("deep.tif"))[0]).tolist() == [[0, 255], [0, 255]]
    Image.fromarray(np.full((3, 3), 7, np.uint16)).save("flat.tif")
    assert not np.asarray(read_picture(Path("flat.tif"))[0]).any()


def test_of_several_frames_the_first_is_taken() -> None:
    frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
    for name in ("a.gif", "a.tif", "a.webp", "a.png"):
        frames[0].save(name, save_all=True, append_images=frames[1:], **({"lossless": True} if "webp" in name else {}))
        picture, look = read_picture(Path(name))
        assert look.frames
        assert (np.asarray(picture.convert("L")) == 10).all()
    frames[0].save("single.gif")
    assert not read_picture(Path("single.gif"))[1].frames


def test_huge_images_are_refused_by_their_header_alone() -> None:
    Path("bomb.png").write_bytes(png(30_000, 30_000, bytes(1000)))
    assert reason(Path("bomb.png")).startswith("it has 900 million pixels, more than the 67 million that are read")
    side = int(MOST_PIXELS**0.5) + 10  # where PIL would only warn
    Path("large.png").write_bytes(png(side, side))
    assert "more than the 67 million" in reason(Path("large.png"))


def test_a_real_image_of_30000_by_30000_pixels_takes_no_time_or_memory() -> None:
    import time
    import tracemalloc

    packer = zlib.compressobj(1)
    row = bytes(30_001)
    content = b"".join([*(packer.compress(row) for _ in range(30_000)), packer.flush()])
    whole = png(30_000, 30_000)
    start, end = whole.index(b"IDAT") - 4, whole.index(b"IEND") - 4
    idat = struct.pack(">I", len(content)) + b"IDAT" + content + struct.pack(">I", zlib.crc32(b"IDAT" + content))
    Path("huge.png").write_bytes(whole[:start] + idat + whole[end:])
    tracemalloc.start()
    begun = time.perf_counter()
    assert "900 million pixels" in reason(Path("huge.png"))
    assert time.perf_counter() - begun < 1
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_the_largest_image_costs_a_bounded_amount_of_memory() -> None:
    side = 8192
    Image.new("RGBA", (side, side), (1, 2, 3, 4)).save("large.png", compress_level=1)
    code = (
        "import resource\nfrom pathlib import Path\nimport PIL.Image\n"
        "from ebpl.data.decode import digest, read_picture\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "digest(read_picture(Path('large.png'))[0])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert side * side == MOST_PIXELS
    assert int(done.stdout) * 1024 < 10 * MOST_PIXELS


def test_a_file_is_only_taken_for_what_its_ending_may_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("a program was started"))
    Image.new("RGB", (8, 8)).save("x.eps")
    Path("x.eps").rename("x.png")
    Image.new("RGB", (8, 8)).save("y.pcx")
    Path("y.pcx").rename("y.png")
    assert reason(Path("x.png")) == reason(Path("y.png")) == "not an image"
    Image.new("RGB", (8, 8)).save("z.jpg")
    Path("z.jpg").rename("z.png")  # the ending may be wrong, as long as it is an image's
    assert read_picture(Path("z.png"))[0].size == (8, 8)
    kinds = {Image.registered_extensions()[ending] for ending in IMAGE_ENDINGS}
    assert kinds == set(FORMATS)
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    frames[0].save("photo.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert read_picture(Path("photo.jpg"))[0].getpixel((0, 0))[0] > 200


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_an_image_looks_the_same_in_whatever_strips_it_is_worked_on(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = random_images(1, 23, 37, 4)[0]
    Image.fromarray(pixels).convert(mode).save("a.png", **({"transparency": 3} if mode == "P" else {}))
    whole, look = read_picture(Path("a.png"))
    monkeypatch.setattr(decode, "STRIP", 100)
    strips, same = read_picture(Path("a.png"))
    assert (np.asarray(whole) == np.asarray(strips)).all()
    assert look == same
    monkeypatch.setattr(decode, "STRIP", 1)
    assert digest(strips) == digest(whole)


def test_what_cannot_be_read_says_why() -> None:
    whole = write_png(Path("whole.png"), size=(64, 64)).read_bytes()
    contents = {"cut.png": whole[:200], "empty.png": b"", "text.png": b"hello", "pickle.png": b"\x80\x04K\x01."}
    for name, content in contents.items():
        Path(name).write_bytes(content)
    assert "truncated" in reason(Path("cut.png"))
    assert reason(Path("empty.png")) == "the file is empty"
    assert reason(Path("text.png")) == reason(Path("pickle.png")) == "not an image"
    Path("gone.png").symlink_to("nowhere.png")
    Path("round.png").symlink_to("round.png")
    assert reason(Path("gone.png")) == reason(Path("round.png")) == "the link leads nowhere"
    assert reason(Path("absent.png")) == "No such file or directory"
    assert unreadable(Path("whole.png"), MemoryError()) == "there is not enough memory for it"
    assert unreadable(Path("whole.png"), PermissionError(13, "Permission denied")) == "Permission denied"


def test_pipes_and_devices_are_not_waited_for() -> None:
    os.mkfifo("pipe.png")
    Path("zero.png").symlink_to("/dev/zero")
    assert reason(Path("pipe.png")) == reason(Path("zero.png")) == "it is not a file"


@pytest.mark.parametrize(
    "name", ["ü語🦊.png", "x" * 250 + ".png", "a b\nc.png", "<b>&amp;.png", "[bold].png", "-rf.png"]
)
def test_odd_names_are_names(name: str) -> None:
    path = write_png(Path("folder") / name)
    assert list(image_files(Path("folder"))) == [path]
    assert read_image(path, (8, 8), gray=True)[0].shape == (8, 8, 1)


def test_equal_pictures_have_equal_digests_whatever_their_files_are_like() -> None:
    pixels = random_images(2, 6, 4)
    for name in ("a.png", "a.bmp", "a.tif"):
        Image.fromarray(pixels[0]).save(name)
    Image.fromarray(pixels[0]).convert("RGBA").save("colour.png")
    Image.fromarray(pixels[1]).save("b.png")
    Image.fromarray(pixels[0].reshape(4, 6)).save("c.png")
    found = {name: digest(read_picture(Path(name))[0]) for name in map(str, Path().glob("*.*"))}
    assert found["a.png"] == found["a.bmp"] == found["a.tif"] == found["colour.png"]
    assert len({found["a.png"], found["b.png"], found["c.png"]}) == 3


def test_files_are_found_in_order_without_loops_or_hidden_folders() -> None:
    for name in ("b/2.png", "b/10.png", "a/1.png", ".hidden/0.png", "z.png", "b/.dot.png"):
        write_png(Path("root") / name)
    (Path("root") / "b" / "text.txt").touch()
    (Path("root") / "a" / "up").symlink_to(Path("root").resolve())
    (Path("root") / "a" / "up.png").symlink_to(Path("root").resolve())
    (Path("root") / "a" / "round.png").symlink_to("round.png")
    assert [path.as_posix() for path in image_files(Path("root"))] == [
        "root/z.png",
        "root/a/1.png",
        "root/a/round.png",
        "root/b/10.png",
        "root/b/2.png",
    ]


def test_folders_may_be_nested_deeper_than_python_recurses() -> None:
    path = write_png(Path("root", *["d"] * 200, "1.png"))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 50)
    try:
        assert list(image_files(Path("root"))) == [path]
    finally:
        sys.setrecursionlimit(before)


def test_a_folder_that_may_not_be_opened_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write_png(Path("root/a/1.png"))
    write_png(Path("root/b/2.png"))
    scan = os.scandir

    def refuse(path: Path):
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert [path.as_posix() for path in image_files(Path("root"))] == ["root/a", "root/b/2.png"]
    assert reason(Path("root/a")) == "the folder cannot be opened"


def test_images_are_known_by_their_endings() -> None:
    assert is_image("a.PNG")
    assert is_image("a.b.jpeg")
    assert not is_image(".a.png")
    assert not is_image("png")


def test_what_is_no_image_in_a_folder_is_counted_where_asked_for() -> None:
    Path("a/deep").mkdir(parents=True)
    for name in ("1.png", "2.SVG", "deep/3.svg", "deep/4", ".hidden", "deep/.DS_Store"):
        Path("a", name).touch()
    Path("a/link").symlink_to("deep")
    Path("a/link.png").symlink_to("deep")
    skipped: Counter[str] = Counter()
    assert list(image_files(Path("a"), skipped)) == [Path("a/1.png")] == list(image_files(Path("a")))
    assert skipped == {".svg": 2, "": 1, LINKED_FOLDER: 2}


def test_a_picture_is_averaged_where_it_gets_smaller_and_interpolated_where_it_is_enlarged() -> None:
    pixels = random_images(1, 6, 8)[0]
    smaller = np.asarray(resized_picture(Image.fromarray(pixels), (3, 2)))
    np.testing.assert_allclose(smaller, pixels.reshape(3, 2, 2, 4).mean((1, 3)), atol=1)
    ramp = np.repeat(np.arange(0, 160, 20, dtype=np.uint8)[None], 6, axis=0)
    for size in ((6, 16), (3, 16), (12, 16)):  # also where the other side stays, or gets smaller
        larger = np.asarray(resized_picture(Image.fromarray(ramp), size))
        assert larger.shape == size
        np.testing.assert_array_equal(larger[:, 1:-1], np.broadcast_to(np.arange(5, 145, 10), (size[0], 14)))
    assert resized_picture(same := Image.fromarray(ramp), (6, 8)) is same
