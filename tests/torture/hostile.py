"""Hostile input: files, labels and options that nobody sane would give; the answer must be short, clear and quick."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.helpers import QUICK, class_folders, write_png
from tests.torture.report import Findings, command

LONGEST = 20.0
"""Seconds that an answer may take."""
LARGEST_ERROR = 5000
"""Characters of a message."""
MEMORY = 2 * 2**30
"""Bytes that an answer may cost."""


def _npz(path: Path, **arrays: object) -> Path:
    np.savez_compressed(path, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    return path


def _inputs(folder: Path, chance: random.Random) -> Iterator[tuple[str, list[object]]]:
    """Kinds of attack, and the words of a command."""
    data, images = class_folders(folder / "data"), np.zeros((6, 8, 8), np.uint8)
    train = ["train", "--run", folder / "never"]
    for label in (10**9, 10**7, -5, 2**62):
        yield (
            "npz with an odd label",
            [*train, _npz(folder / f"label{label}.npz", train_images=images, train_labels=[0, 1, 0, 1, 0, label])],
        )
    yield "npz without images", [*train, _npz(folder / "empty.npz", train_images=images[:0], train_labels=[])]
    yield "npz of texts", [*train, _npz(folder / "texts.npz", train_images=images, train_labels=list("ababab"))]
    yield (
        "npz of NaN",
        [*train, _npz(folder / "nan.npz", train_images=np.full((6, 8, 8), np.nan), train_labels=[0, 1] * 3)],
    )
    bomb = folder / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (2**33,)})
        with packed.open("train_images.npy", "w", force_zip64=True) as file:
            file.write(head.getvalue())
            for _ in range(64):
                file.write(bytes(2**20))
    yield "npz bomb", [*train, bomb]
    for name, content in _csvs(chance):
        path = folder / f"{name.replace(' ', '-')}.csv"
        path.write_bytes(content)
        yield "CSV", [*train, path]
        yield "labels from a CSV", ["add-labels", data, path, "--output", folder / "labels-out.csv"]
    for name, text in _jsons():
        path = folder / f"{name.replace(' ', '-')}.json"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        yield "labels from JSON", ["add-labels", data, path, "--output", folder / "labels-out.csv"]
    for name, content in _pictures():
        part = class_folders(folder / name.replace(" ", "-"))
        (part / "cats" / "odd.png").write_bytes(content)
        yield "image file", [*train, part]
        yield "image file, inspected", ["inspect", part, "--no-timing"]
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.npz")
    for path in ("pipe", "pipe.npz", "/dev/zero", "/dev/full", "nowhere", "\udcff", "a" * 300, "../" * 50):
        yield "data path", [*train, folder / path if path.startswith("pipe") else path]
    for words in _options():
        yield "option", ["train", "digits", "--run", folder / "never", *QUICK, *words]
    for target in ("/dev/null", "/dev/full", str(folder), str(folder / "data" / "cats" / "0.png")):
        yield "output", ["predict", folder / "good", data, "--output", target]
        yield "output", ["evaluate", folder / "good", data, "--json", target]


def _csvs(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "only a head", b"image,label\n"
    yield "binary", chance.randbytes(2000)
    yield "long field", b"image,label\n" + b"x" * 200_000 + b",cat\n"
    yield "too few cells", b"image,label\ncats/0.png\n"
    yield "quotes", b'image,label\n"cats/0.png,cat\n'
    yield "absolute", b"image,label\n/etc/passwd,cat\n/etc/shadow,dog\n"
    yield "nul", b"image,label\n\0,\0\n"
    yield "no such class", b"image,label\ncats/0.png,unicorn\n"
    yield "formula", b"image,label\n=cmd(),cat\n"
    yield "utf 16", "image,label\ncats/0.png,cats\n".encode("utf-16")


def _jsons() -> Iterator[tuple[str, str]]:
    yield "nested", "[" * 100_000
    yield "nested object", '{"a":' * 50_000
    yield "lone surrogate", '[{"ebpl_image": "\\ud800", "label": "cats"}]'
    yield "a number", "7"
    yield "an empty list", "[]"
    yield "null", "null"
    yield "wrong types", json.dumps([{"ebpl_image": ["x"], "label": {"a": 1}}])
    yield "annotations of nothing", json.dumps([{"annotations": None, "data": {}}])
    yield "a huge number", json.dumps([{"ebpl_image": 10**300, "label": 10**300}])


def _pictures() -> Iterator[tuple[str, bytes]]:
    yield "postscript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"
    yield "truncated", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    yield "a text", b"this is no image"
    yield "nothing", b""
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (2**31 - 1).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0\0\0\0\0"
    yield "huge", header
    yield "svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


def _options() -> Iterator[list[str]]:
    for value in ("nan", "banana", "-5m", "inf", "1e400", "", "5x"):
        yield ["--time-limit", value]
    for name in ("optim.updates_per_epoch", "curriculum.steps", "optim.epochs", "sgld.buffer_size", "model.depth"):
        for value in (str(10**15), "-1", "nan", "1e400", "x", "0.5"):
            yield ["--set", f"{name}={value}"]
    for word in ("--set", "--set=", "--set=a", "--set=a.b=c", "--config=/dev/zero", "--config=nowhere", "--seeds=9-1"):
        yield [word]
    for value in ("1" * 400, "0-999999999", "a", "-1", "1,,2", "1,1"):
        yield [f"--seeds={value}"]
    for value in ("0", "-3", "x"):
        yield ["--image-size", value]
    for name in ("width", "epochs", "batch-size", "labels-per-class"):
        for value in ("-1", "1e9", "nan", "x"):
            yield [f"--{name}", value]
    for name in ("method", "preset", "pseudo-labels", "augment", "device"):
        for value in ("", "\x1b[2J", "../../etc/passwd", "a" * 10_000):
            yield [f"--{name}", value]


def hostile(count: int, folder: Path, seed: int = 0) -> Findings:
    """Give each hostile input, as many of them as are wanted."""
    import ebpl
    from tests.helpers import quick

    found, chance = Findings("hostile input"), random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    ebpl.train(class_folders(folder / "for-good"), quick(), run=folder / "good")
    write_png(folder / "one.png")
    for kind, words in list(_inputs(folder, chance))[:count]:
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        outcome = command(words)
        seconds, grown = (
            time.monotonic() - started,
            1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
        )
        problem = None
        if outcome.trace:
            problem = f"traceback: {outcome.trace.strip().splitlines()[-1]}"
        elif outcome.code == 0 and kind not in ("image file, inspected", "output", "CSV", "labels from a CSV"):
            problem = "taken without a word"
        elif len(outcome.err) > LARGEST_ERROR:
            problem = f"a message of {len(outcome.err)} characters"
        elif seconds > LONGEST:
            problem = f"took {seconds:.0f} s"
        elif grown > MEMORY:
            problem = f"took {grown / 2**30:.1f} GiB"
        elif "\x1b" in outcome.err:
            problem = "a terminal escape in the message"
        shown = " ".join(ascii(str(word))[:60] for word in (*words[:2], *words[-2:]))
        found.add(kind, f"{problem}: {shown}" if problem else None)
    return found
