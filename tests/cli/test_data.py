"""The whole round, as it is typed: train, suggest, label, add the labels, train again."""

import csv
import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.cli import build_parser, main
from ebpl.cli.data import MOST_CLASSES, SHOWN, show_inspection
from ebpl.errors import DataError, UsageError
from ebpl.inspection import FEW_LABELS, Inspection, inspect
from ebpl.labeling.label_studio import NAME
from ebpl.training.time_budget import Timing
from tests.helpers import QUICK, blobs, class_folders, random_images, write_png
from tests.test_inspection import good_folder
from tests.test_recommendation import striped_folder, use_small_encoder

SETTINGS = [
    "--preset",
    "quick",
    "--epochs",
    "1",
    "--pseudo-labels",
    "none",
    "--method",
    "curriculum-labeling",
    "--device",
    "cpu",
]


def photos() -> dict[str, str]:
    """A folder of images with few labels, and the truth about the others."""
    data = blobs(unlabeled=False)
    truth = {}
    for i, (pixels, label) in enumerate(zip(data.train.pixels, data.train.labels, strict=True)):
        place = f"class {label}" if i < 30 else "unlabeled"
        path = Path("photos", place, f"{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path)
        truth[f"{place}/{i}.png"] = f"class {label}"
    return truth


def test_suggestions_go_to_label_studio_and_come_back_as_labels(capsys) -> None:
    truth = photos()
    assert main(["train", "photos", "--run", "run", *SETTINGS]) == 0
    assert main(["suggest", "run", "--n", "9", "--output", "next.csv", "--label-studio", "tasks.json"]) == 0
    with open("next.csv", newline="") as file:
        suggested = list(csv.DictReader(file))
    assert [row["rank"] for row in suggested] == [str(i) for i in range(1, 10)]
    tasks = json.loads(Path("tasks.json").read_text())
    assert [task["data"][NAME] for task in tasks] == [row["image"] for row in suggested]
    assert "class 1" in Path("tasks.xml").read_text()
    for task in tasks:  # what Label Studio exports when a person has answered
        choice = {"type": "choices", "value": {"choices": [truth[task["data"][NAME]]]}}
        task["annotations"] = [{"was_cancelled": False, "result": [choice]}]
    Path("export.json").write_text(json.dumps(tasks))
    capsys.readouterr()
    assert main(["add-labels", "photos", "export.json", "--output", "more.csv"]) == 0
    assert "9 images have a label now" in capsys.readouterr().out
    more = ebpl.load("more.csv")
    assert more.train.labeled.sum() == 39
    assert all(more.classes[n] == truth[more.train.name(i).removeprefix("photos/")]
               for i, n in enumerate(more.train.labels) if n >= 0)  # fmt: skip
    assert main(["train", "more.csv", "--run", "again", *SETTINGS]) == 0


def test_tasks_may_name_images_by_address_and_leave_the_answer_out() -> None:
    photos()
    assert main(["train", "photos", "--run", "run", *SETTINGS]) == 0
    words = [
        "suggest",
        "run",
        "--n",
        "2",
        "--label-studio",
        "t.json",
        "--image-url",
        "http://x/",
        "--no-predictions",
        "--output",
        "n.csv",
    ]
    assert main(words) == 0
    for task in json.loads(Path("t.json").read_text()):
        assert task["data"]["image"] == "http://x/" + task["data"][NAME]
        assert "predictions" not in task


def test_a_sheet_that_nobody_filled_in_adds_no_label(capsys) -> None:
    truth = photos()
    assert main(["train", "photos", "--run", "run", *SETTINGS]) == 0
    capsys.readouterr()
    assert main(["suggest", "run", "--n", "4", "--output", "next.csv"]) == 0
    out = capsys.readouterr().out
    command = "ebpl add-labels photos next.csv --output labelled.csv"
    assert "fill in its column label" in out
    assert command in out
    with open("next.csv", newline="") as file:
        sheet = list(csv.DictReader(file))
    assert all(row["label"] == "" and row["guess"].startswith("class") for row in sheet)
    assert main(shlex.split(command)[1:]) == DataError.exit_code
    assert "no label was filled in" in capsys.readouterr().err
    assert not Path("labelled.csv").exists()
    rows = [f"{row['image']};{truth[row['image']] if i else ''};{row['guess']}" for i, row in enumerate(sheet)]
    Path("next.csv").write_text("\n".join(["image;label;guess", *rows]))
    assert main(shlex.split(command)[1:]) == 0
    assert "3 images have a label now" in capsys.readouterr().out
    assert main(["suggest", "run", "--n", "4", "--output", "next.csv", "--force"]) == 0
    assert "--output labelled-2.csv" in capsys.readouterr().out  # what it says can be typed


def test_a_folder_with_damaged_files_goes_the_whole_round(capsys: pytest.CaptureFixture[str]) -> None:
    class_folders(Path("pets"))
    Path("pets/unlabeled/empty.png").touch()
    assert main(["train", "pets", *QUICK, "--pseudo-labels", "none", "--run", "run", "--skip-unreadable"]) == 0
    assert main(["suggest", "run", "--n", "2", "--output", "next.csv", "--with-outliers"]) == 0
    (command,) = re.findall("  ebpl (add-labels .*)", capsys.readouterr().out)
    assert command.endswith(" --skip-unreadable")
    with Path("next.csv").open(newline="") as file:
        rows = [{**row, "label": "cats"} for row in csv.DictReader(file)]
    with Path("next.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert main(shlex.split(command)) == 0
    said = capsys.readouterr()
    assert "2 images have a label now" in said.out
    assert "1 image that cannot be read is left out" in said.err
    assert int(ebpl.load("labelled.csv").train.labeled.sum()) == 10


def test_suggestions_are_not_written_as_a_spreadsheet(capsys: pytest.CaptureFixture[str]) -> None:
    class_folders(Path("pets"))
    assert main(["train", "pets", *QUICK, "--pseudo-labels", "none", "--run", "run"]) == 0
    assert main(["suggest", "run", "--output", "next.xlsx"]) == UsageError.exit_code
    assert "tables are not written as .xlsx" in capsys.readouterr().err
    assert not Path("next.xlsx").exists()


def test_suggestions_replace_no_file_that_is_there(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    photos()
    assert main(["train", "photos", "--run", "run", *SETTINGS]) == 0
    words = ["suggest", "run", "--n", "2", "--output"]
    assert main([*words, "next.csv"]) == 0
    before = Path("next.csv").read_text()
    with monkeypatch.context() as patch:
        patch.setattr("ebpl.labeling.suggest", lambda *_, **__: pytest.fail("there was work"))
        for target, message in {
            "next.csv": "exists already",
            "photos": "is a folder",
            "run/metrics.csv": "belongs to the run",
            "/dev/null": "is a device",
            "n.csv --label-studio t.xml": "tasks.json",
            "n.csv --label-studio -": "tasks.json",
            "n.csv --label-studio next.csv": "exists already",
            "n.txt --label-studio n.txt": "different files",
        }.items():
            capsys.readouterr()
            assert main([*words, *target.split()]) == UsageError.exit_code
            assert message in capsys.readouterr().err
    assert not Path("t.xml").exists()
    Path("next.csv").write_text("mine")
    assert main([*words, "next.csv", "--force"]) == 0
    assert Path("next.csv").read_text() == before


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """What is printed about data, or about what was found in it, on a terminal of some width."""

    def show(data: object, width: int = 300, title: str = "title") -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        found = data if isinstance(data, Inspection) else inspect(data, timing=False)  # type: ignore[arg-type]
        show_inspection(found, title)
        return capsys.readouterr().out

    return show


def table(printed: str) -> dict[str, list[str]]:
    """The cells of the printed table by the first of their row, its head among them."""
    rows = [re.split(r"[│┃]", line)[1:-1] for line in printed.splitlines() if re.search(r"[│┃].*[│┃]", line)]
    return {first.strip(): [cell.strip() for cell in cells] for first, *cells in rows}


def many_classes(count: int) -> Inspection:
    """As many images of a class as its number says, and one; all different."""
    labels = np.repeat(np.arange(count), np.arange(1, count + 1))
    return inspect(ebpl.from_arrays(random_images(len(labels), 8, 8), labels), timing=False)


def test_a_class_is_a_row_and_a_part_a_column(shown) -> None:
    good_folder(Path("pets/train"))
    for name in ("cats/new", "dogs/new", "dogs/newer"):
        write_png(Path("pets/test") / f"{name}.png", value=len(name))
    printed = shown("pets", title="my pets")
    assert printed.startswith("my pets")
    assert table(printed) == {
        "class": ["train", "test"],
        "cats": ["5", "1"],
        "dogs": ["5", "2"],
        "unlabelled": ["6", "0"],
        "all": ["16", "3"],
    }


def test_labels_that_training_hides_are_told_in_a_column_of_their_own(shown) -> None:
    found = inspect("digits", timing=False)
    rows = table(shown(found))
    assert rows["class"] == ["train", "test", "labels used"]
    assert all(rows[label][2] == str(found.used[label]) for label in found.contents.classes)
    assert {rows[label][2] for label in "0123456789"} == {"5"}


@pytest.mark.parametrize("count", [MOST_CLASSES, MOST_CLASSES + 1, MOST_CLASSES + 20])
def test_the_last_of_many_classes_are_summed_up(shown, count: int) -> None:
    found = many_classes(count)
    rows = table(shown(found))
    classes = {name: int(cells[0]) for name, cells in rows.items() if name.isdigit() or "more" in name}
    assert sum(classes.values()) == int(rows["all"][0]) == count * (count + 1) // 2
    assert len(classes) == MOST_CLASSES
    rest = count - MOST_CLASSES + 1
    assert (f"{rest} more classes" in rows) == (count > MOST_CLASSES)
    used = dataclasses.replace(found, used=dict.fromkeys(found.used, 2))  # as of a benchmark, of which some are hidden
    rows = table(shown(used))
    assert sum(int(cells[1]) for name, cells in rows.items() if name in classes) == 2 * count


def test_a_long_list_of_files_is_cut_with_a_hint_where_all_are(shown) -> None:
    root = good_folder(Path("pets"))
    for i in range(SHOWN):
        (root / "dogs" / f"bad{i:02}.png").touch()
    assert shown("pets").count("the file is empty") == SHOWN
    assert "--json" not in shown("pets")
    for i in range(3):
        (root / "dogs" / f"more{i}.png").touch()
    printed = shown("pets")
    assert f"{SHOWN + 3} images cannot be read" in printed
    assert printed.count("the file is empty") == SHOWN
    assert "... and 3 more (--json lists all)" in printed
    assert "--skip-unreadable" in printed


def test_long_lists_of_sizes_and_of_copies_are_cut(shown) -> None:
    root = good_folder(Path("pets"), labeled=SHOWN + 2)
    for i in range(SHOWN + 2):
        shutil.copy(root / "cats" / f"{i}.png", root / "dogs" / f"copy {i}.png")
    for side in range(9, 9 + SHOWN + 1):
        Image.fromarray(random_images(1, side, side)[0]).save(root / "unlabeled" / f"large {side}.png")
    printed = shown("pets")
    assert printed.count("(train, cats), ") == SHOWN
    assert "... and 2 more (--json lists all)" in printed
    assert "sizes (width x height): 8 x 8 (42), " in printed
    assert " and 2 other sizes" in printed
    assert printed.count(" (1)") == SHOWN - 1


def test_of_an_image_that_is_there_very_often_some_copies_are_named_and_one_of_each_kind(shown) -> None:
    root = good_folder(Path("pets/train"))
    for i in range(30):
        shutil.copy(root / "cats" / "0.png", root / "cats" / f"again {i:02}.png")
    write_png(Path("pets/test/dogs/other.png"), value=9)
    Path("pets/test/cats").mkdir()
    shutil.copy(root / "cats" / "0.png", "pets/test/cats/leaked.png")
    (line,) = [line for line in shown("pets", width=3000).splitlines() if line.startswith("  ") and "leaked" in line]
    assert line.count("(train, cats)") == SHOWN - 1
    assert "test/cats/leaked.png (test, cats)" in line
    assert line.endswith(" and 22 more (--json lists all)")


@pytest.mark.parametrize("name", ["[red]x", "[/]", "<script>alert(1)<", ":cat: 1:2", "\\[bold]", "%s {0}"])
def test_names_that_look_like_markup_are_shown_as_they_are(shown, name: str) -> None:
    safe = name.replace("/", "")  # a file's name has none
    root = good_folder(Path(f"pets {safe}"))
    for i in range(FEW_LABELS):
        write_png(root / safe / f"{i}.png", value=10 * i + 1)
    (root / safe / "bad.png").touch()
    shutil.copy(root / "cats" / "0.png", root / safe / "copy.png")
    found = inspect(root, timing=False)
    noted = dataclasses.replace(found, contents=dataclasses.replace(found.contents, notes=(f"about {name}",)))
    printed = shown(noted, title=name)
    assert printed.startswith(name)
    assert f"\nabout {name}\n" in printed
    assert table(printed)[safe] == [str(FEW_LABELS + 1)]
    assert f"{safe}/copy.png (train, {safe})" in printed
    assert f"{root}/{safe}/bad.png: the file is empty" in printed
    assert f"  ebpl train {shlex.quote(str(root))} --preset " in printed


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x1b]0;title\x07", "\r", "\x08", "\x9b2J", "\x7f"])
def test_control_characters_in_names_are_spelt_out(shown, hostile: str) -> None:
    root = good_folder(Path("pets" + hostile))
    for i in range(FEW_LABELS - 1):
        write_png(root / f"a{hostile}b" / f"{i}.png", value=10 * i + 1)
    (root / "dogs" / f"c{hostile}d.png").touch()
    shutil.copy(root / "cats" / "0.png", root / "dogs" / f"e{hostile}f.png")
    printed = shown(str(root), title=str(root))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", printed)
    spelt = ascii(hostile)[1:-1]
    assert f"a{spelt}b" in table(printed)
    assert f"Few labels: a{spelt}b {FEW_LABELS - 1}" in printed
    assert f"c{spelt}d.png: the file is empty" in printed
    assert f"e{spelt}f.png (train, dogs)" in printed


def test_no_name_makes_a_line_of_its_own(shown) -> None:
    root = good_folder(Path("pets"))
    evil = "evil\nTrain with:\n  rm *"
    for i in range(FEW_LABELS):
        write_png(root / evil / f"{i}.png", value=10 * i + 1)
    (root / "dogs" / f"{evil}.png").touch()
    shutil.copy(root / "cats" / "0.png", root / evil / "copy.png")
    lines = shown("pets", title=evil).splitlines()
    assert lines.count("Train with:") == 1
    assert sum("rm *" in line for line in lines) >= 4
    assert not any(line.strip().startswith("rm *") for line in lines)


def test_the_command_is_shown_on_a_line_that_can_be_copied(shown) -> None:
    root = good_folder(Path("a folder with 'a name' that is longer than the terminal is wide"))
    (root / "dogs" / "bad.png").touch()
    lines = shown(str(root), width=40).splitlines()
    (command,) = [line for line in lines if "ebpl train" in line]
    words = shlex.split(command)
    options = build_parser()[0].parse_args(words[1:])
    assert (words[0], options.command, options.data, options.skip_unreadable) == ("ebpl", "train", str(root), True)
    assert lines[lines.index(command) - 1] == "Train with:"


def test_the_time_it_takes_is_told_where_it_was_measured(shown) -> None:
    found = inspect(good_folder(Path("pets")), timing=False)
    assert found.suggestion is not None
    assert "It will take" not in shown(found)
    timing = Timing(updates=1200, timed=7, update=0.25, seconds=330)
    timed = dataclasses.replace(found.suggestion, device="cuda", timing=timing)
    printed = shown(dataclasses.replace(found, suggestion=timed))
    assert "It will take about 5 min 30 s here (cuda): 1,200 updates of 250 ms, estimated from 7 of them." in printed
    slow = dataclasses.replace(timed, timing=Timing(updates=2268, timed=2, update=2.16, seconds=4900))
    printed = shown(dataclasses.replace(found, suggestion=slow))
    assert "It will take about 1 h 21 min here (cuda): 2,268 updates of 2.2 s, estimated from 2 of them." in printed


def test_what_makes_results_wrong_is_marked_as_serious(shown) -> None:
    root = good_folder(Path("pets"), labeled=FEW_LABELS - 1)
    assert "Note: Few labels: cats 4, dogs 4" in shown("pets")
    assert "Serious: " not in shown("pets")
    shutil.copy(root / "cats" / "0.png", root / "dogs" / "copy.png")
    printed = shown("pets")
    assert "Serious: 1 image appears with different labels" in printed
    assert "  cats/0.png (train, cats), dogs/copy.png (train, dogs)\n" in printed
    assert printed.index("Serious: ") < printed.index("Note: ")


def test_data_that_cannot_be_trained_on_gets_no_command(shown) -> None:
    write_png(Path("one/cats/1.png"))
    printed = shown("one")
    assert "Serious: " in printed
    assert printed.rstrip().endswith("It cannot be trained on as it is.")
    assert "ebpl train" not in printed


def test_facts_are_told_and_where_nothing_can_be_read_there_are_none(shown) -> None:
    root = good_folder(Path("pets"), labeled=10)
    for i in range(5):
        (root / "dogs" / f"{i}.png").unlink()
    printed = shown("pets").splitlines()
    assert "sizes (width x height): 8 x 8 (21)" in printed
    assert "modes: gray 21" in printed
    assert "training takes them as 8 x 8 x 1 (width x height x channels)" in printed
    assert "largest to smallest class: 2 to 1 in labels" in printed
    assert "class mix of the labels: cats 67 %, dogs 33 %" in printed
    assert any(line.startswith("class mix of the unlabelled images: not known; ") for line in printed)
    assert "exact duplicates: 0" in printed
    for path in root.rglob("*.png"):
        path.write_bytes(b"")
    printed = shown("pets").splitlines()
    assert "sizes (width x height): none" in printed
    assert "modes: none" in printed
    assert not any("training takes them" in line or "largest to smallest" in line for line in printed)


def test_the_recommendation_is_printed_with_both_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_encoder(monkeypatch)
    striped_folder()
    assert main(["inspect", "photos"]) == 0
    printed = capsys.readouterr().out
    found = inspect("photos", timing=False).recommendation
    assert found is not None
    assert f"Learn on the features of {found.encoder}. {found.reason}" in printed
    assert "  ebpl train photos --preset features" in printed.splitlines()
    assert printed.splitlines()[-1].startswith("--fine-tune end lets ")
    assert re.search(r"encoding 24 images, unless they were encoded before, and \d+ updates of", printed)
    assert main(["inspect", "photos", "--json", "--no-timing"]) == 0
    told = json.loads(capsys.readouterr().out)["recommendation"]
    assert told["encoder_accuracy"] == found.encoder_accuracy
    assert told["plain_accuracy"] == found.plain_accuracy
    good_folder(Path("pets"))
    assert main(["inspect", "pets", "--no-timing"]) == 0
    assert "Learn from scratch. The images are no larger than 64 x 64 pixels" in capsys.readouterr().out
