"""Damaged files in a run directory: every verb must refuse them or do as if nothing were wrong because nothing is."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import ebpl
from tests.helpers import class_folders, quick
from tests.torture.report import Findings, Outcome, command


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(content))


def _cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(max(1, path.stat().st_size))])


def _noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.choice([0, 1, 64, 4096])))


def _folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _gone(path: Path, chance: random.Random) -> None:
    path.unlink()


def _number(path: Path, chance: random.Random) -> None:
    """Another number in a text file, as a careless editor leaves it."""
    text = path.read_bytes().decode("utf-8", "replace")
    places = [i for i, character in enumerate(text) if character.isdigit()]
    if places:
        at = chance.choice(places)
        other = chance.choice(["-1", "1e400", "99999999999", "null", "", "x"])
        path.write_text(text[:at] + other + text[at + 1 :], encoding="utf-8", newline="")


KINDS: dict[str, Callable[[Path, random.Random], None]] = {
    "a bit flipped": _flip,
    "cut off": _cut,
    "noise": _noise,
    "a folder": _folder,
    "gone": _gone,
    "another number": _number,
}


def _verbs(run: Path, folder: Path, number: int) -> dict[str, list[object]]:
    return {
        "evaluate": ["evaluate", run, "--json", "-"],
        "predict": ["predict", run, folder / "data" / "unlabeled"],
        "suggest": ["suggest", run, "--n", "3"],
        "report": ["report", run, "--output", folder / f"page-{number}.html"],
        "resume": ["resume", run],
    }


def damage(count: int, folder: Path, seed: int = 0) -> Findings:
    """Damage one file at a time, and run a verb on it."""
    found, chance = Findings("damaged files"), random.Random(seed)
    data = class_folders(folder / "data")
    for part in ("cats", "dogs"):
        for image in (data / part).glob("*.png"):
            target = data / "test" / part / f"test-{image.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(image, target)
    train = data / "train"
    for part in ("cats", "dogs"):
        shutil.move(data / part, train / part)
    good = ebpl.train(data, quick(), run=folder / "good").path
    verbs = list(_verbs(good, folder, 0))
    expected = {verb: command(_verbs(good, folder, 0)[verb]) for verb in verbs}
    assert all(outcome.code == 0 for outcome in expected.values()), expected
    files = [path.relative_to(good) for path in sorted(good.rglob("*")) if path.is_file() and path.name != ".lock"]
    for number in range(1, count + 1):
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(good, run)
        file, kind, verb = chance.choice(files), chance.choice(list(KINDS)), chance.choice(verbs)
        KINDS[kind](run / file, chance)
        outcome = command(_verbs(run, folder, number)[verb])
        problem = _problem(verb, outcome, expected[verb], run)
        found.add(f"{verb}, {kind}", f"{file} {problem}" if problem else None)
        (folder / f"page-{number}.html").unlink(missing_ok=True)
    return found


def _problem(verb: str, outcome: Outcome, expected: Outcome, run: Path) -> str | None:
    """What is wrong with how a verb took damage: a traceback, or another answer without a word."""
    if outcome.trace:
        return f"traceback: {outcome.trace.strip().splitlines()[-1]}"
    if outcome.code != 0:
        return None if outcome.err.strip() else "refused without a word"
    if verb in ("evaluate", "predict", "suggest") and _answer(verb, outcome) != _answer(verb, expected):
        said = set(outcome.err.split("\n")) - set(expected.err.split("\n"))
        return (
            None
            if any("damaged" in line or "not finished" in line for line in said)
            else "another answer without a word"
        )
    return None


def _answer(verb: str, outcome: Outcome) -> object:
    if verb != "evaluate":
        return outcome.out
    answer = json.loads(outcome.out)
    return {name: answer[name] for name in ("metrics", "reliability")}
