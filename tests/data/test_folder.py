import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.data import load
from ebpl.errors import DataError
from ebpl.inspection import inspect
from tests.helpers import class_folders, quick, write_png


def test_class_folders_with_unlabelled_images(tmp_path: Path) -> None:
    data = load(class_folders(tmp_path / "pets"))
    assert data.name == "pets"
    assert data.classes == ("cats", "dogs")
    assert data.shape == (1, 8, 8)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [-1] * 6
    assert data.train.paths is not None
    assert data.train.paths[0] == "cats/0.png"


def test_train_and_test_folders(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets" / "train")
    class_folders(tmp_path / "pets" / "test", labeled=2, unlabeled=0)
    class_folders(tmp_path / "pets" / "val", labeled=1, unlabeled=0)
    data = load(tmp_path / "pets")
    assert data.test is not None
    assert data.validation is not None
    assert (len(data.train), len(data.test), len(data.validation)) == (14, 4, 2)


def test_images_of_different_sizes_and_modes_become_one_array(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    write_png(root / "cats" / "large.jpg", size=(90, 50), mode="RGB")
    write_png(root / "dogs" / "palette.png", size=(17, 31), mode="P")
    write_png(root / "dogs" / "alpha.png", mode="RGBA")
    write_png(root / "dogs" / "cmyk.jpg", mode="CMYK")
    assert load(root).shape == (3, 32, 32)
    assert load(root, image_size=20).shape == (3, 20, 20)


def test_sixteen_bit_images_keep_their_contrast(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    deep = np.linspace(1000, 60_000, 64).reshape(8, 8).astype(np.uint16)
    Image.fromarray(deep).save(root / "cats" / "deep.png")
    data = load(root)
    assert data.train.paths is not None
    pixels = data.train.pixels[data.train.paths.index("cats/deep.png")]
    assert len(np.unique(pixels)) > 50


def test_a_csv_with_labels_paths_and_splits(tmp_path: Path) -> None:
    for i in range(6):
        write_png(tmp_path / "images" / f"{i} ä.png", value=40 * i)
    table = tmp_path / "labels.csv"
    rows = ["a,train", "b,train", ",train", "a,test", "b,val", ",train"]
    table.write_text(
        "\ufeffImage,Label,Split\n" + "\n".join(f'"images/{i} ä.png",{row}' for i, row in enumerate(rows)),
        encoding="utf-8",
    )
    data = load(table)
    assert data.classes == ("a", "b")
    assert data.train.labels.tolist() == [0, 1, -1, -1]
    assert data.test is not None
    assert data.test.labels.tolist() == [0]
    assert data.validation is not None


def test_an_npz_with_medmnists_keys(tmp_path: Path) -> None:
    arrays = {f"{part}_images": np.zeros((6, 28, 28, 3), np.uint8) for part in ("train", "val", "test")}
    arrays |= {f"{part}_labels": np.array([[0], [1], [2]] * 2, np.uint8) for part in ("train", "val", "test")}
    np.savez(tmp_path / "some.npz", **arrays)
    data = load(tmp_path / "some.npz")
    assert data.classes == ("0", "1", "2")
    assert data.test is not None
    assert data.validation is not None
    assert not data.is_benchmark


def test_every_unreadable_image_is_named_at_once(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    whole = write_png(root / "cats" / "truncated.png", size=(64, 64))
    whole.write_bytes(whole.read_bytes()[:200])
    (root / "dogs" / "empty.png").touch()
    (root / "dogs" / "text.jpg").write_text("not an image")
    with pytest.raises(DataError) as raised:
        load(root)
    message = str(raised.value)
    assert "truncated.png" in message
    assert "empty.png: the file is empty" in message
    assert "text.jpg: not an image" in message


def test_many_unreadable_images_are_counted_not_all_listed(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    for i in range(25):
        (root / "dogs" / f"bad{i}.png").touch()
    with pytest.raises(DataError, match="and 15 more"):
        load(root)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image,label\nhere.png,a\nnot-here.png,b\n", "line 3: not-here.png"),
        ("image,label\nhere.png,a\n,b\n", "line 3: \\(empty\\)"),
        ("file,label\nhere.png,a\n", "no column image"),
        ("image,label\nhere.png,a\nhere.png,a\n", "one class"),
        ("image,label\nhere.png,\n", "no image has a label"),
        ("image,label\n", "lists no images"),
        ("image,label,split\nhere.png,a,test\n", "no training images"),
        ("image,label\n" + "x" * 5000 + ".png,a\n", "line 2: xxx"),
        ("image,label,split\nhere.png,a,later\n", "split is 'later'"),
        ("", "no column image and label"),
    ],
)
def test_a_csv_that_makes_no_training_set_is_refused(tmp_path: Path, content: str, message: str) -> None:
    write_png(tmp_path / "here.png")
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "labels.csv")


def test_a_csv_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(b"\xff\xfe\x00\x81" * 20)
    with pytest.raises(DataError, match="not a CSV"):
        load(tmp_path / "labels.csv")


def test_folders_that_make_no_training_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        load(tmp_path / "empty")
    write_png(tmp_path / "single" / "cats" / "1.png")
    with pytest.raises(DataError, match=r"one class \(cats\)"):
        load(tmp_path / "single")


def test_links_that_go_in_circles_do_no_harm(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    (root / "cats" / "again").symlink_to(root, target_is_directory=True)
    assert len(load(root).train) == 14


def test_an_npz_is_never_unpickled(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harmed",))

    np.savez(tmp_path / "evil.npz", train_images=np.array([Harm()], dtype=object), train_labels=np.zeros(1))
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        load(tmp_path / "evil.npz")
    assert not (tmp_path / "harmed").exists()
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        load(tmp_path / "text.npz")
    np.savez(tmp_path / "keys.npz", images=np.zeros(3))
    with pytest.raises(DataError, match="It holds: images"):
        load(tmp_path / "keys.npz")


def test_unlabelled_images_beside_train_and_test_are_used(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets" / "Train", unlabeled=0)
    class_folders(tmp_path / "pets" / "TEST", unlabeled=0)
    for i in range(5):
        write_png(tmp_path / "pets" / "Unlabelled" / f"{i}.png", value=i)
    data = load(tmp_path / "pets")
    assert data.classes == ("cats", "dogs")
    assert data.test is not None
    assert (len(data.train), (~data.train.labeled).sum(), len(data.test)) == (13, 5, 8)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for label in ("plane", "train"):
        write_png(tmp_path / "vehicles" / label / "1.png")
    assert load(tmp_path / "vehicles").classes == ("plane", "train")


def test_folders_that_would_be_left_out_are_an_error(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets" / "train").parent
    class_folders(root / "more")
    with pytest.raises(DataError, match="more beside it is no class"):
        load(root)
    folder = class_folders(tmp_path / "other")
    (folder / "horses").mkdir()
    (folder / "horses" / "1.heic").touch()
    with pytest.raises(DataError, match="horses holds no image that can be read"):
        load(folder)


def test_names_that_are_not_text_and_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    (root / "cats" / "0.png").rename(os.fsdecode(bytes(root) + b"/cats/caf\xe9.png"))
    (root / "dogs" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError) as raised:
        load(root)
    assert "not valid UTF-8" in str(raised.value)
    assert "gone.png: the link leads nowhere" in str(raised.value)
    str(raised.value).encode()
    with pytest.raises(DataError, match="not valid UTF-8"):
        load(os.fsdecode(b"caf\xe9"))


def test_what_was_done_to_the_images_is_noted(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    assert load(root).notes == ()
    assert load(root, image_size=4).notes == ("images of 8 x 8 pixels (width x height) are resized to 4 x 4",)
    write_png(root / "cats" / "wide.png", size=(20, 10))
    assert load(root).notes == ("images of 2 different sizes are resized to 32 x 32",)


def test_deep_images_of_either_byte_order_are_gray(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    deep = np.linspace(1000, 60_000, 64).reshape(8, 8).astype(">u2")
    Image.frombytes("I;16B", (8, 8), deep.tobytes()).save(root / "cats" / "big.tif")
    data = load(root)
    assert data.shape[0] == 1
    assert data.train.paths is not None
    assert len(np.unique(data.train.pixels[data.train.paths.index("cats/big.tif")])) > 50


def test_arrays_are_resized_too(tmp_path: Path) -> None:
    images = np.full((4, 10, 10, 3), 77, np.uint8)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=[0, 1, 0, 1])
    data = load(tmp_path / "a.npz", image_size=5)
    assert data.shape == (3, 5, 5)
    assert (data.train.pixels == 77).all()
    np.savez(tmp_path / "b.npz", train_images=images[..., :1], train_labels=[0, 1, 0, 1])
    assert load(tmp_path / "b.npz", image_size=5).shape == (1, 5, 5)


def test_runs_kept_beside_the_images_are_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_folders(tmp_path / "pets")
    before = load(root).fingerprint()
    run = root / "runs" / "first"
    run.mkdir(parents=True)
    (run / "settings.toml").touch()
    write_png(run / "reliability.png")
    monkeypatch.chdir(root)
    assert load(".").fingerprint() == before


@pytest.mark.parametrize("name", ["unlabled", "Unlabeld", "unlabelled_"])
def test_a_misspelt_unlabeled_is_not_taken_for_a_class(tmp_path: Path, name: str) -> None:
    root = class_folders(tmp_path / "pets")
    (root / "unlabeled").rename(root / name)
    with pytest.raises(DataError, match=r"Did you mean .*unlabeled"):
        load(root)


def test_a_folder_one_level_too_high_is_noticed(tmp_path: Path) -> None:
    class_folders(tmp_path / "all" / "pets")
    class_folders(tmp_path / "all" / "cars")
    with pytest.raises(DataError, match="holds unlabeled: give that folder itself"):
        load(tmp_path / "all")


def test_images_outside_the_class_folders_are_counted(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    write_png(root / "loose.png")
    assert load(root).notes == ("1 image beside the folders is left out; unlabelled ones belong in unlabeled/",)
    with pytest.raises(DataError, match="holds 4 images, but no class folders"):
        load(root / "cats")


def test_a_linked_folder_is_not_entered_but_named(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets", unlabeled=0)
    (root / "zoo").symlink_to(root, target_is_directory=True)
    with pytest.raises(DataError, match=r"zoo is a link to a folder, and such links are not followed"):
        load(root)
    (root / "zoo").unlink()
    (root / "round").symlink_to(root / "round")
    assert len(load(root).train) == 8
    (root / "cats").rename(tmp_path / "elsewhere")
    (root / "cats").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(DataError, match="cats is a link to a folder"):
        load(root)


@pytest.mark.parametrize("name", ["test", "Test", "val", "validation", "valid"])
@pytest.mark.parametrize("unlabeled", [0, 6])
def test_a_part_beside_class_folders_is_no_class(tmp_path: Path, name: str, unlabeled: int) -> None:
    root = class_folders(tmp_path / "pets", unlabeled=unlabeled)
    class_folders(root / name, labeled=3, unlabeled=0)
    data = load(root)
    assert data.classes == ("cats", "dogs")
    assert len(data.train) == 8 + unlabeled
    part = data.test if name.lower() == "test" else data.validation
    assert part is not None
    assert part.labels.tolist() == [0] * 3 + [1] * 3
    assert inspect(root, timing=False).contents.classes == ("cats", "dogs")


def test_images_to_measure_on_need_no_others(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets" / "test", labeled=3, unlabeled=0)
    data = load(tmp_path / "pets", training=False)
    assert data.test is not None
    assert (len(data.train), len(data.test), data.classes) == (0, 6, ("cats", "dogs"))


def test_what_looks_like_a_part_and_cannot_be_one_is_asked_about(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    write_png(root / "test" / "1.png")
    for look in (load, lambda path: inspect(path, timing=False)):
        with pytest.raises(DataError, match=r"test looks like images to measure on, but holds no class folders.*class"):
            look(root)
    write_png(root / "test" / "horses" / "1.png")
    with pytest.raises(DataError, match="holds no folder of cats, dogs"):
        load(root)
    write_png(root / "test" / "cats" / "1.png")
    (root / "test" / "horses" / "1.png").unlink()
    (root / "test" / "horses").rmdir()
    assert load(root).notes == ("1 image in test/ is in no class folder and left out",)
    (root / "test").rename(root / "testing")
    with pytest.raises(DataError, match=r"testing would be a class.*name it test or val"):
        load(root)


def test_test_images_without_a_class_are_noted_where_there_is_a_train_folder(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets" / "train")
    write_png(tmp_path / "pets" / "test" / "1.png")
    data = load(tmp_path / "pets")
    assert data.test is None
    assert data.notes == ("1 image in test/ is in no class folder and left out",)


def test_what_macos_puts_into_archives_is_no_class(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    write_png(root / "__MACOSX" / "cats" / "0.png")
    write_png(root / "cats" / "__MACOSX" / "0.png")
    data = load(root)
    assert (data.classes, len(data.train)) == (("cats", "dogs"), 14)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_csv_as_spreadsheets_write_it(tmp_path: Path, end: str) -> None:
    for name in ('with "quotes".png', "with, comma.png", "ü語.png", "<b>.png"):
        write_png(tmp_path / name, value=len(name))
    rows = ["image,label", '"with ""quotes"".png","a ""b"""', '"with, comma.png",c', "ü語.png,<b>bold</b>", "<b>.png,"]
    (tmp_path / "labels.csv").write_bytes(("\ufeff" + end.join(rows) + end).encode())
    data = load(tmp_path / "labels.csv")
    assert data.classes == ("<b>bold</b>", 'a "b"', "c")
    assert data.train.labels.tolist() == [1, 2, 0, -1]
    assert data.train.paths == ('with "quotes".png', "with, comma.png", "ü語.png", "<b>.png")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("nothing", ["", "NaN", "None", "n/a", "NULL"])
def test_a_csv_as_people_have_it(tmp_path: Path, separator: str, nothing: str) -> None:
    for i, name in enumerate("abc"):
        write_png(tmp_path / f"{name}.png", value=i)
    rows = [("Note", "Image", " LABEL "), ("1,5" if separator != "," else "", "a.png", "x"), ("", "b.png", " y ")]
    text = "\r\n".join(separator.join(row) for row in [*rows, ("", "c.png", nothing)])
    table = tmp_path / ("labels.tsv" if separator == "\t" else "labels.csv")
    table.write_bytes(f"\ufeff{text}\r\n".encode())
    data = load(table)
    assert (data.classes, data.train.labels.tolist()) == (("x", "y"), [0, 1, -1])
    assert data.notes == ((f"images with the label {nothing} are taken as unlabelled",) if nothing else ())


def test_a_label_with_a_comma_is_not_cut_in_two(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("image,label\na.png,cat,small\n")
    with pytest.raises(DataError, match="line 2 has 3 cells, but the first line names 2"):
        load(tmp_path / "labels.csv")


def test_a_csv_may_name_images_anywhere_and_they_stay_as_they_are(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    images = [write_png(there / f"{i}.png", value=50 * i) for i in range(4)]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.png")}
    table = here / "labels.csv"
    table.write_text(f"image,label\n{images[0]},a\n../there/1.png,b\n{images[2]},\n../there/3.png,\n")
    data = load(table)
    assert data.train.paths == (str(images[0]), "../there/1.png", str(images[2]), "../there/3.png")
    run = ebpl.train(table, quick(epochs=1, curriculum__steps=1), run=tmp_path / "run")
    assert (run.path / "pseudo_labels" / "step-1.csv").read_text().count(".png") == 2
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.png")} == before
    assert {path.name for path in tmp_path.iterdir()} == {"here", "there", "run"}
    assert [path.name for path in here.iterdir()] == ["labels.csv"]


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    write_png(tmp_path / "here.png")
    (tmp_path / "labels.csv").write_text("image,label\n\nhere.png,a\n\nthere.png,b\n")
    with pytest.raises(DataError, match=r"line 5: there\.png"):
        load(tmp_path / "labels.csv")


def test_all_that_is_wrong_with_the_folders_is_told_at_once(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    (root / "zoo").symlink_to(root / "cats", target_is_directory=True)
    (root / "horses").mkdir()
    (root / "unlabelld").mkdir()
    (root / "test").mkdir()
    for look in (load, lambda path: inspect(path, timing=False)):
        with pytest.raises(DataError) as raised:
            look(root)
        message = str(raised.value)
        assert f"4 folders of {root} are wrong:" in message
        assert "zoo is a link to a folder" in message
        assert "horses holds no image that can be read" in message
        assert "Remove the folder, or put images in." in message
        assert message.count("zoo") == message.count("horses") == 1
        assert "Did you mean" in message
        assert "test looks like images to measure on" in message


def test_wrong_folders_inside_parts_are_told_together(tmp_path: Path) -> None:
    for part in ("train", "test"):
        class_folders(tmp_path / "pets" / part, unlabeled=0)
        (tmp_path / "pets" / part / "horses").mkdir()
    (tmp_path / "pets" / "more").mkdir()
    with pytest.raises(DataError, match=r"(?s)3 folders of .*more beside it is no class.*horses holds.*horses holds"):
        load(tmp_path / "pets")


def test_paths_of_a_csv_with_backslashes_are_taken_where_the_file_exists_with_slashes(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "pets")
    (root / "labels.csv").write_text("image,label\ncats\\0.png,a\ndogs\\1.png,b\nunlabeled/2.png,\n")
    data = load(root / "labels.csv")
    assert data.train.paths == ("cats/0.png", "dogs/1.png", "unlabeled/2.png")


def test_a_csv_with_paths_from_the_current_folder_is_told_what_paths_are_relative_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    table = Path("pets/labels.csv")
    lines = [f"pets/{label}/{i}.png,{label}" for label in ("cats", "dogs") for i in range(4)]
    table.write_text("\n".join(["image,label", *lines]))
    advice = (
        "aths are relative to the folder of pets/labels.csv: looked for pets/pets/cats/0.png, though pets/cats/0.png "
        "is there relative to the current folder"
    )
    with pytest.raises(DataError) as raised:
        load(table)
    assert str(raised.value).count(advice) == 1
    found = inspect(table, timing=False)
    assert len(found.contents.unreadable) == 8
    assert [note for note in found.contents.notes if "relative" in note] == [f"p{advice}"]


def test_every_split_that_is_none_is_told(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("image,label,split\na.png,a,later\na.png,a,train\na.png,a,soon\n")
    with pytest.raises(DataError, match=r"(?s)train, val or test.*line 2: split is 'later'.*line 4: split is 'soon'"):
        load(tmp_path / "labels.csv")
