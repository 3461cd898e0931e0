import base64
import io
import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ebpl.errors import DataError
from ebpl.labeling import Suggestion
from ebpl.labeling.label_studio import NAME, config, picture, read_labels, tasks

CAT = Suggestion("a b/ü.png", 3, "cat", 0.7, "dog", 0.2, 1.5)


def test_a_task_holds_the_image_and_the_models_answer() -> None:
    (task,) = tasks([CAT], ["data:x"], "ebpl run")
    assert task["data"] == {"image": "data:x", NAME: "a b/ü.png"}
    (answer,) = task["predictions"]
    assert (answer["score"], answer["result"][0]["value"]) == (0.7, {"choices": ["cat"]})
    assert "predictions" not in tasks([CAT], ["data:x"], "ebpl run", pre_annotate=False)[0]


def test_the_config_names_every_class_whatever_its_name() -> None:
    names = ['"quoted"', "<b>", "a & b", "plain"]
    root = ElementTree.fromstring(config(names))
    assert [choice.get("value") for choice in root.iter("Choice")] == names
    assert root.find("Choices").get("toName") == root.find("Image").get("name")


def decoded(uri: str) -> Image.Image:
    kind, content = uri.split(";base64,")
    assert kind.startswith("data:image/")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_small_arrays_are_enlarged_without_blur() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 3), np.uint8)
    shown = np.asarray(decoded(picture(pixels)))
    assert shown.shape == (224, 224, 3)
    assert np.array_equal(shown[::8, ::8], pixels)
    assert decoded(picture(pixels[..., :1])).mode == "L"


def test_files_are_shown_as_they_are_unless_a_browser_could_not() -> None:
    Image.new("RGB", (50, 40), "red").save("a.png")
    assert picture(np.zeros((8, 8, 3), np.uint8), Path("a.png")).endswith(
        base64.b64encode(Path("a.png").read_bytes()).decode()
    )
    Image.new("CMYK", (50, 40)).save("b.tiff")
    assert decoded(picture(np.zeros((8, 8, 3), np.uint8), Path("b.tiff"))).size == (50, 40)
    Image.new("RGB", (4000, 100)).save("c.png")
    assert decoded(picture(np.zeros((8, 8, 3), np.uint8), Path("c.png"))).size == (1600, 40)


def annotated(image: str, *labels: str, cancelled: bool = False) -> dict[str, object]:
    return {
        "data": {"image": "data:x", NAME: image},
        "annotations": [
            {"was_cancelled": cancelled, "result": [{"type": "choices", "value": {"choices": [label]}}]}
            for label in labels
        ],
    }


def write(name: str, content: object) -> Path:
    Path(name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return Path(name)


@pytest.mark.parametrize(
    "export",
    [
        [annotated("x.png", "cat"), annotated("y.png", "dog", "dog"), annotated("z.png", "cat", cancelled=True)],
        [{"image": "u", NAME: "x.png", "label": "cat"}, {NAME: "y.png", "label": "dog"}, {NAME: "z.png"}],
        f"image,{NAME},label,annotator\nu,x.png,cat,1\nu,y.png,dog,1\nu,z.png,,1\n",
        "\ufeffimage,label\nx.png,cat\ny.png,dog\nz.png,\n",
        "Image;LABEL\r\nx.png;cat\r\ny.png;dog\r\nz.png;\r\n",
        "image\tlabel\tnote\nx.png\tcat\ny.png\tdog\ta, b\nz.png\t\t\n",
        "sep=;\nlabel;image\ncat;x.png\ndog;y.png;\n;z.png\n",
        f"image,{NAME},label\n{'u' * 200_000},x.png,cat\nu,y.png,dog\n",
    ],
)
def test_every_export_gives_the_same_labels(export: object) -> None:
    assert read_labels(write("export", export)) == {"x.png": "cat", "y.png": "dog"}


@pytest.mark.parametrize(
    ("export", "reason"),
    [
        ([annotated("x.png", "cat", "dog")], "two labels: cat and dog"),
        ([], "holds no label"),
        ([{"annotations": [], "data": {}}], "not an export"),
        ("[broken", "not an export"),
        ('{"a": 1}', "not an export"),
        ("name,class\nx,y\n", "no column image and label"),
        ("", "no column"),
        ("[" * 100_000, "not an export"),
        ("label,image\ncat\n", "line 2 has no image"),
        ("image,label\nx.png\n", "line 2 has no label"),
        ("image,label\nx.png,cat,dog\n", "line 2 has 3 cells"),
        ("image,label\nx.png,\ny.png, \n", "no label was filled in"),
        ('[{"ebpl_image": "x.png", "label": "\\ud800"}]', "half a character"),
        ('[{"ebpl_image": "\\ud800", "label": "cat"}]', "half a character"),
        ("image,label,confidence,energy\nx.png,cat,0.9,1\n", "a model's predictions"),
        ("rank,image,label,confidence,second_label\n1,x.png,cat,0.9,dog\n", "a model's predictions"),
    ],
)
def test_what_cannot_be_read_is_said(export: object, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_labels(write("export", export))
    os.mkfifo("pipe")
    for name in ("nowhere.json", "pipe"):
        with pytest.raises(DataError, match="cannot be read"):
            read_labels(Path(name))


def test_the_sheet_of_suggest_holds_labels_though_it_has_the_columns_of_predictions_too() -> None:
    head = "rank,image,label,guess,confidence,second_guess,second_confidence,energy,uncertainty"
    rows = ["1,x.png,cat,dog,0.6,cat,0.4,1,0.9", "2,y.png,,dog,0.6,cat,0.4,1,0.9"]
    assert read_labels(write("next.csv", "\n".join([head, *rows]))) == {"x.png": "cat"}
