import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.errors import DataError, UsageError
from ebpl.io import rows_into
from ebpl.labeling.label_studio import NAME
from tests.labeling.test_label_studio import annotated, write


@pytest.fixture
def folder() -> Path:
    for name in ("cat/1", "cat/2", "dog/1", "unlabeled/1", "unlabeled/2"):
        path = Path("photos", f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        color = tuple(np.random.default_rng(abs(hash(name)) % 1000).integers(0, 256, 3).tolist())
        Image.new("RGB", (8, 8), color).save(path)
    return Path("photos")


def labels(data: ebpl.ImageSet) -> dict[str, str]:
    return {
        Path(data.train.name(i)).name + "@" + Path(data.train.name(i)).parent.name: data.classes[n] if n >= 0 else ""
        for i, n in enumerate(data.train.labels)
    }


def test_labels_of_an_export_go_into_a_csv_that_can_be_trained_on(folder: Path) -> None:
    export = write("export.json", [annotated("unlabeled/1.png", "dog"), annotated("cat/2.png", "dog")])
    Path("lists").mkdir()
    added = ebpl.add_labels(folder, export, "lists/new.csv")
    assert (added.new, added.changed) == (1, 1)
    found = labels(ebpl.load("lists/new.csv"))
    assert found == {
        "1.png@cat": "cat",
        "2.png@cat": "dog",
        "1.png@dog": "dog",
        "1.png@unlabeled": "dog",
        "2.png@unlabeled": "",
    }
    again = write("again.csv", "image,label\n../photos/unlabeled/2.png,cat\n")
    ebpl.add_labels("lists/new.csv", again, "lists/newer.csv")
    assert labels(ebpl.load("lists/newer.csv"))["2.png@unlabeled"] == "cat"


def test_arrays_keep_their_form() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), np.uint8)
    np.savez("a.npz", train_images=images, train_labels=np.array([[0], [1], [-1], [-1], [1]], np.int8))
    ebpl.add_labels("a.npz", write("e.json", [{NAME: "2", "label": "1"}]), "b.npz")
    data = ebpl.load("b.npz")
    assert data.train.labels.tolist() == [0, 1, 1, -1, 1]
    assert np.array_equal(data.train.pixels[..., 0], images)


def test_what_does_not_fit_is_said_and_nothing_is_written(folder: Path) -> None:
    def export(image: str, label: str) -> Path:
        return write("export.json", json.dumps([annotated(image, label)]))

    with pytest.raises(DataError, match=r"no training images of photos:\n  nowhere\.png$"):
        ebpl.add_labels(folder, export("nowhere.png", "cat"), "new.csv")
    with pytest.raises(DataError, match=r"(?s)no class of photos.*did you mean cat\?"):
        ebpl.add_labels(folder, export("unlabeled/1.png", "catt"), "new.csv")
    with pytest.raises(UsageError, match=r"becomes a \.csv"):
        ebpl.add_labels(folder, export("unlabeled/1.png", "cat"), "new.npz")
    with pytest.raises(UsageError, match="benchmark"):
        ebpl.add_labels("digits", export("1", "cat"), "new.csv")
    assert not Path("new.csv").exists()
    Path("new.csv").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        ebpl.add_labels(folder, export("unlabeled/1.png", "cat"), "new.csv")
    assert Path("new.csv").read_text() == "mine"


def test_new_classes_are_allowed_when_asked_for(folder: Path) -> None:
    export = write("export.json", [annotated("unlabeled/1.png", "bird")])
    ebpl.add_labels(folder, export, "new.csv", new_classes=True)
    assert ebpl.load("new.csv").classes == ("bird", "cat", "dog")


def test_labels_for_the_folder_fit_the_csv_that_came_of_it_and_the_reverse(folder: Path) -> None:
    Path("lists").mkdir()
    ebpl.add_labels(folder, write("next.csv", "image,label\nunlabeled/1.png,dog\n"), "lists/second.csv")
    tasks = write("export.json", [annotated("unlabeled/2.png", "cat")])
    assert ebpl.add_labels("lists/second.csv", tasks, "third.csv").new == 1
    assert labels(ebpl.load("third.csv"))["2.png@unlabeled"] == "cat"
    for name in ("photos/unlabeled/2.png", "../photos/unlabeled/2.png", str(Path("photos/unlabeled/2.png").resolve())):
        Path("back.csv").unlink(missing_ok=True)
        assert ebpl.add_labels(folder, write("back", f"image,label\n{name},dog\n"), "back.csv").new == 1
    assert labels(ebpl.load("back.csv"))["2.png@unlabeled"] == "dog"


def test_paths_of_windows_fit(folder: Path) -> None:
    text = "image,label\nunlabeled\\1.png,dog\nC:\\photos\\unlabeled\\2.png,cat\n"
    with pytest.raises(DataError, match=r"no training images of photos:\n  C:.photos"):  # of another computer
        ebpl.add_labels(folder, write("a", text), "new.csv")
    text = text.replace("C:\\", "..\\")
    assert ebpl.add_labels(folder, write("a", text), "new.csv").new == 2
    found = labels(ebpl.load("new.csv"))
    assert (found["1.png@unlabeled"], found["2.png@unlabeled"]) == ("dog", "cat")


def test_a_backslash_may_be_part_of_a_name(folder: Path) -> None:
    Image.new("RGB", (8, 8)).save(folder / "unlabeled" / "a\\1.png")
    ebpl.add_labels(folder, write("a", "image,label\nunlabeled/a\\1.png,dog\n"), "new.csv")
    assert labels(ebpl.load("new.csv"))["a\\1.png@unlabeled"] == "dog"


def test_all_unknown_labels_are_named_with_the_nearest_class(folder: Path) -> None:
    text = "image,label\nunlabeled/1.png,Catt\nunlabeled/2.png,zebra\ncat/1.png,Catt\ndog/1.png,dog\n"
    with pytest.raises(DataError) as raised:
        ebpl.add_labels(folder, write("a", text), "new.csv")
    assert str(raised.value).splitlines() == [
        "a has labels that are no class of photos:",
        "  'Catt' for unlabeled/1.png and 1 other image; did you mean cat?",
        "  'zebra' for unlabeled/2.png",
        "Its classes: cat, dog. (--new-classes allows others for a folder or CSV.)",
    ]
    assert not Path("new.csv").exists()


@pytest.mark.parametrize("name", ["test/cat/9.png", "photos/test/cat/9.png", "test\\cat\\9.png"])
def test_a_test_image_is_called_one(folder: Path, name: str) -> None:
    for label in ("cat", "dog"):
        path = folder / "test" / label / "9.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(path)
    with pytest.raises(DataError) as raised:
        ebpl.add_labels(folder, write("a", f"image,label\n{name},dog\nnowhere.png,dog\n"), "new.csv")
    assert f"\n  {name} (a test image; only training images get labels)\n  nowhere.png" in str(raised.value)


def test_a_name_that_could_mean_several_images_or_none_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"1\.png \(which of cat/1\.png, dog/1\.png, unlabeled/1\.png\?\)"):
        ebpl.add_labels(folder, write("a", "image,label\n1.png,dog\n"), "new.csv")
    with pytest.raises(DataError, match="no training images of photos"):
        ebpl.add_labels(folder, write("a", "image,label\nelsewhere/unlabeled/1.png,dog\n"), "new.csv")
    two = "image,label\nunlabeled/1.png,dog\nphotos/unlabeled/1.png,cat\n"
    with pytest.raises(DataError, match="two labels"):
        ebpl.add_labels(folder, write("a", two), "new.csv")
    with pytest.raises(DataError) as raised:
        ebpl.add_labels(folder, write("a", f"image,label\n{'x' * 200_000},dog\n"), "new.csv")
    assert len(str(raised.value)) < 500


def test_what_stands_for_no_label_is_none(folder: Path) -> None:
    text = "image,label\nunlabeled/1.png,NaN\nunlabeled/2.png,{}\n"
    assert ebpl.add_labels(folder, write("a", text.format("cat")), "new.csv").new == 1
    with pytest.raises(DataError, match="no label was filled in"):
        ebpl.add_labels(folder, write("a", text.format("None")), "newer.csv")
    folder.joinpath("dog").rename(folder / "none")
    with pytest.raises(DataError, match="named none, which means unlabelled"):
        ebpl.add_labels(folder, write("a", text.format("none")), "newer.csv")


def test_names_that_a_spreadsheet_would_compute_come_back(folder: Path) -> None:
    odd = ["=1+1.png", "-x.png", "a\rb.png", "@\x1b.png"]
    for name in odd:
        Image.new("RGB", (8, 8)).save(folder / "unlabeled" / name)
        Image.new("RGB", (8, 8)).save(folder / name)
    (folder / "dog").rename(folder / "=dog")
    with rows_into("sheet.csv") as row:
        for name in odd:
            row({"image": f"unlabeled/{name}", "label": "=dog"})
    assert ebpl.add_labels(folder, "sheet.csv", folder / "new.csv").new == 4
    data = ebpl.load(folder / "new.csv")
    assert data.classes == ("=dog", "cat")
    assert sum(data.train.labels == 0) == 5
    ebpl.add_labels(folder / "new.csv", "sheet.csv", folder / "newer.csv")
    Path("flat").mkdir()
    for name in odd:
        (folder / name).rename(f"flat/{name}")
    Path("flat/list.csv").write_text("image,label\n" + "".join(f'"./{name}",\n' for name in odd), newline="")
    ebpl.add_labels("flat/list.csv", write("a", "image,label\n'-x.png,cat\n"), "flat/new.csv", new_classes=True)
    assert "./-x.png,cat" in Path("flat/new.csv").read_text()
    assert ebpl.load("flat/new.csv", training=False).train.labels.tolist() == [-1, 0, -1, -1]


def test_images_that_cannot_be_read_are_an_error_or_left_out(folder: Path) -> None:
    (folder / "unlabeled/empty.png").touch()
    (folder / "cat/damaged.png").write_bytes(b"no image")
    export = write("export.json", [annotated("unlabeled/1.png", "dog")])
    with pytest.raises(DataError, match=r"(?s)empty\.png.*--skip-unreadable"):
        ebpl.add_labels(folder, export, "new.csv")
    added = ebpl.add_labels(folder, export, "new.csv", skip_unreadable=True)
    assert added.new == 1
    assert any("2 images that cannot be read are left out" in note for note in added.notes)
    found = labels(ebpl.load("new.csv"))  # so the list can be trained on as it is
    assert len(found) == 5
    assert found["1.png@unlabeled"] == "dog"
