from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.cli import main
from ebpl.data import load
from ebpl.data.folder import list_folder, read_surveyed, survey
from ebpl.errors import DataError, RunError
from ebpl.models.predictions import predict
from tests.helpers import QUICK, class_folders, quick, write_png


def damaged_folder(root: Path) -> Path:
    """A good folder with three files that cannot be read."""
    class_folders(root)
    (root / "cats" / "empty.png").touch()
    (root / "dogs" / "text.jpg").write_text("not an image")
    (root / "unlabeled" / "gone.png").symlink_to("nowhere.png")
    return root


def test_unreadable_images_are_left_out_where_asked_and_noted() -> None:
    whole = load(class_folders(Path("good") / "pets"))
    data = load(damaged_folder(Path("pets")), skip_unreadable=True)
    assert data.fingerprint() == whole.fingerprint()
    assert data.train.paths == whole.train.paths
    (note,) = data.notes
    assert note.startswith("3 images that cannot be read are left out: ")
    for part in ("empty.png (the file is empty)", "text.jpg (not an image)", "gone.png (the link leads nowhere)"):
        assert part in note
    with pytest.raises(DataError, match=r"(?s)empty\.png.*--skip-unreadable"):
        load("pets")


def test_a_csv_that_names_unknown_images_is_read_without_them_where_asked() -> None:
    for i, name in enumerate("ab"):
        write_png(Path(f"{name}.png"), value=i)
    Path("labels.csv").write_text("image,label\na.png,x\nb.png,y\nc.png,x\n")
    with pytest.raises(DataError, match=r"(?s)line 4: c\.png.*--skip-unreadable"):
        load("labels.csv")
    data = load("labels.csv", skip_unreadable=True)
    assert data.train.paths == ("a.png", "b.png")
    left_out, advice = data.notes
    assert left_out == "1 image that cannot be read is left out: line 4: c.png (there is no such file)"
    assert advice == "paths are relative to the folder of labels.csv: looked for c.png"


def test_a_class_none_of_whose_images_can_be_read_is_missed() -> None:
    root = class_folders(Path("pets"))
    (root / "horses").mkdir()
    (root / "horses" / "1.png").touch()
    with pytest.raises(DataError, match="no labelled training image of class horses"):
        load(root, skip_unreadable=True)
    Path("labels.csv").write_text("image,label\npets/cats/1.png,x\npets/dogs/1.png,y\nnone.png,z\n")
    with pytest.raises(DataError, match="no labelled training image of class z"):
        load("labels.csv", skip_unreadable=True)


def test_where_nothing_can_be_read_it_is_said_so() -> None:
    for name in ("cats", "dogs"):
        Path("pets", name).mkdir(parents=True)
        Path("pets", name, "1.png").touch()
    with pytest.raises(DataError, match="None of the 2 images of pets can be read"):
        load("pets", skip_unreadable=True)


def test_training_goes_round_unreadable_images_says_so_and_can_be_resumed(capsys) -> None:
    damaged_folder(Path("pets"))
    options = [*QUICK, "--method", "curriculum-labeling", "--pseudo-labels", "none", "--run", "run"]
    assert main(["train", "pets", *options]) == DataError.exit_code
    assert "--skip-unreadable" in capsys.readouterr().err
    assert not Path("run").exists()
    assert main(["train", "pets", *options, "--skip-unreadable"]) == 0
    assert "3 images that cannot be read are left out" in Path("run/train.log").read_text()
    Path("run/test_metrics.json").unlink()
    assert main(["resume", "run"]) == 0
    assert main(["evaluate", "run", "pets"]) == DataError.exit_code
    capsys.readouterr()
    assert main(["evaluate", "run", "pets", "--skip-unreadable"]) == 0
    assert "3 images that cannot be read are left out" in capsys.readouterr().out
    write_png(Path("pets/cats/empty.png"))
    Path("run/test_metrics.json").unlink()
    with pytest.raises(RunError, match="not those that run was started with"):
        ebpl.resume("run")


def test_training_and_prediction_see_the_same_pixels() -> None:
    from ebpl.inference.ensemble import Ensemble
    from ebpl.inference.predict import predict_files
    from ebpl.inference.sources import find_images

    root = class_folders(Path("pets"))
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = np.add.outer(np.arange(8), 9 * np.arange(12)).astype(np.uint8)
    Image.fromarray(sideways).save(root / "cats" / "turned.png", exif=exif)
    image = Image.new("RGBA", (8, 8), (40, 90, 10, 0))
    image.save(root / "dogs" / "clear.png")
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 900).save(root / "dogs" / "deep.png")
    run = ebpl.train(root, quick(epochs=1, pseudo_labels="none"), run="run")
    data, rows = run.load_data(), []
    assert any("1 image is turned" in note for note in data.notes)
    assert any("1 image is put on white" in note for note in data.notes)
    predict_files(Ensemble([run]), find_images([root]), rows.append)
    model, _ = run.load_model()
    expected = predict(model, data.train.pixels)
    energies = dict(zip(data.train.paths or (), expected.energies, strict=True))
    assert len(rows) == len(energies)
    for row in rows:
        assert float(row["energy"]) == pytest.approx(
            energies[Path(row["image"]).relative_to(root).as_posix()], rel=1e-4
        )


def test_a_file_that_changes_after_it_was_decoded_changes_nothing() -> None:
    listed = list_folder(class_folders(Path("pets")))
    expected = load("pets").fingerprint()
    found = survey(listed)
    Path("pets/cats/0.png").write_bytes(b"")
    assert read_surveyed(listed, found).fingerprint() == expected


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each image file was opened to be decoded, by its name."""
    counts: Counter[str] = Counter()
    real = Image.open

    def counting(path, *arguments, **options):
        counts[Path(path).as_posix()] += 1
        return real(path, *arguments, **options)

    monkeypatch.setattr(Image, "open", counting)
    return counts


def test_loading_a_folder_decodes_each_image_once(opened: Counter[str]) -> None:
    root = class_folders(Path("pets"))
    write_png(root / "cats" / "large.png", size=(90, 70), mode="RGB")
    files = {path.as_posix(): 1 for path in root.rglob("*.png")}
    for size in (None, 20):
        opened.clear()
        load(root, image_size=size)
        assert opened == files


def test_training_on_a_folder_decodes_each_image_once(opened: Counter[str]) -> None:
    root = class_folders(Path("pets"))
    class_folders(Path("all") / "test", unlabeled=0)
    root.rename("all/train")
    options = [*QUICK, "--method", "curriculum-labeling", "--epochs", "1", "--set", "curriculum.steps=1"]
    assert main(["train", "all", *options, "--run", "run"]) == 0
    assert opened == {path.as_posix(): 1 for path in Path("all").rglob("*.png")}


def test_inspecting_a_folder_decodes_each_image_once(opened: Counter[str]) -> None:
    root = class_folders(Path("pets"))
    assert ebpl.inspect(root, timing=False).suggestion
    assert opened == {path.as_posix(): 1 for path in root.rglob("*.png")}


FOLDERS = {
    "gray of one size": [("L", (24, 16))] * 3,
    "gray of several sizes below 64": [("L", (24, 16)), ("L", (64, 64)), ("L", (7, 33))],
    "gray of several sizes around 64": [("L", (24, 16)), ("L", (65, 40)), ("L", (200, 131))],
    "gray of one size up to 64": [("L", (64, 48))] * 3,
    "gray of one size above 64": [("L", (90, 70))] * 3,
    "gray and colour of one size": [("L", (24, 16)), ("RGB", (24, 16)), ("L", (24, 16))],
    "gray and colour around 64": [("L", (64, 64)), ("RGB", (90, 50)), ("L", (131, 67)), ("RGB", (10, 12))],
}


@pytest.mark.parametrize("image_size", [None, 20, 48])
@pytest.mark.parametrize("pictures", FOLDERS.values(), ids=FOLDERS)
def test_pixels_are_those_of_decoding_converting_and_resizing_each_file(
    pictures: list[tuple[str, tuple[int, int]]], image_size: int | None
) -> None:
    random = np.random.default_rng(0)
    for number, (mode, (width, height)) in enumerate(pictures * 2):
        shape = (height, width) if mode == "L" else (height, width, 3)
        path = Path("pets") / ("cats" if number % 2 else "dogs") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(path)
    sizes = {size for _, size in pictures}
    own = next(iter(sizes)) if len(sizes) == 1 and max(max(sizes)) <= 64 else (32, 32)
    wanted = (image_size, image_size) if image_size else own
    mode = "L" if all(mode == "L" for mode, _ in pictures) else "RGB"
    train = load("pets", image_size=image_size).train
    assert train.pixels.shape[3] == len(mode)
    for pixels, name in zip(train.pixels, train.paths or (), strict=True):
        with Image.open(Path("pets") / name) as image:
            enlarged = image.width < wanted[0] or image.height < wanted[1]
            how = Image.Resampling.BILINEAR if enlarged else Image.Resampling.BOX
            expected = np.asarray(image.convert(mode).resize(wanted, how))
        np.testing.assert_array_equal(pixels, expected.reshape(pixels.shape))


def test_frames_and_deep_images_are_noted() -> None:
    root = class_folders(Path("pets"))
    frames = [Image.new("L", (8, 8), value) for value in (10, 200)]
    frames[0].save(root / "cats" / "moving.gif", save_all=True, append_images=frames[1:])
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8)).save(root / "dogs" / "deep.png")
    assert load(root).notes == (
        "1 image of more than 8 bits is stretched",
        "1 image with several frames or pages: the first is taken",
    )
