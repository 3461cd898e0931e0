from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl.cli import main
from ebpl.data import folder as reading
from ebpl.data import load
from ebpl.data.folder import list_folder, survey
from ebpl.errors import DataError, RunError
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
    for name in "ab":
        write_png(Path(f"{name}.png"))
    Path("labels.csv").write_text("image,label\na.png,x\nb.png,y\nc.png,x\n")
    with pytest.raises(DataError, match=r"(?s)line 4: c\.png.*--skip-unreadable"):
        load("labels.csv")
    data = load("labels.csv", skip_unreadable=True)
    assert data.train.paths == ("a.png", "b.png")
    assert data.notes == ("1 images that cannot be read are left out: line 4: c.png (there is no such file)",)


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
    from ebpl.inference.predict import find_images, predict_files

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
    assert any("1 images are turned" in note for note in data.notes)
    assert any("1 images are put on white" in note for note in data.notes)
    predict_files(run, find_images([root]), rows.append)
    model, _ = run.load_model()
    expected = ebpl.predict(model, data.train.pixels)
    energies = dict(zip(data.train.paths or (), expected.energies, strict=True))
    assert len(rows) == len(energies)
    for row in rows:
        assert float(row["energy"]) == pytest.approx(
            energies[Path(row["image"]).relative_to(root).as_posix()], rel=1e-4
        )


def test_a_file_that_changes_between_two_looks_is_an_error_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = list_folder(class_folders(Path("pets")))

    def surveyed(given, **options):
        found = survey(given, **options)
        Path("pets/cats/0.png").write_bytes(b"")
        return found

    monkeypatch.setattr(reading, "survey", surveyed)
    with pytest.raises(DataError, match=r"pets/cats/0\.png has changed while it was read: the file is empty"):
        reading.read(listed)


def test_frames_and_deep_images_are_noted() -> None:
    root = class_folders(Path("pets"))
    frames = [Image.new("L", (8, 8), value) for value in (10, 200)]
    frames[0].save(root / "cats" / "moving.gif", save_all=True, append_images=frames[1:])
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8)).save(root / "dogs" / "deep.png")
    assert load(root).notes == (
        "1 images of more than 8 bits are stretched, each to its own range",
        "1 images have several frames or pages; the first is taken",
    )
