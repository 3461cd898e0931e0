import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ebpl
from ebpl import inspection as inspecting
from ebpl.cli import build_parser, main
from ebpl.config import Settings
from ebpl.data import load
from ebpl.data.contents import contents
from ebpl.data.dataset import ImageSet
from ebpl.encoders import Encoder
from ebpl.errors import DataError
from ebpl.inspection import FEW_LABELS, IMBALANCE, Inspection, inspect
from ebpl.recommendation import VIEWS, Recommendation
from ebpl.training.time_budget import Timing
from tests.helpers import QUICK, blobs, class_folders, random_images, write_png
from tests.test_recommendation import SIZE, striped_folder, use_small_encoder


def kinds(found: Inspection) -> dict[str, bool]:
    """The problems that were found, and whether they are serious."""
    return {problem.kind: problem.serious for problem in found.problems}


def looked(data: object) -> Inspection:
    return inspect(data, timing=False)  # type: ignore[arg-type]


def good_folder(root: Path, labeled: int = FEW_LABELS) -> Path:
    """Two classes and unlabelled images, all different."""
    pixels = random_images(2 * labeled + 6, 8, 8)
    names = [*[f"cats/{i}" for i in range(labeled)], *[f"dogs/{i}" for i in range(labeled)]]
    for image, name in zip(pixels, [*names, *[f"unlabeled/{i}" for i in range(6)]], strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / f"{name}.png")
    return root


def test_good_data_has_no_problems_and_a_command_that_works() -> None:
    found = looked(good_folder(Path("my pets")))
    assert found.problems == ()
    assert found.duplicates.extra == 0
    assert (found.used, found.unlabeled, found.imbalance) == ({"cats": 5, "dogs": 5}, 6, 1)
    assert found.suggestion is not None
    assert found.suggestion.timing is None
    assert found.suggestion.command == f"ebpl train 'my pets' --preset {found.suggestion.preset}"
    assert "16 images, 2 classes, 0 problems" in repr(found)


def test_the_same_image_with_two_labels_is_serious() -> None:
    root = good_folder(Path("pets"))
    shutil.copy(root / "cats" / "0.png", root / "dogs" / "other name.png")
    found = looked(root)
    assert kinds(found) == {"conflicting_labels": True}
    (group,) = found.duplicates.conflicting
    assert {(entry.name, entry.label) for entry in group} == {("cats/0.png", "cats"), ("dogs/other name.png", "dogs")}


def test_duplicates_are_found_by_what_they_show_across_formats_and_parts() -> None:
    good_folder(Path("pets") / "train")
    good_folder(Path("pets") / "test", labeled=1)
    shutil.rmtree("pets/test/unlabeled")
    for path in Path("pets/test").rglob("*.png"):
        path.unlink()
    train = Path("pets/train")
    Image.open(train / "cats" / "1.png").save("pets/test/cats/renamed.bmp")
    write_png(Path("pets/test/dogs/own.png"), value=3)
    Image.open(train / "dogs" / "2.png").convert("RGBA").save(train / "unlabeled" / "again.png")
    Image.open(train / "dogs" / "3.png").save(train / "dogs" / "again.tif")
    found = looked("pets")
    assert kinds(found) == {"leak": True, "labeled_and_unlabeled": False, "duplicates": False}
    assert [len(getattr(found.duplicates, kind)) for kind in ("conflicting", "leaking", "labeled_and_unlabeled")] == [
        0, 1, 1,
    ]  # fmt: skip
    assert found.duplicates.extra == 3


def test_unreadable_files_are_all_listed_and_stop_nothing(capsys) -> None:
    root = good_folder(Path("pets"))
    for i in range(13):
        (root / "dogs" / f"bad{i:02}.png").touch()
    found = looked(root)
    assert len(found.contents.unreadable) == 13
    assert kinds(found) == {"unreadable": True}
    assert found.suggestion is not None
    assert found.suggestion.command.endswith("--skip-unreadable")
    assert main(["inspect", "pets", "--no-timing", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["unreadable"]) == 13
    assert told["unreadable"][0]["reason"] == "the file is empty"


def colored_folder(root: Path, unlabeled: tuple[int, int], labeled: tuple[int, int] = (8, 8)) -> Path:
    """Dark cats and bright dogs, with so many of each among the unlabelled images."""
    random = np.random.default_rng(0)
    for folder, numbers in (("", labeled), ("unlabeled", unlabeled)):
        for name, count, low in (("cats", numbers[0], 0), ("dogs", numbers[1], 150)):
            (root / (folder or name)).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                image = random.integers(low, low + 100, (8, 8), dtype=np.uint8)
                Image.fromarray(image).save(root / (folder or name) / f"{name}{i}.png")
    return root


def test_another_class_mix_of_the_unlabelled_images_is_estimated_and_told(capsys) -> None:
    found = looked(colored_folder(Path("pets"), unlabeled=(90, 10)))
    assert kinds(found) == {"class_mix": False}
    assert "--class-mix auto" in found.problems[0].text
    told = found.to_dict()["class_mix"]
    assert told["labels"] == {"cats": 0.5, "dogs": 0.5}
    assert told["differs"]
    assert told["unlabeled"]["cats"] == pytest.approx(0.9, abs=0.08)
    low, high = told["intervals"]["dogs"]
    assert low < 0.1 < high
    assert told["how"] == "by 100 images and plain colours and textures"
    assert main(["inspect", "pets", "--no-timing"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "class mix of the labels: 8 of each class class mix of the unlabelled images: cats " in printed
    assert "estimated by 100 images and plain colours and textures, with 95 % intervals" in printed


def test_where_the_class_mix_is_that_of_the_labels_nothing_is_noted() -> None:
    found = looked(colored_folder(Path("pets"), unlabeled=(50, 50)))
    assert found.problems == ()
    assert found.class_mix is not None
    assert found.class_mix.unlabeled is not None
    assert not found.class_mix.differs


def test_a_class_mix_that_cannot_be_told_says_why() -> None:
    nothing = looked(colored_folder(Path("labelled"), unlabeled=(0, 0))).class_mix
    assert nothing is not None
    assert (nothing.unlabeled, nothing.how) == (None, "there are no unlabelled images")
    single = looked(colored_folder(Path("single"), unlabeled=(9, 9), labeled=(8, 1))).class_mix
    assert single is not None
    assert (single.unlabeled, single.how) == (None, "a class has a single label")
    noise = looked(good_folder(Path("noise"), labeled=10)).class_mix
    assert noise is not None
    assert noise.unlabeled is None
    assert "too few for an estimate" in noise.how


def test_few_labels_and_imbalance_are_told_where_they_matter() -> None:
    few = good_folder(Path("few"), labeled=FEW_LABELS - 1)
    assert kinds(looked(few)) == {"few_labels": False}
    labels = [0] * int(5 * IMBALANCE) + [1] * 5 + [-1] * 20
    data = ebpl.from_arrays(random_images(len(labels), 8, 8), labels)
    found = looked(data)
    assert kinds(found) == {"imbalance": False}
    assert found.imbalance == IMBALANCE
    assert kinds(looked(ebpl.from_arrays(random_images(30, 8, 8)[: len(labels)], [0] * 15 + [1] * 5 + [-1] * 10))) == {}


def test_what_cannot_be_trained_on_is_said_and_still_looked_at() -> None:
    write_png(Path("one/cats/1.png"))
    found = looked("one")
    assert kinds(found) == {"not_trainable": True}
    assert "one class (cats)" in found.problems[0].text
    assert found.suggestion is None
    data = ebpl.from_arrays(random_images(8, 8, 8), [0] * 4 + [1] * 4)
    assert kinds(looked(data)) == {"few_labels": False, "no_unlabeled": False}
    for name in ("cats", "dogs"):
        Path("bad", name).mkdir(parents=True)
        Path("bad", name, "1.png").touch()
    assert kinds(looked("bad")) == {"not_trainable": True, "unreadable": True}


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_programs_learn_that_it_cannot_be_trained_on(more: list[str]) -> None:
    write_png(Path("one/cats/1.png"))
    assert main(["inspect", "one", "--no-timing", *more]) == DataError.exit_code
    good_folder(Path("pets"))
    (Path("pets") / "dogs" / "bad.png").touch()
    assert main(["inspect", "pets", "--no-timing", *more]) == 0  # the command that it shows works


def test_training_warns_of_the_contradictions_that_inspecting_finds(capsys) -> None:
    root = good_folder(Path("pets"))
    assert load(root).notes == ()
    shutil.copy(root / "cats" / "0.png", root / "cats" / "again.png")
    shutil.copy(root / "cats" / "0.png", root / "unlabeled" / "again.png")
    assert load(root).notes == ()
    Image.open(root / "cats" / "0.png").convert("RGBA").save(root / "dogs" / "other.png")
    (note,) = load(root).notes
    assert note.startswith(
        "Warning: 1 image has different labels, so at least one is wrong: cats/0.png (cats), dogs/ot"
    )
    assert kinds(looked(root))["conflicting_labels"]
    assert main(["train", "pets", *QUICK, "--pseudo-labels", "none", "--run", "run"]) == 0
    assert "Warning: 1 image has different labels" in capsys.readouterr().err
    images = random_images(4, 8, 8)[[0, 1, 0, 1]]
    np.savez("a.npz", train_images=images, train_labels=[0, 1, 1, 0])
    assert (
        "2 images have different labels, so at least one is wrong: for instance number 0 (0)" in load("a.npz").notes[0]
    )


def test_classes_that_may_be_one_are_named() -> None:
    root = good_folder(Path("pets"))
    for image in (root / "dogs").iterdir():
        write_png(root / "Dogs " / image.name, value=int(image.stem))
    assert kinds(looked(root)) == {"alike_classes": False}


def test_modes_and_sizes_are_counted() -> None:
    root = good_folder(Path("pets"))
    for mode, name in {"RGB": "rgb.png", "RGBA": "rgba.png", "P": "p.gif", "CMYK": "c.jpg"}.items():
        Image.new(mode, (9, 7), 3).save(root / "cats" / name)
    Image.fromarray(np.arange(63, dtype=np.uint16).reshape(7, 9)).save(root / "dogs" / "deep.png")
    found = looked(root)
    assert found.contents.kinds == {"gray": 16, "colour": 1, "alpha": 1, "palette": 1, "CMYK": 1, "16-bit": 1}
    assert found.contents.sizes == {(8, 8): 16, (7, 9): 5}


def test_a_benchmark_tells_how_many_labels_are_used() -> None:
    found = looked("digits")
    assert set(found.used.values()) == {5}
    assert found.unlabeled == 790
    assert found.to_dict()["parts"]["train"]["labeled"] == 1200
    assert found.suggestion is not None
    assert found.suggestion.command.startswith("ebpl train digits")


def test_the_time_is_measured_and_arrays_are_trained_from_python() -> None:
    found = inspect(blobs())
    assert found.suggestion is not None
    timing = found.suggestion.timing
    assert timing is not None
    settings = ebpl.preset(found.suggestion.preset)
    epochs = settings.optim.epochs + settings.curriculum.steps * settings.curriculum.epochs
    assert timing.updates == epochs * (settings.optim.updates_per_epoch or -(-120 // settings.optim.batch_size))
    assert timing.seconds > timing.update > 0
    assert found.suggestion.command == f"ebpl.train(data, preset={found.suggestion.preset!r})"


def test_json_has_no_numbers_that_json_has_not_and_the_command_parses(capsys) -> None:
    assert main(["inspect", str(class_folders(Path("pets"))), "--json", "--no-timing", "--image-size", "16"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["suggestion"]["command"].endswith("--image-size 16")
    parser, _ = build_parser()
    parser.parse_args(told["suggestion"]["command"].split()[1:])
    assert told["image_shape"] == [1, 16, 16]


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert [problem.kind for problem in inspecting._busy("cpu")] == ["busy"]
    assert inspecting._busy("cuda") == []
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert inspecting._busy("cpu") == []


def test_an_encoder_is_recommended_with_a_command_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_encoder(monkeypatch)
    found = inspect(striped_folder(), timing=True)
    recommended, suggestion = found.recommendation, found.suggestion
    assert recommended is not None
    assert suggestion is not None
    assert recommended.encoder
    assert (suggestion.preset, suggestion.command) == ("features", "ebpl train photos --preset features")
    assert found.contents.shape == (1, SIZE, SIZE)
    assert found.contents.notes == ()  # the encoder reads them at their own size
    settings = ebpl.preset("features")
    epochs = settings.optim.epochs + settings.curriculum.steps * settings.curriculum.epochs
    assert suggestion.timing is not None
    assert suggestion.timing.updates == epochs
    assert suggestion.timing.seconds > suggestion.timing.start + epochs * suggestion.timing.update
    assert found.to_dict()["recommendation"] == recommended.to_dict()
    assert not looked(striped_folder("dark", colored=True)).contents.notes[0].endswith(f"{SIZE} x {SIZE}")


@pytest.mark.parametrize("name", ["features", "fine-tuned-end"])
def test_the_time_of_a_training_with_an_encoder_is_that_of_all_its_images(
    monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_encoder(monkeypatch)
    if name == "fine-tuned-end":
        monkeypatch.setattr("ebpl.recommendation.ACCURATE", 1.01)  # no features are good enough
    monkeypatch.setattr(Encoder, "seconds_per_image", lambda *_: 100.0)
    asked: list[Settings] = []

    def timed(data: ImageSet, settings: Settings, _: object) -> Timing:
        asked.append(settings)
        return Timing(updates=10, timed=3, update=2.0, seconds=20 + 7 + 5 * len(data.train), start=7)

    monkeypatch.setattr(inspecting, "time_training", timed)
    found = inspect(striped_folder(labeled=20, unlabeled=60))
    assert found.suggestion is not None
    assert found.suggestion.timing is not None
    assert asked[0].optim.updates_per_epoch == {"features": 2, "fine-tuned-end": 20}[name], "80 images, 64 at once"
    assert found.recommendation is not None
    reading = found.recommendation.reading
    assert 0 < reading < 1
    times = {"features": 1, "fine-tuned-end": VIEWS}[name]
    assert found.suggestion.timing.seconds == pytest.approx(80 * (100 * times + reading) + 20 + 7 + 5 * 80)
    assert found.suggestion.command == f"ebpl train photos --preset {name}"
    assert main(["inspect", "photos"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        ("whose last block learns too" in said)
        == ("computing views of 80 training images" in said)
        == (name == "fine-tuned-end")
    )


def test_a_larger_size_is_recommended_with_a_command_that_uses_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = Recommendation("best", None, 128, "Detail tells.", 20, None, 0.5, {32: 0.5, 128: 1.0})
    monkeypatch.setattr(inspecting, "recommend", lambda *_, **__: size)
    larger = looked(striped_folder())
    assert larger.contents.shape == larger.contents.read().shape == (1, SIZE, SIZE)
    assert larger.contents.notes == ()
    assert larger.suggestion is not None
    assert larger.suggestion.command.endswith("--image-size 128")
    assert main(["inspect", "photos", "--no-timing"]) == 0
    assert "Learn from scratch at 128 x 128 pixels. Detail tells." in capsys.readouterr().out
    assert main(["inspect", "photos", "--no-timing", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["recommendation"]
    assert (told["image_size"], told["size_accuracies"]) == (128, {"32": 0.5, "128": 1.0})


def test_the_size_that_an_encoder_reads_at_is_noted() -> None:
    write_png(Path("pets/cats/1.png"), size=(90, 70))
    write_png(Path("pets/dogs/1.png"), size=(90, 70), value=9)
    found = inspecting._read_at(contents("pets"), 224)
    assert found.shape == (1, 224, 224)
    assert found.notes == ("images of 90 x 70 pixels (width x height) are resized to 224 x 224",)
    write_png(Path("pets/dogs/1.png"), size=(80, 70))
    found = inspecting._read_at(contents("pets"), 224)
    assert found.notes == ("images of 2 different sizes are resized to 224 x 224",)
    assert inspecting._read_at(found, None) is found


def test_without_a_comparison_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    small = looked(good_folder(Path("pets"))).recommendation
    assert small is not None
    assert (small.encoder, small.labels) == (None, 0)
    assert "64 x 64" in small.reason
    monkeypatch.setattr("ebpl.encoders.registry.EncoderInfo.path", property(lambda _: None))
    missing = looked(striped_folder()).recommendation
    assert missing is not None
    assert "pip install 'ebpl[encoders]'" in missing.reason
    write_png(Path("one/cats/1.png"))
    assert looked("one").recommendation is None
    assert looked("one").to_dict()["recommendation"] is None
