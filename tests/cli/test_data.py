"""The whole round, as it is typed: train, suggest, label, add the labels, train again."""

import csv
import json
from pathlib import Path

from PIL import Image

import ebpl
from ebpl.cli import main
from ebpl.labeling.label_studio import NAME
from tests.helpers import blobs

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
        "--blind",
        "--output",
        "n.csv",
    ]
    assert main(words) == 0
    for task in json.loads(Path("t.json").read_text()):
        assert task["data"]["image"] == "http://x/" + task["data"][NAME]
        assert "predictions" not in task
